"""`headway explain`: each example has exactly its problem, and none after the fix."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from headway.cli.main import main
from headway.compile import compile_documents
from headway.jobspec.codes import CODES, WARNING
from headway.jobspec.explain import Explanation, explanations

ERRORS = Path(__file__).parents[1] / "errors"
EXAMPLES = [found for found in explanations().values() if found.wrong is not None]


def merged(base: Any, part: Any) -> Any:
    """Merge the part into the base: mappings by key, a list of one nameless mapping into the base's first; null removes a key."""
    if isinstance(base, dict) and isinstance(part, dict):
        whole = {**base, **{key: merged(base.get(key), value) for key, value in part.items()}}
        return {key: value for key, value in whole.items() if value is not None}
    if (
        isinstance(base, list)
        and isinstance(part, list)
        and len(part) == 1
        and isinstance(part[0], dict)
        and base
        and not part[0].keys() & {"name", "kind"}
    ):
        return [merged(base[0], part[0]), *base[1:]]
    return copy.deepcopy(part)


def codes(folder: Path, example: Explanation, text: str) -> list[str]:
    """Return the codes of the base documents merged with this part."""
    job = (ERRORS / "right-job.yaml").read_text().replace("{model.preset}", "{model.hidden}")
    cluster = (ERRORS / "iron.yaml").read_text()
    if example.of == "text":
        job = text
    elif example.of == "cluster":
        cluster = yaml.safe_dump(merged(yaml.safe_load(cluster), yaml.safe_load(text)))
    else:
        # Numbers such as `04` and tags depend on their notation.
        raw = "!!" in text or text.startswith("nodes: 0")
        part = {} if raw else yaml.safe_load(text)
        kept = merged(yaml.safe_load(job), part)
        for key in [line.partition(":")[0] for line in text.splitlines() if raw]:
            kept.pop(key)
        job = yaml.safe_dump(kept) + (text if raw else "")
    folder.mkdir()
    (folder / "iron.yaml").write_text(cluster)
    (folder / "job.yaml").write_text(job)
    (folder / "train.py").touch()
    return [problem.code for problem in compile_documents([folder / "job.yaml", folder / "iron.yaml"]).problems]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.code)
def test_example_has_its_problem_and_none_after_the_fix(example: Explanation, tmp_path: Path) -> None:
    assert example.wrong is not None
    assert example.right is not None
    assert codes(tmp_path / "wrong", example, example.wrong) == [example.code]
    assert codes(tmp_path / "right", example, example.right) == []


def test_every_code_has_an_explanation_with_sentences() -> None:
    for code, found in explanations().items():
        assert found.title.startswith(CODES[code][0].upper())
        assert found.why.rstrip().endswith(".")
        assert found.mend.rstrip().endswith(".")
        assert (found.wrong is None) == (found.right is None)


def test_explain_prints_cause_fix_and_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "hw301", "HW427"]) == 0
    out = capsys.readouterr().out
    for code in ("HW301", "HW427"):
        found = explanations()[code]
        assert (
            f"{code}: {found.title} ({found.status})\n\n{found.why.strip()}\n\n{found.mend.strip()}\n\nwrong, in a job:\n\n    "
            in out
        )
    assert "(error)" in out
    assert "(warning, can be ignored with a reason)" in out


def test_explain_without_a_code_lists_all_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain"]) == 0
    out = capsys.readouterr().out
    assert all(f"  {code}  {meaning}\n" in f"{out}\n" for code, meaning in CODES.items())


def test_explain_of_an_unknown_code_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "HW300"]) == 2
    assert "`HW300` is not the code of a problem" in capsys.readouterr().err


def test_status_of_a_warning_starts_with_warning() -> None:
    assert all(found.status.startswith("warning") == CODES[code].endswith(WARNING) for code, found in explanations().items())
