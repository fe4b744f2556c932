"""`extends`: the values that a document inherits and their files; nothing else has an influence."""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.cli.main import main
from headway.jobspec.compose import MAX_BASES, MAX_FILES, OWN, compose, overlay
from headway.jobspec.document import Document
from headway.jobspec.load import MAX_VALUES, load_bytes, load_file
from headway.jobspec.parse import AnyParsed, read
from headway.jobspec.problem import Problem
from headway.jobspec.resolve.fingerprint import fingerprint, values_of
from tests.support.schemas import validator_of

EXAMPLES = Path(__file__).parents[2] / "examples"
STORY = EXAMPLES / "two-node-slurm"
HEAD = "apiVersion: headway/v1alpha1\nkind: TrainingJob\n"
CLUSTER_HEAD = "apiVersion: headway/v1alpha1\nkind: Cluster\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path(".git").mkdir()
    return tmp_path


def write(name: str, text: str, head: str = HEAD) -> Path:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(head + text)
    return path


def composed(path: Path) -> tuple[Document, list[Problem]]:
    document, problems = load_file(path)
    found = compose(document)
    return found.document, problems + found.problems


def merged(base: Any, heir: Any) -> Any:
    """Return the composed value of an heir's `v`."""
    documents = [
        load_bytes(f"{name}.yaml", json.dumps({"v": value}).encode())[0] for name, value in (("base", base), ("heir", heir))
    ]
    return overlay(*documents).data["v"]


def shown(text: str) -> list[tuple[str, str, str | None]]:
    """Return code, position and heirs of each problem of the text."""
    pattern = r"^\w+\[(HW\d+)\]: .*\n  --> (.*)\n(?: .*\|.*\n)*(?: +(= .*)\n)?"
    return [(code, place, heirs or None) for code, place, heirs in re.findall(pattern, text, re.MULTILINE)]


@pytest.mark.parametrize(
    ("base", "heir", "expected"),
    [
        ({"a": 1, "b": 2}, {"b": 3, "c": 4}, {"a": 1, "b": 3, "c": 4}),
        ({"a": {"b": {"c": 1, "d": 2}}}, {"a": {"b": {"d": 3}}}, {"a": {"b": {"c": 1, "d": 3}}}),
        ([1, 2, 3], [4], [4]),
        ({"a": [1]}, {"a": []}, {"a": []}),
        ({"a": 1, "b": 2}, {"a": None}, {"b": 2}),
        ({"a": {"b": 1}}, {"a": None}, {}),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": None}}, {"a": {"c": 2}}),
        ({"a": [1]}, {"a": None}, {}),
        ({"b": 1}, {"a": None}, {"a": None, "b": 1}),
        ({"a": None}, {"a": {"b": 1}}, {"a": {"b": 1}}),
        ({"a": 1}, {"a": {}}, {"a": {}}),
        ({"a": {"b": 1}}, {"a": {}}, {"a": {"b": 1}}),
        ({"a": {"b": 1}}, {"a": [1]}, {"a": [1]}),
        ({"kind": "x", "options": {"a": 1}}, {"kind": "x", "options": {"b": 2}}, {"kind": "x", "options": {"a": 1, "b": 2}}),
        ({"kind": "x", "options": {"a": 1}}, {"kind": "y"}, {"kind": "y"}),
        ({"kind": "x", "options": {"a": 1}}, {"options": {"b": 2}}, {"kind": "x", "options": {"a": 1, "b": 2}}),
        ({"options": {"a": 1}}, {"kind": "x"}, {"kind": "x"}),
        ({"a": {"kind": "x", "b": 1}, "c": 1}, {"a": {"kind": "y"}}, {"a": {"kind": "y"}, "c": 1}),
    ],
)
def test_mappings_merge_and_other_values_replace(base: Any, heir: Any, expected: Any) -> None:
    assert merged(base, heir) == expected


