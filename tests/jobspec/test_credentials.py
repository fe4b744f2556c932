"""Credentials are found by form and by name anywhere, reported without their value, and not confused with other values."""

import string
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.cli.main import main
from headway.jobspec.check.secrets import check_secrets
from headway.jobspec.credentials import find_credentials
from headway.jobspec.document import Document
from headway.jobspec.load import load_bytes, load_file

ROOT = Path(__file__).parents[2]

# Values of the forms that issuers publish; none was ever issued, since each is assembled here.
ALNUM = "NotAnIssuedOne0" * 6
FORMS = {
    "an AWS access key": ["AKIA" + "NOTISSUED2345672", "ASIA" + "NOTISSUED2345672"],
    "a GitHub token": [*(f"gh{kind}_{ALNUM[:36]}" for kind in "pousr"), f"github_pat_{ALNUM[:22]}_{ALNUM[:59]}"],
    "a GitLab token": [f"glpat-{ALNUM[:20]}"],
    "a Hugging Face token": [f"hf_{ALNUM[:34]}"],
    "an API key": [f"sk-{ALNUM[:48]}", f"sk-proj-{ALNUM[:48]}", f"sk-ant-api03-{ALNUM[:60]}"],
    "an NVIDIA API key": [f"nvapi-{ALNUM[:64]}"],
    "a Google API key": [f"AIza{ALNUM[:35]}"],
    "a Stripe key": [f"sk_live_{ALNUM[:24]}", f"rk_live_{ALNUM[:24]}"],
    "a Telegram token": [f"1234567890:AA{ALNUM[:33]}"],
    "a Weights & Biases key": ["wandb login " + "0a" * 20, "wandb login --relogin --host=https://w.example " + "0a" * 20],
    "a password": ["docker login -u bob -p hunter2 registry.example", "podman login registry.example -p hunter2"],
    "a Slack token": [f"xox{kind}-123456789012-{ALNUM[:24]}" for kind in "bp"],
    "a Slack webhook": [f"https://hooks.slack.com/services/T00000000/B00000000/{ALNUM[:24]}"],
    "a signed token": [f"eyJ{ALNUM[:20]}.eyJ{ALNUM[:20]}.{ALNUM[:20]}"],
    "a private key": ["-----BEGIN OPENSSH PRIVATE KEY-----\nb3Bl", "-----BEGIN PRIVATE KEY-----\nMII"],
    "a bearer token": [f"Authorization: Bearer {ALNUM[:24]}"],
    "a password in a URL": ["https://bob:hunter2@example.com/data", "postgres://u:p@db/runs", "s3://AK:SK@bucket/prefix"],
}
SECRET_NAMES = [
    "HF_TOKEN",
    "WANDB_API_KEY",
    "AWS_SECRET_ACCESS_KEY",
    "PGPASSWORD",
    "DB_PASSWORD",
    "CLIENT_SECRET",
    "SENTRY_DSN",
    "SERVICE_CREDENTIAL",
    "apiKey",
    "access-token",
    "PGPASS",
    "DB_PASS",
    "DB_PWD",
    "ENCRYPTION_KEY",
]
HARMLESS_NAMES = [
    "tokenizer",
    "TOKENIZERS_PARALLELISM",
    "num_tokens",
    "max_tokens",
    "pad_token",
    "EOS_TOKEN",
    "key",
    "text_key",
    "sort-key",
    "PUBLIC_KEY",
    "MONKEY",
    "HF_TOKEN_PATH",
    "SSH_KEY_FILE",
    "secretary",
    "BYPASS",
    "compass",
    "first_pass",
    "pass",
    "OLDPWD",
    "SMTP_AUTH",
    "WANDB",
]


@pytest.mark.parametrize(("kind", "value"), [(kind, value) for kind, values in FORMS.items() for value in values])
def test_each_form_of_credential_is_found_anywhere(kind: str, value: str) -> None:
    data: dict[str, Any] = {"a": {"b": [1, value]}, "c": f"--from={value}", "d": f"curl {value} now"}
    assert find_credentials(data) == {("a", "b", 1): kind, ("c",): kind, ("d",): kind}


@pytest.mark.parametrize("name", SECRET_NAMES)
def test_value_under_the_name_of_a_secret_is_a_credential(name: str) -> None:
    assert find_credentials({"environment": {name: "hunter2"}}) == {("environment", name): "by its name"}
    assert set(find_credentials({"argv": [f"--{name}=hunter2", f"export {name}=hunter2", f"run --{name} hunter2"]})) == {
        ("argv", index) for index in range(3)
    }
    assert set(find_credentials({"argv": ["train.py", f"--{name}", "hunter2"]})) == {("argv", 2)}


@pytest.mark.parametrize("name", HARMLESS_NAMES)
def test_name_that_only_resembles_a_secret_is_not_one(name: str) -> None:
    assert find_credentials({name: "value", "argv": [f"--{name}=value", f"--{name}", "value", f"x --{name} value"]}) == {}


