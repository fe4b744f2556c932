"""`headway check --format`: the formats for other programs have the problems, positions and exit code of the text."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import pytest

from headway.cli.main import main
from headway.cli.views.formats import FORMATS, as_github
from headway.compile import Problems
from headway.jobspec.codes import CODES
from headway.jobspec.document import Document, Span
from headway.jobspec.explain import SUBJECTS
from headway.jobspec.problem import Problem
from tests.support.documents import parsed_once

ROOT = Path(__file__).parents[2]
ERRORS = ROOT / "tests" / "errors"
CASES = sorted(path.name for path in ERRORS.glob("*.yaml"))
SHOWN = re.compile(r"^(error|warning)\[(HW\d+)\]: (.*)\n  --> ([^:\n]+)(?::(\d+):(\d+))?$", re.MULTILINE)
COMMAND = re.compile(r"::(error|warning) ((?:[a-zA-Z]+=[^,:]*,?)+)::(.*)")


@pytest.fixture(autouse=True, scope="module")
def _parse_once() -> Iterator[None]:
    with parsed_once():
        yield


@pytest.fixture(autouse=True)
def in_the_folder_of_the_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ERRORS)


def checked(form: str, capsys: pytest.CaptureFixture[str], *paths: str) -> tuple[int, str]:
    code = main(["check", *paths, "--format", form])
    found = capsys.readouterr()
    assert found.err == ""
    return code, found.out


def shown(text: str) -> list[tuple[str, str, str, int | None, int | None]]:
    """Return severity, code, file, line and column of every problem of the text."""
    return [
        (kind, code, file, int(line) if line else None, int(column) if column else None)
        for kind, code, _, file, line, column in SHOWN.findall(text)
    ]


def unescaped(text: str) -> str:
    """Unescape like GitHub's runner: the percent sign last."""
    for code, char in (("%3A", ":"), ("%2C", ","), ("%0D", "\r"), ("%0A", "\n"), ("%25", "%")):
        text = text.replace(code, char)
    return text


def commands(text: str) -> list[tuple[str, dict[str, str], str]]:
    found = []
    for line in text.splitlines():
        match = COMMAND.fullmatch(line)
        assert match, line
        properties = dict(pair.split("=", 1) for pair in match[2].split(","))
        found.append((match[1], {key: unescaped(value) for key, value in properties.items()}, unescaped(match[3])))
    return found


# Each case runs the command five times, and one in forty shows the rule.
_SOME = [
    pytest.param(case, marks=() if place % 40 == 0 else (pytest.mark.slow, pytest.mark.variant))
    for place, case in enumerate(CASES)
]


@pytest.mark.parametrize("case", _SOME)
def test_every_format_lists_the_problems_of_the_text(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = checked("text", capsys, case)
    expected = shown(text)

    json_code, out = checked("json", capsys, case)
    data = json.loads(out)
    assert [(each["severity"], each["code"], each["file"], each["line"], each["column"]) for each in data["problems"]] == expected
    assert (data["schema"], data["documents"]) == ("headway.problems/1", 1)

    sarif_code, out = checked("sarif", capsys, case)
    all_results = json.loads(out)["runs"][0]["results"]
    results = [result for result in all_results if "suppressions" not in result]
    assert len(all_results) - len(results) == len(data["ignored"])
    regions = [result["locations"][0]["physicalLocation"]["region"] for result in results]
    assert [(result["level"], result["ruleId"]) for result in results] == [each[:2] for each in expected]
    assert [(region["startLine"], region.get("startColumn")) for region in regions] == [
        (each[3] or 1, each[4]) for each in expected
    ]

    github_code, out = checked("github", capsys, case)
    found = commands(out)
    assert [(kind, properties["title"]) for kind, properties, _ in found] == [each[:2] for each in expected]
    assert [properties.get("line") for _, properties, _ in found] == [each[3] and str(each[3]) for each in expected]
    assert [message.partition("\n")[0] for _, _, message in found] == [each["message"] for each in data["problems"]]
    assert code == json_code == sarif_code == github_code


def test_problem_in_json_has_all_its_fields(capsys: pytest.CaptureFixture[str]) -> None:
    code, out = checked("json", capsys, "five-mistakes.yaml", "absent.yaml")
    data = json.loads(out)
    # One of the paths does not exist.
    assert code == 2
    assert data["documents"] == 2
    assert data["problems"][0] == {
        "code": "HW101",
        "severity": "error",
        "file": "absent.yaml",
        "line": None,
        "column": None,
        "end_line": None,
        "end_column": None,
        "heirs": [],
        "path": [],
        "message": "cannot read the file: No such file or directory",
        "hint": "check the path and its permissions",
        "fix": None,
    }
    assert data["problems"][1] == {
        "code": "HW201",
        "severity": "error",
        "file": "five-mistakes.yaml",
        "line": 10,
        "column": 3,
        "end_line": 10,
        "end_column": 9,
        "heirs": [],
        "path": ["model", "layres"],
        "message": "`layres` is not a field of `model`",
        "hint": "did you mean `layers`?",
        "fix": "layers",
    }


def test_valid_document_prints_an_empty_list_and_exits_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert checked("json", capsys, "lab.yaml") == (
        0,
        '{"documents": 1, "ignored": [], "passed_over": [], "problems": [], "schema": "headway.problems/1"}\n',
    )
    assert checked("github", capsys, "lab.yaml") == (0, "")
    code, out = checked("sarif", capsys, "lab.yaml")
    assert (code, json.loads(out)["runs"][0]["results"]) == (0, [])


def test_warning_alone_exits_0(capsys: pytest.CaptureFixture[str]) -> None:
    for form in FORMATS:
        code, out = checked(form, capsys, "no-scale-out.yaml")
        assert code == 0
        assert "HW601" in out
        assert "warning" in out


def test_no_data_is_printed_without_a_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for form in FORMATS:
        assert main(["check", str(tmp_path), "--format", form]) == 2
        assert capsys.readouterr().out == ""


def test_unknown_format_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["check", "lab.yaml", "--format", "xml"])
    assert left.value.code == 2
    assert "'text', 'json', 'sarif', 'github'" in capsys.readouterr().err