@pytest.mark.parametrize(
    ("base", "heir", "expected"),
    [
        ({"preset": "a", "layers": 40}, {"preset": "b"}, {"preset": "b"}),
        ({"preset": "a", "layers": 40}, {"config": "c.json"}, {"config": "c.json"}),
        ({"layers": 40, "hidden": 64}, {"preset": "b", "layers": 2}, {"preset": "b", "layers": 2}),
        ({"preset": "a", "layers": 40}, {"preset": "a", "hidden": 8}, {"preset": "a", "layers": 40, "hidden": 8}),
        ({"preset": "a", "layers": 40}, {"preset": None, "hidden": 8}, {"layers": 40, "hidden": 8}),
        ({"preset": "a"}, {"layers": 40}, {"preset": "a", "layers": 40}),
    ],
)
def test_model_with_another_preset_inherits_nothing_from_the_base(base: Any, heir: Any, expected: Any) -> None:
    documents = [load_bytes(name, json.dumps({"model": model}).encode())[0] for name, model in (("base", base), ("heir", heir))]
    assert overlay(*documents).data["model"] == expected


REMOVABLE = {
    "environment": {"A": "1", "B": "2"},
    "layout": {"tp": 2},
    "precision": {"compute": "bf16"},
    "limits": {"attempt": {"time": "2h"}},
    "nodes": 2,
    "seed": 7,
    "recompute": "full",
    "optimizer": {"lr": 1e-3},
}


@pytest.mark.parametrize("field", REMOVABLE)
def test_null_removes_a_field_of_the_base_and_restores_its_default(field: str) -> None:
    script = {"name": "case", "cluster": "c", "run": ["train.py"]}
    write("base.yaml", yaml.safe_dump({"partial": True, field: REMOVABLE[field]}))
    parsed, problems = spec(write("job.yaml", yaml.safe_dump({"extends": "base.yaml", **script, field: None})))
    plain, _ = spec(write("plain.yaml", yaml.safe_dump(script)))
    assert problems == []
    assert parsed.spec.model_copy(update={"extends": ()}) == plain.spec
    assert validator_of().is_valid(yaml.safe_load(Path("job.yaml").read_text()))


def test_null_removes_an_entry_of_a_mapping_and_a_field_of_a_section() -> None:
    write("base.yaml", "partial: true\nenvironment: {A: '1', B: '2'}\nbatch: {micro: 1, sequence: 8}\nlayout: {tp: 2, cp: 4}\n")
    write("between.yaml", "partial: true\nextends: base.yaml\nenvironment: {A: null}\nlayout: {tp: null}\n")
    found = composed(write("job.yaml", "name: case\nextends: between.yaml\nenvironment: {C: '3'}\n"))[0].data
    assert found["environment"] == {"C": "3", "B": "2"}
    assert found["layout"] == {"cp": 4}
    assert not validator_of().is_valid({**yaml.safe_load(HEAD), "name": "a", "nodes": None})


def test_required_field_removed_by_null_is_missing() -> None:
    write("base.yaml", "partial: true\nbatch: {global: 8 sequences, micro: 1, sequence: 8}\ncluster: c\nrun: [train.py]\n")
    problems = spec(write("job.yaml", "name: case\nextends: base.yaml\nbatch: {micro: null}\n"))[1]
    assert [(problem.code, problem.path) for problem in problems] == [("HW202", ("batch",))]


def test_name_kind_and_partial_are_not_inherited() -> None:
    base = {
        "apiVersion": "v",
        "kind": "k",
        "name": "base",
        "partial": True,
        "extends": "x",
        "steps": 1,
        "deep": {"name": "n", "partial": 1},
    }
    assert set(base) - OWN == {"steps", "deep"}
    documents = [
        load_bytes("x.yaml", json.dumps(data).encode())[0] for data in (base, {"kind": "other", "deep": {"kind": "x"}, "a": {}})
    ]
    assert overlay(*documents).data == {"kind": "other", "deep": {"kind": "x"}, "a": {}, "steps": 1}