@pytest.mark.parametrize(
    "value", ["", "$HF_TOKEN", "${HF_TOKEN}", "{seed}", "<token>", "***", "xxxx", "/run/secrets/hf", "~/.cache/token", "50256"]
)
def test_placeholder_of_a_secret_is_not_a_credential(value: str) -> None:
    assert find_credentials({"HF_TOKEN": value, "argv": [f"--hf-token={value}", "--hf-token", value]}) == {}


@pytest.mark.parametrize("value", ["true", "off", "None"])
def test_flag_is_not_a_secret(value: str) -> None:
    assert find_credentials({"USE_AUTH": value, "two_factor_pass": value, "pin_token": value}) == {}


@pytest.mark.parametrize(
    ("name", "value"),
    [("WANDB", "0a" * 20), ("DOCKER_AUTH", "eyJhdXRocyI6eyJ4IjoxfX0K"), ("x.dockerconfigjson", "eyJhdXRocyI6eyJ4IjoxfX0=")],
)
def test_name_and_form_are_combined(name: str, value: str) -> None:
    assert find_credentials({name: value}) == {(name,): "by its name"}


def test_secret_in_a_comment_is_found_at_its_position_and_not_shown() -> None:
    text = f"name: a  # glpat-{ALNUM[:20]}\n# hf_{ALNUM[:34]}\nsetup: |\n  # see hf_{ALNUM[:34]}\n"
    document, _ = load_bytes("a.yaml", text.encode())
    problems = list(check_secrets(document))
    assert [(problem.path, problem.span and problem.span[:2]) for problem in problems] == [
        (("setup",), None),
        ((), (0, 11)),
        ((), (1, 2)),
    ]
    assert not any(ALNUM[:20] in document.shown(line) for line in range(4))


def test_numeric_password_is_a_credential() -> None:
    assert find_credentials({"password": 123456, "db_password": "123456"}).keys() == {("password",), ("db_password",)}


@pytest.mark.parametrize(
    "value",
    [
        "0123456789abcdef0123456789abcdef01234567",
        f"registry.example.com:5000/team/train@sha256:{'0a' * 32}",
        "git@github.com:team/train.git",
        "ssh://git@github.com/team/train",
        "http://proxy:8080/x@y",
        "s3://bucket/a:b@c",
        "meta-llama/Llama-3.1-8B",
        "sk-training-pipeline-production-v2",
        "the bearer of the standard is here",
        "https://user:${PASSWORD}@example.com",
    ],
)
def test_hashes_digests_images_and_addresses_are_not_credentials(value: str) -> None:
    assert find_credentials({"value": value, "argv": ["train.py", f"--from={value}", value]}) == {}


def test_only_test_documents_of_the_repository_contain_credentials() -> None:
    documents = [*(ROOT / "examples").rglob("*.yaml"), *(ROOT / "tests" / "errors").glob("*.yaml")]
    suspected = {path.name for path in documents if find_credentials(load_file(path)[0].data)}
    assert suspected == {
        "secret-in-arguments.yaml",
        "secret-in-the-environment.yaml",
        "secret-on-the-line-of-another-problem.yaml",
        "tier-with-credentials.yaml",
        "unfilled.yaml",
    }


@given(st.text(string.ascii_letters + string.digits + "+/=", min_size=12, max_size=40))
def test_problem_names_the_position_and_not_the_value(value: str) -> None:
    document = Document("job.yaml", data={"environment": {"DB_PASSWORD": value}, "trainer": {"argv": [f"--password={value}"]}})
    found = list(check_secrets(document))
    for problem in found:
        assert value not in problem.message
        assert value not in (problem.hint or "")
    assert {problem.path for problem in found} <= {("environment", "DB_PASSWORD"), ("trainer", "argv", 0)}


@pytest.mark.slow
@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists))
def test_search_accepts_any_data(data: Any) -> None:
    assert all(isinstance(kind, str) for kind in find_credentials({"token": data}).values())


def test_a_long_text_is_searched_to_its_end() -> None:
    text = "sk-eyJ://-----BEGIN " * 40_000 + FORMS["a Hugging Face token"][0]
    document, problems = load_bytes("job.yaml", f'a: "{text}"'.encode())
    assert problems == []
    assert find_credentials(document.data) == {("a",): "a Hugging Face token"}


def test_output_of_a_check_shows_no_secret(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    secrets = ["hf_" + "a1B2" * 9, "ghp_" + "c3D4" * 9, "abcdefgh123", "twice-said-99", "glpat-" + "e5F6" * 6]
    job = tmp_path / "job.yaml"
    job.write_text(
        "apiVersion: headway/v1alpha1\nkind: TrainingJob\nname: case\ncluster: lab\n"
        f"model: {{preset: {secrets[0]}}}\n"
        f"trainer: {{kind: {secrets[1]}}}\n"
        f"environment: {{HF_TOKEN: {secrets[2]}}}\n"
        f"environment: {{HF_TOKEN: {secrets[3]}}}\n"
        f"steps: many # {secrets[4]}\n"
    )
    for form in ("text", "json", "sarif", "github"):
        assert main(["check", str(job), "--format", form]) == 1
        found = capsys.readouterr().out
        assert "HW215" in found
        assert [secret for secret in secrets if secret in found] == []