# SARIF 2.1.0, sections 3.13 to 3.57: required and optional properties of every object in the output.
OBJECTS = {
    "log": ({"version", "runs"}, {"$schema"}),
    "run": ({"tool"}, {"invocations", "columnKind", "originalUriBaseIds", "results"}),
    "tool": ({"driver"}, set()),
    "driver": ({"name"}, {"version", "rules"}),
    "rule": ({"id"}, {"shortDescription", "fullDescription", "help", "defaultConfiguration"}),
    "invocation": ({"executionSuccessful"}, set()),
    "result": ({"message"}, {"ruleId", "ruleIndex", "level", "locations", "fixes", "suppressions", "relatedLocations"}),
    "fix": ({"artifactChanges"}, {"description"}),
    "artifactChange": ({"artifactLocation", "replacements"}, set()),
    "replacement": ({"deletedRegion"}, {"insertedContent"}),
    "physicalLocation": ({"artifactLocation"}, {"region"}),
    "artifactLocation": ({"uri"}, {"uriBaseId"}),
    "region": ({"startLine"}, {"startColumn", "endLine", "endColumn"}),
    "text": ({"text"}, set()),
}


def is_a(name: str, found: dict[str, Any]) -> dict[str, Any]:
    required, allowed = OBJECTS[name]
    assert required <= found.keys() <= required | allowed, (name, found)
    return found


