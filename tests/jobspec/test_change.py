"""Changes to a run: every field is in the table once, two specs are compared by field, entries of `history` round-trip."""

import json
import typing
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace
from pydantic import BaseModel

from headway.jobspec.change import CHANGES, How, ValueChange, as_written, changeable, changeable_fields, changes, entry_for
from headway.jobspec.check.history import check_history
from headway.jobspec.check.layout import sizes_of
from headway.jobspec.check.run import RunSoFar, check_run
from headway.jobspec.document import Document, Path
from headway.jobspec.load import load_bytes
from headway.jobspec.parse import Parsed, parse
from headway.jobspec.resolve.fingerprint import values_of, with_sizes
from headway.jobspec.spec.job import TrainingJob

JOB = """\
apiVersion: headway/v1alpha1
kind: TrainingJob
name: case
cluster: lab
nodes: 2
model: {vocab_size: 256, layers: 2, hidden: 64, heads: 4, kv_heads: 2, ffn_hidden: 176}
data: {kind: files, options: {paths: [a.txt]}}
batch: {global: 16 sequences, micro: 2, sequence: 128}
optimizer: {lr: 0.003}
steps: 100
checkpoint: {horizon: 40 steps, host_memory: 10GiB, tiers: [{kind: shared, every: 10 steps}, {kind: remote, every: 15m, url: s3://a/b}]}
limits: {attempt: {time: "1:30:00"}}
environment: {FIRST: a}
"""
BACK = "put `0.003` back and record the change in `history`"


def parsed(text: str) -> Parsed[TrainingJob]:
    document, problems = load_bytes("job.yaml", text.encode())
    job, invalid = parse(document)
    assert [*problems, *invalid] == []
    assert job is not None
    assert isinstance(job.spec, TrainingJob)
    return job


def spec(text: str) -> dict[str, Any]:
    job = parsed(text)
    return dict(with_sizes(values_of(job.spec), sizes_of(job)))


def edited(*edits: tuple[str, str], more: str = "") -> str:
    text = JOB
    for old, new in edits:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text + more


def at(data: Any, path: Path) -> Any:
    for segment in path:
        data = data[segment]
    return data


def changed(*edits: tuple[str, str], more: str = "") -> list[ValueChange]:
    return changes(spec(JOB), spec(edited(*edits, more=more)))


# --- the table --------------------------------------------------------------------------------------------------------


def leaves(model: type[BaseModel], above: str = "") -> Iterator[str]:
    """Yield every field of the language that is not a section, without the module under test."""
    for name, info in model.model_fields.items():
        path = f"{above}{info.alias or name}"
        inner = [each for each in (info.annotation, *typing.get_args(info.annotation)) if _is_section(each)]
        if inner and typing.get_origin(info.annotation) is not tuple:
            yield from leaves(inner[0], f"{path}.")
        else:
            yield path


def _is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


@pytest.mark.parametrize("path", list(leaves(TrainingJob)))
def test_a_field_is_covered_by_exactly_one_row(path: str) -> None:
    assert len([row for row in CHANGES if path == row or path.startswith(f"{row}.")]) == 1


def test_every_row_has_a_field_and_a_reason() -> None:
    fields = list(leaves(TrainingJob))
    assert [row for row in CHANGES if not any(path == row or path.startswith(f"{row}.") for path in fields)] == []
    assert list(changeable_fields()) == fields
    for rule in CHANGES.values():
        assert rule.reason[0].islower()
        assert not rule.reason.endswith(".")


@pytest.mark.parametrize(
    ("path", "how"),
    [
        ("optimizer.lr", How.HISTORY),
        ("batch.global", How.HISTORY),
        ("batch.micro", How.ANYTIME),
        ("data.options", How.HISTORY),
        ("data.options.paths", How.HISTORY),
        ("environment.NCCL_DEBUG", How.ANYTIME),
        ("checkpoint.tiers", How.ANYTIME),
        ("model.experts.top_k", How.NEW_RUN),
        ("trainer.kind", How.NEW_RUN),
    ],
)
def test_a_field_is_found_by_its_path(path: str, how: How) -> None:
    assert changeable(path).how is how