def test_later_bases_override_earlier_ones_and_may_have_bases() -> None:
    write("first.yaml", "steps: 1\nseed: 1\nnodes: 1\nmodel: {kind: a, hidden: 1}\n")
    write("below/second.yaml", "extends: third.yaml\nsteps: 2\nmodel: {layers: 3}\n")
    write("below/third.yaml", "extends: ../top.yaml\nseed: 3\nmodel: {kind: a, heads: 4}\n")
    write("top.yaml", "grace: 4\nseed: 4\n")
    path = write("job.yaml", "name: case\nextends: [first.yaml, below/second.yaml]\ncompile: true\n")
    document, problems = composed(path)
    assert problems == []
    assert {key: value for key, value in document.data.items() if key not in OWN} == {
        "compile": True,
        "steps": 2,
        "seed": 3,
        "nodes": 1,
        "grace": 4,
        "model": {"kind": "a", "hidden": 1, "heads": 4, "layers": 3},
    }
    origins = {
        str(key): document.origin(key if isinstance(key, tuple) else (key,)).name for key in [*document.data, ("model", "hidden")]
    }
    assert origins == {
        **dict.fromkeys(("apiVersion", "kind", "name", "extends", "compile"), "job.yaml"),
        "steps": "below/second.yaml",
        "model": "below/second.yaml",
        "seed": "below/third.yaml",
        "nodes": "first.yaml",
        "grace": "top.yaml",
        "('model', 'hidden')": "first.yaml",
    }
    assert document.source(("grace",)) == "4"
    assert document.folder(("seed",)) == Path("below")


def test_base_named_twice_is_not_a_cycle() -> None:
    write("top.yaml", "steps: 1\n")
    write("left.yaml", "extends: top.yaml\n")
    write("right.yaml", "extends: ./right/../top.yaml\n")
    document, problems = composed(write("job.yaml", "extends: [left.yaml, right.yaml]\n"))
    assert (problems, document.data["steps"]) == ([], 1)


def chain(length: int) -> Path:
    """Write a chain of `length` bases and return the document that extends them."""
    for index in range(length):
        write(f"{index}.yaml", f"extends: {index + 1}.yaml\n")
    write(f"{length}.yaml", "steps: 1\n")
    return Path("0.yaml")


def test_depth_of_bases_is_limited() -> None:
    document, problems = composed(chain(MAX_BASES))
    assert (problems, document.data["steps"]) == ([], 1)
    found = composed(chain(MAX_BASES + 1))[1]
    assert [(problem.code, problem.document, problem.heir) for problem in found] == [("HW114", f"{MAX_BASES}.yaml", "0.yaml")]


def test_total_number_of_bases_is_limited() -> None:
    write("leaf.yaml", "steps: 1\n")
    per_file = MAX_BASES - 1
    for index in range(MAX_BASES):
        write(f"{index}.yaml", f"extends: [{', '.join(['leaf.yaml'] * per_file)}]\n")
    bases = [f"{index}.yaml" for index in range(MAX_BASES)]
    assert MAX_BASES * (per_file + 1) == MAX_FILES
    assert composed(write("job.yaml", f"extends: [{', '.join(bases)}]\n"))[1] == []
    write("0.yaml", f"extends: [{', '.join(['leaf.yaml'] * MAX_BASES)}]\n")
    found = composed(Path("job.yaml"))[1]
    assert [(problem.code, problem.document) for problem in found] == [("HW114", "7.yaml")]


def test_number_of_bases_of_one_document_is_limited() -> None:
    write("leaf.yaml", "steps: 1\n")
    for names in (MAX_BASES, MAX_BASES + 1):
        problems = read(write("job.yaml", f"name: case\nextends: [{', '.join(['leaf.yaml'] * names)}]\n"))[2]
        refused = [problem.code for problem in problems if problem.path == ("extends",)]
        assert refused == (["HW204"] if names > MAX_BASES else [])