@pytest.mark.slow
def test_sarif_output_conforms_to_version_2_1_0(capsys: pytest.CaptureFixture[str]) -> None:
    _, out = checked("sarif", capsys, *CASES, "absent.yaml")
    log = is_a("log", json.loads(out))
    assert log["version"] == "2.1.0"
    assert log["$schema"].endswith("/sarif-schema-2.1.0.json")
    (run,) = log["runs"]
    driver = is_a("driver", is_a("tool", is_a("run", run)["tool"])["driver"])
    assert driver["name"] == "headway"
    assert re.fullmatch(r"\d+\.\d+\.\d+", driver["version"])
    assert run["columnKind"] == "unicodeCodePoints"
    assert [is_a("invocation", each) for each in run["invocations"]] == [{"executionSuccessful": True}]
    rules = [is_a("rule", rule) for rule in driver["rules"]]
    assert len(run["results"]) > 100
    for result in run["results"]:
        assert rules[is_a("result", result)["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in {"error", "warning"}
        assert is_a("text", result["message"])["text"]
        (location,) = result["locations"]
        place = is_a("physicalLocation", location["physicalLocation"])
        assert is_a("artifactLocation", place["artifactLocation"])["uriBaseId"] in run["originalUriBaseIds"]
        region = is_a("region", place["region"])
        assert all(isinstance(value, int) and value >= 1 for value in region.values())
        if "endLine" in region:
            begin, end = (region["startLine"], region["startColumn"]), (region["endLine"], region["endColumn"])
            assert begin <= end
        for fix in result.get("fixes", ()):
            (change,) = is_a("fix", fix)["artifactChanges"]
            (replacement,) = is_a("artifactChange", change)["replacements"]
            assert is_a("replacement", replacement)["deletedRegion"] == region
            assert change["artifactLocation"] == place["artifactLocation"]
    assert sum("fixes" in result for result in run["results"]) > 20


def test_every_code_is_a_rule_with_its_text_and_level(capsys: pytest.CaptureFixture[str]) -> None:
    rules = json.loads(checked("sarif", capsys, "lab.yaml")[1])["runs"][0]["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == list(CODES)
    for rule in rules:
        for field in ("shortDescription", "fullDescription", "help"):
            assert CODES[rule["id"]].removesuffix(" (warning)")[1:] in rule[field]["text"]
        assert (rule["defaultConfiguration"]["level"] == "warning") == CODES[rule["id"]].endswith("(warning)")


def test_subjects_of_the_codes_match_the_documentation() -> None:
    page = (ROOT / "docs" / "problems.md").read_text()
    assert [(f"HW{digit}", subject) for digit, subject in re.findall(r"(\d)xx: ([^;.]+)[;.]", page)] == list(SUBJECTS.items())
    assert {code[:3] for code in CODES} == SUBJECTS.keys()


def sarif_files(capsys: pytest.CaptureFixture[str], *paths: str) -> list[str]:
    """Return the files of the results, resolved as a reader of SARIF does."""
    (run,) = json.loads(checked("sarif", capsys, *paths)[1])["runs"]
    places = [result["locations"][0]["physicalLocation"]["artifactLocation"] for result in run["results"]]
    bases = run["originalUriBaseIds"]
    addresses = [(bases[place["uriBaseId"]]["uri"] if "uriBaseId" in place else "") + place["uri"] for place in places]
    return [unquote(urlparse(address).path) for address in addresses]


def test_file_paths_are_relative_to_the_root_of_the_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    inner = tmp_path / "repo" / "a b, c: d%"
    inner.mkdir(parents=True)
    (tmp_path / "repo" / ".git").mkdir()
    for file in (inner / "ü.yaml", tmp_path / "outside.yaml"):
        file.write_text("apiVersion: headway/v2\nkind: Cluster\n")
    monkeypatch.chdir(inner)
    paths = ("ü.yaml", "../../outside.yaml")
    assert sorted(sarif_files(capsys, *paths)) == sorted([str(inner / "ü.yaml"), str(tmp_path / "outside.yaml")])
    named = sorted(properties["file"] for _, properties, _ in commands(checked("github", capsys, *paths)[1]))
    assert named == sorted(["a b, c: d%/ü.yaml", str(tmp_path / "outside.yaml")])
    assert {each["file"] for each in json.loads(checked("json", capsys, *paths)[1])["problems"]} == set(paths)


def test_file_paths_are_relative_to_the_folder_without_a_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path)
    assert commands(checked("github", capsys, "below/absent.yaml")[1])[0][1]["file"] == "below/absent.yaml"
    assert sarif_files(capsys, "below/absent.yaml") == [str(tmp_path / "below" / "absent.yaml")]


def annotated(message: str, hint: str | None, span: Span | None) -> str:
    return as_github(
        Problems((Problem("HW602", "a,b:c.json", (), message, hint, span=span),), {"a,b:c.json": Document("a,b:c.json")}), 1
    )


def test_annotation_is_one_line_for_any_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = annotated("100%0A\n::set-env name=A::b\rc", "\x1b[31m ü", Span(1, 2, 1, 5))
    head = "::error file=a%2Cb%3Ac.json,line=2,col=3,endLine=2,endColumn=6,title=HW602::"
    assert text == head + "100%250A%0A::set-env name=A::b%0Ac%0Ahint: \\x1b[31m ü\n"


@pytest.mark.parametrize(
    ("span", "place"),
    [
        (Span(1, 2, 3, 4), ",line=2,endLine=4"),
        (Span(1, 0, 2, 0), ",line=2,endLine=2"),
        (Span(1, 7, 1, 7), ",line=2,col=8,endLine=2,endColumn=8"),
        (None, ""),
    ],
)
def test_columns_are_given_only_for_a_span_of_one_line(
    span: Span | None, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert annotated("wrong", None, span) == f"::error file=a%2Cb%3Ac.json{place},title=HW602::wrong\n"