@pytest.mark.parametrize(
    "path", ["optimizer", "batch", "optimizer.rate", "model.layers.more", "data.options.", "data.options.a.b", "", "lr"]
)
def test_path_that_is_not_a_field_has_no_rule(path: str) -> None:
    with pytest.raises(KeyError):
        changeable(path)


# --- two specs --------------------------------------------------------------------------------------------------------


def test_comments_order_and_explicit_defaults_are_not_changes() -> None:
    assert changed() == []
    assert (
        changed(("{lr: 0.003}", "{beta1: 0.9, lr: 3.0e-3}  # the same"), ("1:30:00", "90m"), more="seed: 0\nlayout: {}\n") == []
    )


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ("lr: 0.003", "lr: 0.001", ("optimizer.lr", How.HISTORY, "0.003", "0.001")),
        ("16 sequences", "4Ki tokens", ("batch.global", How.HISTORY, "16 sequences", "32 sequences")),
        ("micro: 2", "micro: 4", ("batch.micro", How.ANYTIME, "2", "4")),
        ("steps: 100\n", "steps: 200\n", ("steps", How.HISTORY, "100", "200")),
        ("layers: 2", "layers: 3", ("model.layers", How.NEW_RUN, "2", "3")),
        ("cluster: lab", "cluster: [lab, other]", ("cluster", How.ANYTIME, '["lab"]', '["lab", "other"]')),
        ("1:30:00", "7d", ("limits.attempt.time", How.ANYTIME, "5400s", "604800s")),
        ("10 steps", "20 steps", ("checkpoint.tiers[0].every", How.ANYTIME, "10 steps", "20 steps")),
        ("horizon: 40 steps", "horizon: 80 steps", ("checkpoint.horizon", How.ANYTIME, "40 steps", "80 steps")),
        ("host_memory: 10GiB", "host_memory: 1536MB", ("checkpoint.host_memory", How.ANYTIME, "10GiB", "1536MB")),
        ("15m", "1h", ("checkpoint.tiers[1].every", How.ANYTIME, "900s", "3600s")),
        ("paths: [a.txt]", "paths: [a.txt, b.txt]", ("data.options.paths", How.HISTORY, '["a.txt"]', '["a.txt", "b.txt"]')),
        ("FIRST: a", "FIRST: 'a b'", ("environment.FIRST", How.ANYTIME, '"a"', '"a b"')),
    ],
)
def test_a_changed_line_is_one_change_of_its_field(old: str, new: str, found: tuple[str, How, str, str]) -> None:
    (change,) = changed((old, new))
    assert (change.name, change.how, as_written(change.path, change.old), as_written(change.path, change.new)) == found
    assert change.reason


def test_keys_of_open_mappings_are_compared_one_by_one() -> None:
    found = changed(("{FIRST: a}", "{SECOND: b}"))
    assert [(change.name, change.old, change.new) for change in found] == [
        ("environment.FIRST", "a", None),
        ("environment.SECOND", None, "b"),
    ]


def test_tiers_are_compared_by_kind_and_not_by_position() -> None:
    disk, remote = "{kind: shared, every: 10 steps}", "{kind: remote, every: 15m, url: s3://a/b}"
    assert changed((f"{disk}, {remote}", f"{remote}, {disk}")) == []
    (gone,) = changed((f", {remote}", ""))
    assert (gone.name, gone.old["kind"], gone.new) == ("checkpoint.tiers", "remote", None)
    (come,) = changed((disk, f"{disk}, {{kind: peer, every: 5 steps}}"))
    assert (come.name, come.old, come.new["kind"]) == ("checkpoint.tiers[1]", None, "peer")


def test_added_or_removed_section_is_a_change_of_its_fields() -> None:
    without = JOB.replace("optimizer: {lr: 0.003}\n", "")
    assert [(change.name, change.old, change.new) for change in changes(spec(without), spec(JOB))] == [
        ("optimizer.lr", None, 0.003)
    ]
    assert [(change.name, change.old, change.new) for change in changes(spec(JOB), spec(without))] == [
        ("optimizer.lr", 0.003, None)
    ]


