"""`headway schema` accepts and rejects exactly the documents that headway's own parser accepts and rejects."""

import copy
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from headway.cli.main import main
from headway.cli.verbs.schema import TABLES
from headway.compile import Problems, Sources
from headway.jobspec.load import load_file
from headway.jobspec.parse import MODELS
from tests.support.schemas import schema_of, validator_of
from tests.support.tables import slow_after_first

ROOT = Path(__file__).parents[2]
ERRORS = ROOT / "tests" / "errors"
# Mistakes in single fields of a document; a schema cannot find a field that needs another one (HW209 to HW211).
BY_FIELD = {f"HW{number}" for number in (*range(201, 209), 213)}

CLUSTER = """\
apiVersion: headway/v1alpha1
kind: Cluster
name: full
scheduler: SCHEDULER
provider: {kind: onprem, options: {user: headway, identity: id, known_hosts: hosts}}
node_groups:
  - {name: gpu, count: 2, cpus: 96, procs: null, gpu: H100-SXM-80, gpus: 8, nics: [mlx5_0], hosts: [10.0.0.1, 10.0.0.2:22]}
fabrics:
  - name: rails
    role: scale-out
    transport: roce
    classes:
      - name: roce
        carries: collectives
        dscp: 26
        priority: 3
        queue: 3
        lossless: true
        ecn: {min: 1B, max: 2B, percent: 5}
        bandwidth_percent: 60
    switches:
      leaves: 1
      spines: 1
      uplinks: 1
      asn: 4200000000
      loopbacks: 10.255.0.0/16
      os:
        - {kind: sonic, options: {platform: a, hwsku: b, buffer_model: dynamic, lanes: ["1,2"], bfd_ms: null, hold_s: 9, base: c}}
        - {kind: frr, options: {bfd_ms: null, bfd_multiplier: 3}}
  - {name: admin, role: management, transport: tcp, interface: eth0}
storage:
  - {name: runs, kind: posix, path: runs, shared: true}
"""
SLURM = "{kind: slurm, options: {partition: main, account: null, exclusive: true, setup: [a]}}"
LOCAL = "{kind: local}"
KUBERNETES = """
  kind: kubernetes
  options:
    namespace: research
    image: registry.example.com/headway:1
    image_pull_policy: Never
    service_account: training.eu
    mounts: [{path: /scratch, claim: scratch, read_only: false}, {path: /data, host_path: /mnt}]
    memory: 16Gi
    rdma: {resource: rdma/hca, count: 1}
    node_selector: {example.com/pool: training}
    tolerations: [{key: nvidia.com/gpu, value: present, effect: NoSchedule, seconds: 30}]
    user: 1000
    max_restarts: 3
"""
JOB = """\
apiVersion: headway/v1alpha1
kind: TrainingJob
name: full
cluster: [one, other]
nodes: 2
model: {vocab_size: 256, layers: 2, hidden: 64, heads: 4, kv_heads: 2, ffn_hidden: 176, dropout: 0, tie_embeddings: true}
layout: {pp: 1, dp_shard: null, tp: 2}
data: {kind: files, options: {paths: [a, b], limit: 8B}}
batch: {global: 16 sequences, micro: 2, sequence: 128}
optimizer: {lr: 0.003, beta1: 0.9, eps: 1.0e-8, min_lr_ratio: 1}
trainer: {kind: builtin, options: {}}
steps: 100
seed: 1
checkpoint: {tiers: [{kind: shared, every: 10 steps}], keep: 2}
resilience: {restart: {budget: 3, refill_steps: 100, no_progress: 3}, grace: 30s}
limits: {attempt: {time: "1:30:00"}}
"""
DOCUMENTS = {
    "slurm": CLUSTER.replace("SCHEDULER", SLURM),
    "local": CLUSTER.replace("SCHEDULER", LOCAL),
    "kubernetes": CLUSTER.replace("SCHEDULER", KUBERNETES),
    "job": JOB,
}
VALUES: list[Any] = ["8", 8, 0, -1, 8.5, 10**13, True, None, "", "a b", [], [1], {}, {"a": 1}, {"kind": "local"}]
_DELETED = object()


def fails(data: Any, kind: str | None = None) -> bool:
    return not validator_of(kind).is_valid(data)


def codes(path: Path) -> set[str]:
    sources = Sources()
    found = sources.read(path).problems
    return {problem.code for problem in Problems(found, sources.documents) if problem.document == str(path)}


def documents_of_examples() -> list[Path]:
    # The bases of switches are the site's files, in the format of their system.
    return [path for path in (ROOT / "examples").rglob("*.yaml") if not {"rendered", "base"} & {*path.parts}]