@pytest.mark.slow
def test_number_of_values_of_a_document_with_its_bases_is_limited() -> None:
    for name in ("a", "b"):
        items = ", ".join(f"{name}{index}: x" for index in range(MAX_VALUES // 2))
        write(f"{name}.yaml", f"environment: {{{items}}}\n")
    document, problems = composed(write("job.yaml", "extends: [a.yaml, b.yaml]\n"))
    assert [problem.code for problem in problems] == ["HW115"]
    assert len(document.values) < 10


@pytest.mark.parametrize("target", ["pipe", "folder", "absent.yaml", "x" * 300, "folder/absent.yaml", '"a\\0b"', "job.yaml/x"])
def test_base_that_is_not_a_regular_file_is_not_opened(target: str) -> None:
    Path("folder").mkdir()
    os.mkfifo("pipe")
    (problem,) = composed(write("job.yaml", f"extends: {target}\n"))[1]
    assert problem.code == "HW114"
    found = "`folder` is a folder, and `extends` names a file" if target == "folder" else "there is no file `"
    assert problem.message.startswith(found)
    assert problem.path == ("extends",)


def test_unreadable_base_is_a_problem_of_the_document_that_extends_it() -> None:
    def load(path: Path) -> tuple[Document, list[Problem]]:
        message = "cannot read the file: Permission denied"
        return Document(str(path)), [Problem("HW101", str(path), (), message, "check the path and its permissions")]

    write("base.yaml", "steps: 1\n")
    found = compose(load_file(write("job.yaml", "extends: base.yaml\n"))[0], load)
    assert [(problem.code, problem.document, problem.path) for problem in found.problems] == [("HW114", "job.yaml", ("extends",))]
    assert not found.whole


def test_environment_variables_are_not_expanded(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("HOME", "X", "BASE"):
        monkeypatch.setenv(name, "leaked")
    write("leaked", "steps: 1\n")
    write("base.yaml", "environment: {A: $HOME, B: '${X:-y}', C: \"$(id)\", D: ~/a, E: '%X%', F: '{{ X }}'}\n")
    document, problems = composed(write("job.yaml", "extends: base.yaml\n"))
    assert problems == []
    assert document.data["environment"] == {
        "A": "$HOME",
        "B": "${X:-y}",
        "C": "$(id)",
        "D": "~/a",
        "E": "%X%",
        "F": "{{ X }}",
    }
    for target in ("$BASE", "${BASE}", "~/leaked", "%BASE%"):
        assert [problem.code for problem in composed(write("job.yaml", f"extends: '{target}'\n"))[1]] == ["HW114"]


JOB = yaml.safe_load((STORY / "job.yaml").read_text())


def job(**changes: Any) -> str:
    """Return the example's job with other values; a field that is None is omitted."""
    data = {**{key: value for key, value in JOB.items() if key not in {"apiVersion", "kind", "name"}}, **changes}
    return yaml.safe_dump({key: value for key, value in data.items() if value is not None}, sort_keys=False)


def story() -> None:
    for file in STORY.glob("*cluster.yaml"):
        Path(file.name).write_text(file.read_text())


def test_mistake_of_a_base_is_reported_once_with_its_heirs(capsys: pytest.CaptureFixture[str]) -> None:
    story()
    write("base.yaml", job(steps="many", partial=True, seed=1))
    for index in range(10):
        write(f"job-{index}.yaml", f"name: job-{index}\nextends: base.yaml\nstepz: 3\n")
    assert main(["check", "."]) == 1
    out = capsys.readouterr().out
    line = (HEAD + job(steps="many", partial=True, seed=1)).splitlines().index("steps: many") + 1
    assert shown(out)[0] == ("HW203", f"base.yaml:{line}:8", "= in job-0.yaml and 9 more, which extend it")
    assert shown(out)[1:] == [("HW201", f"job-{index}.yaml:5:1", None) for index in range(10)]
    assert out.endswith("13 documents: 11 errors\n")


def test_every_format_names_the_file_of_the_value_and_the_heirs(capsys: pytest.CaptureFixture[str]) -> None:
    story()
    write("jobs/base.yaml", job(steps="many", cluster=None, partial=True))
    for name in ("one", "two"):
        write(f"jobs/{name}.yaml", f"name: {name}\nextends: base.yaml\ncluster: two-cpu-nodes\n")
    line = (HEAD + job(steps="many", cluster=None, partial=True)).splitlines().index("steps: many") + 1
    paths = ["jobs/one.yaml", "jobs/two.yaml"]
    assert main(["check", *paths, "--format", "json"]) == 1
    (problem,) = json.loads(capsys.readouterr().out)["problems"]
    assert (problem["file"], problem["line"], problem["path"], problem["heirs"]) == ("jobs/base.yaml", line, ["steps"], paths)
    assert main(["check", *paths, "--format", "sarif"]) == 1
    (result,) = json.loads(capsys.readouterr().out)["runs"][0]["results"]
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "jobs/base.yaml"
    assert "\nin jobs/one.yaml and 1 more, which extend it\nhint: " in result["message"]["text"]
    assert main(["check", *paths, "--format", "github"]) == 1
    out = capsys.readouterr().out
    assert out.startswith(f"::error file=jobs/base.yaml,line={line},")
    assert "%0Ain jobs/one.yaml and 1 more, which extend it%0Ahint: " in out


def test_problem_over_several_fields_is_shown_in_the_file_of_the_value(capsys: pytest.CaptureFixture[str]) -> None:
    story()
    write("base.yaml", f"partial: true\nmodel: {{{', '.join(f'{key}: {value}' for key, value in JOB['model'].items())}}}\n")
    write("job.yaml", f"name: case\nextends: base.yaml\n{job(model=None)}")
    assert main(["check", "job.yaml", "base.yaml"]) == 0
    capsys.readouterr()
    write("job.yaml", f"name: case\nextends: base.yaml\nmodel: {{heads: 3}}\n{job(model=None)}")
    assert main(["check", "job.yaml", "base.yaml"]) == 1
    found = shown(capsys.readouterr().out)
    assert found
    assert {heirs for _, place, heirs in found if place.startswith("base.yaml:4:")} == {"= in job.yaml, which extends it"}


def test_missing_field_is_reported_in_the_file_of_its_mapping(capsys: pytest.CaptureFixture[str]) -> None:
    story()
    write("base.yaml", "partial: true\nbatch: {micro: 1}\n")
    write("inherits.yaml", f"name: inherits\nextends: base.yaml\n{job(batch=None)}")
    write("adds.yaml", f"name: adds\nextends: base.yaml\nbatch: {{sequence: 128}}\n{job(batch=None)}")
    assert main(["check", "inherits.yaml"]) == 1
    assert shown(capsys.readouterr().out) == [("HW202", "base.yaml:4:1", "= in inherits.yaml, which extends it")] * 2
    assert main(["check", "adds.yaml"]) == 1
    assert shown(capsys.readouterr().out) == [("HW202", "adds.yaml:5:1", None)]


@pytest.mark.parametrize(
    "text", ["extends: 5\n", "extends: [base.yaml, 5]\n", "extends: ''\n", "extends: {a: b}\n", "extends: null\n"]
)
def test_base_with_an_invalid_extends_is_reported(text: str) -> None:
    write("base.yaml", text)
    (problem,) = composed(write("job.yaml", "extends: base.yaml\n"))[1]
    assert (problem.code, problem.document, problem.heir) == ("HW114", "base.yaml", "job.yaml")


def test_base_of_another_version_is_rejected() -> None:
    write("base.yaml", "steps: 1\n", HEAD.replace("v1alpha1", "v0"))
    (problem,) = composed(write("job.yaml", "extends: base.yaml\n"))[1]
    assert problem.message == "`base.yaml` has `apiVersion: headway/v0`, this document `apiVersion: headway/v1alpha1`"


def test_inventory_cannot_extend_a_base(capsys: pytest.CaptureFixture[str]) -> None:
    head = HEAD.replace("TrainingJob", "Inventory")
    write("base.yaml", "name: base\nnodes: []\n", head)
    write("inventory.yaml", "name: case\nextends: base.yaml\ncluster: c\n", head)
    assert main(["check", "inventory.yaml"]) == 1
    assert ("HW201", "inventory.yaml:4:1", None) in shown(capsys.readouterr().out)


def test_a_partial_document_has_no_plan_and_no_name(capsys: pytest.CaptureFixture[str]) -> None:
    story()
    for file in Path().glob("*cluster.yaml"):
        file.write_text(file.read_text().replace("\nname:", "\npartial: true\nname:", 1))
    write("job.yaml", f"name: case\n{job()}")
    assert main(["check", "cpu-cluster.yaml"]) == 0
    assert main(["plan", "cpu-cluster.yaml"]) == 1
    assert "error[HW211]: this document is partial: it is meant to be extended and has no plan\n" in capsys.readouterr().err
    assert main(["check", "job.yaml"]) == 1
    assert [code for code, *_ in shown(capsys.readouterr().out)] == ["HW401", "HW401"]
    assert main(["render", "."]) == 1
    write("job.yaml", f"partial: true\n{job()}")
    assert main(["render", "."]) == 0
    assert not Path("rendered").exists()
    for words in (["plan", "job.yaml"], ["plan", "job.yaml", "--json"], ["run", "job.yaml"]):
        assert main(words) == 1
        assert "error[HW211]" in capsys.readouterr().err


@pytest.mark.parametrize("value", ["yes", "1", "null", "[]"])
def test_partial_is_true_or_false(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    write("base.yaml", f"partial: {value}\nsteps: 1\n")
    assert main(["check", "base.yaml"]) == 1
    assert [code for code, *_ in shown(capsys.readouterr().out)] == ["HW203"]


def test_composed_job_plans_and_renders_like_one_in_a_single_file(capsys: pytest.CaptureFixture[str]) -> None:
    story()
    write("whole.yaml", f"name: case\n{job()}")
    write("parts/base.yaml", f"partial: true\n{job(data=None, seed=9, time_limit=None)}")
    write("parts/job.yaml", f"name: case\nextends: base.yaml\ndata: {json.dumps(JOB['data'])}\nseed: {JOB['seed']}\n")
    assert main(["render", "whole.yaml", "-o", "one"]) == 0
    assert main(["render", "parts/job.yaml", "--cluster", "cpu-cluster.yaml", "-o", "other"]) == 0
    capsys.readouterr()
    found = {path.relative_to("other"): path.read_text() for path in Path("other").rglob("*") if path.is_file()}
    assert found
    assert {path: Path("one", path).read_text() for path in found} == found


def test_composed_cluster_is_found_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    cluster = yaml.safe_load((STORY / "cpu-cluster.yaml").read_text())
    own = {key: cluster.pop(key) for key in ("apiVersion", "kind", "name")}
    write("base.yaml", f"partial: true\n{yaml.safe_dump(cluster)}", CLUSTER_HEAD)
    write("cluster.yaml", f"name: {own['name']}\nextends: base.yaml\n", CLUSTER_HEAD)
    write("job.yaml", f"name: case\n{job(cluster=own['name'])}")
    assert main(["check", "."]) == 0
    assert capsys.readouterr().out == "3 documents: no problems\n"


def test_config_of_a_model_is_found_relative_to_the_file_that_names_it(capsys: pytest.CaptureFixture[str]) -> None:
    story()
    config = {
        "model_type": "llama",
        "vocab_size": 256,
        "hidden_size": 64,
        "intermediate_size": 176,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
    }
    write("models/base.yaml", "partial: true\nmodel: {config: config.json}\n")
    Path("models/config.json").write_text(json.dumps(config))
    write("job.yaml", f"name: case\nextends: models/base.yaml\n{job(model=None)}")
    assert main(["plan", "job.yaml", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["run"]["model"]["hidden"] == 64


def test_schema_accepts_partial_documents_only_if_marked_as_such() -> None:
    head = {"apiVersion": "headway/v1alpha1", "kind": "TrainingJob"}

    def valid(data: Mapping[str, Any]) -> bool:
        return bool(validator_of().is_valid({**head, **data}))

    assert not valid({"name": "a", "batch": {"micro": 1}})
    for part in ({"partial": True}, {"extends": "base.yaml", "name": "a"}, {"extends": ["a.yaml", "b.yaml"]}):
        assert valid({**part, "batch": {"micro": 1}, "data": {"options": {"paths": ["a"]}}, "trainer": {"options": {}}})
        assert not valid({**part, "batch": {"micro": 0}})
        assert not valid({**part, "batch": {"mikro": 1}})
        assert not valid({**part, "checkpoint": {"tiers": [{"kind": "shared"}]}})
    assert not valid({"partial": False, "name": "a"})
    assert not valid({"extends": [], "name": "a"})


def spec(path: Path) -> tuple[AnyParsed, list[Problem]]:
    parsed, problems = read(path)[1:]
    assert parsed is not None
    return parsed, problems


DOCUMENTS = sorted(
    path for path in EXAMPLES.glob("*/*.yaml") if not re.search("^(extends|kind: Inventory)", path.read_text(), re.M)
)


@st.composite
def parts(draw: st.DrawFn, data: Any) -> tuple[Any, Any]:
    """Draw a base and the additions of an heir, which compose to `data`."""
    if not isinstance(data, dict) or draw(st.booleans()):
        other = draw(st.sampled_from([data, None, 7, "x", [1], {}]))
        return other, data
    base: dict[str, Any] = {}
    heir: dict[str, Any] = {}
    for key, value in data.items():
        match "both" if key == "kind" else draw(st.sampled_from(["base", "heir", "both"])):
            case "base":
                base[key] = value
            case "heir":
                heir[key] = value
            case _:
                base[key], heir[key] = (value, value) if key == "kind" else draw(parts(value))
    return base, heir


def heir_wins(base: Any, heir: Any) -> Any:
    """Apply the rule of composition without positions."""
    if not isinstance(base, dict) or not isinstance(heir, dict) or heir.get("kind") not in (None, base.get("kind")):
        return heir
    removed = {key for key, value in heir.items() if value is None and key in base}
    both = {**base, **{key: heir_wins(base[key], value) if key in base else value for key, value in heir.items()}}
    return {key: value for key, value in both.items() if key not in removed}


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_document_in_two_parts_has_the_same_spec_and_fingerprint(data: st.DataObject) -> None:
    source = data.draw(st.sampled_from(DOCUMENTS), label="document")
    whole = yaml.safe_load(source.read_text())
    own = {key: whole.pop(key) for key in ("apiVersion", "kind", "name")}
    base, heir = data.draw(parts(whole), label="parts")
    if not isinstance(base, dict) or heir_wins(base, heir) != whole:
        base, heir = whole, {}
    head = {key: own[key] for key in ("apiVersion", "kind")}
    Path("base.yaml").write_text(json.dumps({**head, **base}))
    Path("heir.yaml").write_text(json.dumps({**own, "extends": "base.yaml", **heir}))
    written, found = spec(source), spec(Path("heir.yaml"))
    assert [problem.message for problem in found[1]] == [problem.message for problem in written[1]] == []
    assert found[0].spec.model_copy(update={"extends": ()}) == written[0].spec
    assert fingerprint(values_of(found[0].spec)) == fingerprint(values_of(written[0].spec))


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(st.data())
def test_every_value_of_a_composed_document_has_its_file(data: st.DataObject) -> None:
    keys, scalars = st.sampled_from(["a", "b", "c", "kind"]), st.sampled_from([1, "x", None, [1, {"a": 2}]])
    trees = st.recursive(scalars, lambda inner: st.dictionaries(keys, inner))
    values = {name: data.draw(trees, label=name) for name in ("top", "middle", "heir")}
    documents = {name: load_bytes(name, json.dumps({"v": tree}).encode())[0] for name, tree in values.items()}
    found = overlay(overlay(documents["top"], documents["middle"]), documents["heir"])
    top, middle, heir = ({"v": values[name]} for name in ("top", "middle", "heir"))
    assert found.data == heir_wins(heir_wins(top, middle), heir)
    for path in found.values:
        origin = documents[found.origin(path).name]
        assert found.values[path] == origin.values[path]
        assert not path or found.keys.get(path) == origin.keys.get(path)
        if path in found.scalars:
            assert origin.value(path) == found.value(path)