def test_field_missing_in_an_older_spec_has_its_default() -> None:
    old = spec(JOB)
    del old["mounts"], old["overlap"], old["optimizer"]["schedule"]
    assert changes(old, spec(JOB)) == []
    (change,) = changes(old, spec(edited(("lr: 0.003", "lr: 0.003, schedule: wsd"))))
    assert (change.name, change.old, change.new) == ("optimizer.schedule", "cosine", "wsd")


# --- entries of history -----------------------------------------------------------------------------------------------

EDIT = [("lr: 0.003", "lr: 1e-5, decay_steps: 5, schedule: wsd"), ("16 sequences", "4Ki tokens"), ("[a.txt]", "['it''s: #1', b]")]


def test_proposed_entry_parses_back_as_the_change() -> None:
    found = changed(*EDIT, ("steps: 100\n", "steps: 200\n"))
    job = parsed(f"{JOB}history:\n  - {entry_for(found, 60)}\n")
    assert list(check_history(job)) == []
    (entry,) = job.spec.history
    assert (entry.from_step, list(entry.set)) == (60, [change.name for change in found])
    assert entry.set["optimizer.lr"] == 1e-5
    assert entry.set["data.options.paths"] == ["it's: #1", "b"]


def test_written_value_parses_back_unchanged() -> None:
    found = changed(*EDIT, ("1:30:00", "12.5h"), ("15m", "1500ms"), ("10 steps", "20 steps"), ("FIRST: a", 'FIRST: "a: #\'b\\n"'))
    assert len(found) == 9
    for change in found:
        written, problems = load_bytes("value.yaml", f"value: {as_written(change.path, change.new)}\n".encode())
        assert problems == []
        data = parsed(JOB).document.data
        at(data, change.path[:-1])[change.path[-1]] = written.data["value"]
        dump = TrainingJob.model_validate_json(json.dumps(data)).model_dump(mode="json", by_alias=True)
        assert at(dump, change.path) == change.new


def run_of(text: str, committed_step: int) -> RunSoFar:
    return RunSoFar("case-0123abcd-1", 0, json.loads(json.dumps(spec(text))), committed_step)


def judged(text: str, run: RunSoFar) -> list[tuple[str, str]]:
    """Return code and position of every problem of the edited job against the run."""
    return [(problem.code, ".".join(map(str, problem.path))) for problem in check_run(parsed(text), run)]


def history(*entries: str) -> str:
    return "history:\n" + "".join(f"  - {entry}\n" for entry in entries)


def test_run_can_be_resumed_with_its_own_spec() -> None:
    assert judged(JOB, run_of(JOB, 60)) == []
    assert judged(edited(("10 steps", "20 steps"), ("nodes: 2", "nodes: 4")), run_of(JOB, 60)) == []


def test_change_needs_a_history_entry_and_one_of_the_model_a_new_run() -> None:
    assert judged(edited(*EDIT[:2], ("layers: 2", "layers: 3")), run_of(JOB, 60)) == [
        ("HW419", "model.layers"),
        ("HW420", "batch.global"),
        ("HW420", "optimizer.lr"),
        ("HW420", "optimizer.schedule"),
        ("HW420", "optimizer.decay_steps"),
    ]


def test_change_listed_in_history_is_accepted() -> None:
    assert judged(JOB + history("{from_step: 60, set: {optimizer.lr: 0.001}}"), run_of(JOB, 60)) == []
    assert judged(JOB + history("{from_step: 80, set: {optimizer.lr: 0.001}}"), run_of(JOB, 60)) == []


def test_field_keeps_its_first_value_if_history_lists_the_change() -> None:
    both = edited(("lr: 0.003", "lr: 0.001"), more=history("{from_step: 60, set: {optimizer.lr: 0.001}}"))
    (problem,) = check_run(parsed(both), run_of(JOB, 60))
    assert problem.hint == "put `0.003` back: `history` has its new value, from step 60 on"


def test_proposed_entry_starts_at_the_newest_checkpoint_after_all_entries() -> None:
    lower = ("lr: 0.003", "lr: 0.001")
    (first,) = check_run(parsed(edited(lower)), run_of(JOB, 60))
    assert first.hint == f"{BACK}: `{{from_step: 60, set: {{optimizer.lr: 0.001}}}}`; or start a new run"
    entry = history("{from_step: 70, skip_samples: 16}")
    (second,) = check_run(parsed(edited(lower, more=entry)), run_of(JOB + entry, 70))
    assert second.hint == f"{BACK}: `{{from_step: 71, set: {{optimizer.lr: 0.001}}}}`; or start a new run"