@pytest.mark.slow
@pytest.mark.parametrize("kind", [None, *MODELS])
def test_schema_is_valid_and_complete(kind: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", *([kind] if kind else [])]) == 0
    text = capsys.readouterr().out
    schema = json.loads(text)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    Draft202012Validator.check_schema(schema)
    referred = set(re.findall(r'"\$ref": "#/\$defs/([^"]+)"', text))
    assert referred == schema["$defs"].keys()
    assert "Choice" not in referred


def sections(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the schemas of mappings with fields: the document, the sections, the options, the choices."""
    for name, definition in {"the document": schema, **schema["$defs"]}.items():
        if "properties" in definition:
            yield name, definition


def described(info: dict[str, Any], schema: dict[str, Any]) -> bool:
    """Return whether a field has a description; Pydantic omits one that equals that of the section to which the field refers."""
    section = schema["$defs"][info["$ref"].rsplit("/")[-1]] if "$ref" in info else info
    return bool(info.get("description") or section.get("description"))


def examples_by_kind(section: dict[str, Any], field: str) -> bool:
    """Return whether each kind of a choice has examples of its own options."""
    branches = [branch["then"].get("properties", {}).get(field, {}) for branch in section.get("allOf", [])]
    return bool(branches) and all(branch.get("examples") for branch in branches)


@pytest.mark.parametrize("kind", [None, *MODELS])
def test_every_field_has_its_description_and_examples(kind: str | None) -> None:
    bare, counted = [], 0
    schema = schema_of(kind)
    for name, section in sections(schema):
        for field, info in section["properties"].items():
            counted += 1
            if not described(info, schema) or not (info.get("examples") or examples_by_kind(section, field)):
                bare.append((name, field))
    assert bare == []
    assert counted > {None: 200, "Cluster": 120, "TrainingJob": 100, "Inventory": 15}[kind]


@pytest.mark.parametrize("kind", MODELS)
def test_schema_of_one_kind_equals_its_part_of_the_whole_schema(kind: str) -> None:
    alone, among = schema_of(kind), schema_of()["$defs"]
    assert {key: value for key, value in alone.items() if key not in {"$schema", "$defs"}} == among[kind]
    assert alone["$defs"].items() <= among.items()


def test_schema_has_the_options_of_every_kind() -> None:
    definitions = schema_of()["$defs"]
    assert {model.__name__ for model in TABLES.options()} <= definitions.keys()
    assert definitions["scheduler"]["properties"]["kind"]["enum"] == list(TABLES.schedulers)
    assert definitions["SlurmOptions"]["properties"].keys() == TABLES.schedulers["slurm"].options.model_fields.keys()


@pytest.mark.parametrize("path", documents_of_examples(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_document_in_examples_is_valid(path: Path) -> None:
    data = load_file(path)[0].data
    assert not fails(data)
    assert {kind for kind in MODELS if not fails(data, kind)} == {data["kind"]}


def known_codes(case: Path) -> set[str]:
    """Return codes of the problems of the case's own document; some cases show those of a second one."""
    return set(re.findall(rf"\[(HW\d+)\]: .*\n  --> {re.escape(case.stem)}\.yaml", case.read_text()))


# Values that refer to another field, whose type the schema does not follow.
AT_ANOTHER_PLACE = {"sweep-of-a-wrong-value"}
# Values that the schema rejects and whose message is about the secret in them.
SECRETS = {"tier-with-credentials"}
# Values that the schema rejects and whose message is that they are not filled in.
UNFILLED = {"unfilled"}
GOLDEN = {path.stem: known_codes(path) for path in sorted(ERRORS.glob("*.txt"))}


IN_FIELDS = [case for case, found in GOLDEN.items() if not any(code < "HW2" for code in found)]


@pytest.mark.parametrize("case", slow_after_first(IN_FIELDS, GOLDEN.__getitem__))
def test_schema_rejects_a_golden_case_exactly_if_a_field_is_wrong(case: str) -> None:
    path = ERRORS / f"{case}.yaml"
    if case in AT_ANOTHER_PLACE:
        assert not fails(load_file(path)[0].data)
        return
    found = codes(path) & BY_FIELD
    assert fails(load_file(path)[0].data) == bool(found or case in SECRETS | UNFILLED)
    assert found == GOLDEN[case] & BY_FIELD


def test_five_mistakes_fail_at_their_positions() -> None:
    data = load_file(ERRORS / "five-mistakes.yaml")[0].data
    assert fails(data)
    places = {tuple(best_match([error]).absolute_path) for error in validator_of("TrainingJob").iter_errors(data)}
    assert places == {("model",), ("data", "kind"), ("batch", "sequence"), ("optimizer",)}


def mutations(data: Any, part: str | None) -> Iterator[tuple[str, Any]]:
    """Yield the document with one value (of that part) changed or removed, or with an unknown key."""
    paths = [path for path in _paths(data) if part in {None, path[0]}]
    for path in paths:
        for value in (*VALUES, _DELETED):
            changed = copy.deepcopy(data)
            owner = _at(changed, path[:-1])
            if value is _DELETED:
                del owner[path[-1]]
            else:
                owner[path[-1]] = value
            yield f"{path} {'deleted' if value is _DELETED else value!r}", changed
    for path in [(), *paths]:
        changed = copy.deepcopy(data)
        if isinstance(_at(changed, path), dict):
            _at(changed, path)["unknown_"] = 1
            yield f"{path} unknown", changed


def _paths(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    keys = list(data) if isinstance(data, dict) else list(range(len(data))) if isinstance(data, list) else []
    return [found for key in keys for found in [(*path, key), *_paths(data[key], (*path, key))]]


def _at(data: Any, path: tuple[Any, ...]) -> Any:
    for segment in path:
        data = data[segment]
    return data


@pytest.mark.slow
@pytest.mark.parametrize("quarter", [0, *(pytest.param(each, marks=pytest.mark.variant) for each in (1, 2, 3))])
@pytest.mark.parametrize(
    ("name", "part", "least"),
    [("slurm", None, 250), ("job", None, 125), ("kubernetes", "scheduler", 75), ("local", "scheduler", 4)],
)
def test_schema_agrees_with_headway_on_any_single_changed_value(
    name: str, part: str | None, least: int, quarter: int, tmp_path: Path
) -> None:
    file = tmp_path / "document.yaml"
    file.write_text(DOCUMENTS[name])
    data = load_file(file)[0].data
    assert not fails(data)
    assert codes(file) & BY_FIELD == set()
    differences, refused = [], 0
    for change, changed in itertools.islice(mutations(data, part), quarter, None, 4):
        file.write_text(json.dumps(changed))
        wrong = bool(codes(file) & BY_FIELD)
        refused += wrong
        if fails(changed) != wrong:
            differences.append(change)
    assert differences == []
    assert refused >= least


def test_integer_with_a_decimal_point_is_the_only_schema_exception(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(JOB.replace("steps: 100\n", "steps: 100.0\n"))
    assert codes(tmp_path / "job.yaml") == {"HW203"}
    assert not fails(load_file(tmp_path / "job.yaml")[0].data)


PAGE = (ROOT / "docs" / "editors.md").read_text()


@pytest.mark.slow
def test_commands_of_the_page_for_editors_succeed_in_order(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples" / "two-node-slurm", tmp_path / "story")
    script = "\n".join(re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    command = ["bash", "-euc", f"set -o pipefail\n{script}"]
    done = subprocess.run(
        command, cwd=tmp_path / "story", env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert json.loads((tmp_path / "story" / "problems.json").read_text()) == {
        "schema": "headway.problems/1",
        "documents": 5,
        "passed_over": [],
        "ignored": [],
        "problems": [],
    }


def test_files_on_the_page_for_editors_are_valid() -> None:
    shown = re.findall(r"```(?:json|yaml)\n(.*?)```", PAGE, re.DOTALL)
    assert len([yaml.safe_load(text) for text in shown]) == 5


def test_every_document_in_the_layout_for_editors_is_found_and_matched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)[0].split()
    documents = [name for name in layout if name.endswith(".yaml")]
    inventory = "apiVersion: headway/v1alpha1\nkind: Inventory\nname: unit-1\ncluster: lab\n"
    texts = {
        "cluster.yaml": (ERRORS / "lab.yaml").read_text(),
        "inventory": inventory,
        "jobs": (ERRORS / "fine-job.yaml").read_text(),
    }
    (tmp_path / ".git").mkdir()
    for name in documents:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(texts[name.split("/")[0]])
    monkeypatch.chdir(tmp_path)
    assert main(["check", "."]) == 0
    assert capsys.readouterr().out.startswith("3 documents: ")
    (patterns,) = json.loads(re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)[0])["yaml.schemas"].values()
    hooks = yaml.safe_load(next(text for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL) if "repos:" in text))
    files = hooks["repos"][0]["hooks"][1]["files"]
    for name in documents:
        assert any(fnmatch(name, pattern.replace("**/", "*")) for pattern in patterns)
        assert re.search(files, name)


def test_unknown_kind_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["schema", "Job"])
    assert left.value.code == 2
    found = capsys.readouterr()
    assert found.out == ""
    assert "'Cluster', 'TrainingJob'" in found.err


@pytest.mark.slow
def test_schema_verb_imports_no_heavy_library() -> None:
    absent = {"torch", "numpy", "pulumi", "paramiko", "jinja2", "rich"}
    program = f"import sys\nfrom headway.cli.main import main\nmain(['schema'])\nprint(sorted({absent} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "[]"