@pytest.mark.parametrize(
    ("entry", "found"),
    [
        ("{from_step: 59, skip_samples: 16}", [("HW421", "history.0.from_step")]),
        ("{from_step: 60, skip_samples: 16}", []),
        ("{from_step: 60, rollback_to: 40, skip_samples: 16}", []),
        ("{from_step: 70, rollback_to: 61, skip_samples: 16}", [("HW421", "history.0.rollback_to")]),
    ],
)
def test_new_entry_cannot_apply_to_steps_already_computed(entry: str, found: list[tuple[str, str]]) -> None:
    assert judged(JOB + history(entry), run_of(JOB, 60)) == found


@pytest.mark.parametrize(("step", "hint"), [(0, None), (40, None), (45, "use 30, 40 or 60")])
def test_run_can_be_rolled_back_to_a_current_checkpoint_or_its_start(step: int, hint: str | None) -> None:
    run = replace(run_of(JOB, 60), checkpoints=(30, 40, 60))
    found = list(check_run(parsed(JOB + history(f"{{from_step: 60, rollback_to: {step}}}")), run))
    assert [problem.hint for problem in found] == ([] if hint is None else [hint])


def test_entry_of_a_claimed_rollback_must_stay_before_its_first_step() -> None:
    back = history("{from_step: 60, rollback_to: 40, skip_samples: 16}")
    run = run_of(JOB + back, 40)
    assert judged(JOB, run) == []
    assert judged(JOB, replace(run, carried_out=1)) == [("HW421", "history.0")]


def test_entry_that_has_taken_effect_must_stay() -> None:
    done, ahead = "{from_step: 40, set: {optimizer.lr: 0.001}}", "{from_step: 80, set: {steps: 200}}"
    run = run_of(JOB + history(done, ahead), 60)
    assert judged(JOB + history(done, ahead), run) == []
    assert judged(JOB + history(done), run) == []
    assert judged(JOB + history(done, ahead.replace("200", "300")), run) == []
    assert judged(JOB, run) == [("HW421", "history.0")]
    assert judged(JOB + history(ahead), run) == [("HW421", "history.0")]
    assert judged(JOB + history(done.replace("0.001", "0.002"), ahead), run) == [("HW421", "history.0")]
    (problem,) = check_run(parsed(JOB), run)
    put_back = "restore it as `{from_step: 40, skip_samples: 0, set: {optimizer.lr: 0.001}}`; add another entry to undo it"
    assert problem.hint == put_back


def test_problem_of_a_value_in_history_is_shown_at_its_position() -> None:
    job = parsed(JOB + history("{from_step: 60, set: {optimizer.lr: -1, data.options.paths: 5}}"))
    (problem,) = check_history(job)
    document: Document = job.document
    span = document.span(problem.path)
    assert (problem.code, problem.path) == ("HW219", ("history", 0, "set", "optimizer.lr"))
    assert span is not None
    assert document.lines()[span.line][span.column : span.end_column] == "-1"


def test_preset_and_its_explicit_sizes_are_the_same_model() -> None:
    named = JOB.replace("model: {", "model: {preset: llama-3.2-1b}\nmounts: []  # {")
    sizes = "vocab_size: 128256, layers: 16, hidden: 2048, heads: 32, kv_heads: 8, head_dim: 64, ffn_hidden: 8192"
    written = named.replace("preset: llama-3.2-1b", f"{sizes}, rope_theta: 500000.0, tie_embeddings: true")
    assert judged(written, run_of(named, 60)) == []
    assert judged(written.replace("layers: 16", "layers: 17"), run_of(named, 60)) == [("HW419", "model.layers")]


def test_same_batch_in_sequences_and_in_tokens_is_not_a_change() -> None:
    assert judged(JOB.replace("global: 16 sequences", "global: 2048 tokens"), run_of(JOB, 60)) == []
    found = judged(JOB.replace("global: 16 sequences", "global: 4096 tokens"), run_of(JOB, 60))
    assert found == [("HW420", "batch.global")]
