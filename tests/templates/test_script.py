"""A script as trainer: its arguments contain the plan's values, values that it does not get are reported, its file is searched."""

import json
import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from headway.compile import PlannedJob, compile_documents
from headway.jobspec.plan import to_json
from headway.jobspec.problem import Problem
from headway.jobspec.spec.job import TrainingJob
from headway.runner.contract import RunConfig, from_json
from headway.runner.rundir import open_run
from headway.templates.trainers import TRAINERS
from headway.templates.trainers.script.arguments import NAMES, fill, mistakes, section_of

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/script.md").read_text()

SCHEDULERS = {
    "here": "{kind: local}",
    "slurm": "{kind: slurm}",
    "pods": "{kind: kubernetes, options: {image: i@sha256:" + "0a" * 32 + ", mounts: [{path: /scratch, claim: scratch}]}}",
}
REST = """
node_groups: [{name: cpu, count: 2, cpus: 4, procs: 4}]
storage: [{name: scratch, kind: posix, path: /scratch/runs, shared: true}]
"""
FULL = """
model: {vocab_size: 256, layers: 2, hidden: 64, heads: 4, kv_heads: 2, head_dim: 16, ffn_hidden: 176, rope_theta: 10000.0,
        norm_eps: 1e-5, dropout: 0.1}
layout: {pp: 2, tp: 2, sharding: gradients, sequence_parallel: true, schedule: 1F1B}
batch: {global: 4Ki tokens, micro: 2, sequence: 128}
precision: {parameters: fp32, compute: bf16, reduce: fp32}
recompute: full
compile: true
overlap: {parameters: true, gradients: true, tensor: false, pipeline: true, experts: false}
optimizer: {lr: 3e-4, schedule: wsd, decay_steps: 10}
checkpoint: {tiers: [{kind: shared, every: 25 steps}]}
steps: 100
seed: 7
"""

# Excluded by the model's sizes, or by an interval in steps.
ABSENT = {"model.preset", "model.max_positions", "checkpoint.shared.seconds"}
# Fields that FULL leaves at their default, or unset.
UNSAID = {
    # Values that follow from others.
    "batch.accumulation",
    "layout.layers_per_stage",
    "checkpoint.shared.seconds",
    "layout.dp_replicate",
    "layout.dp_shard",
    "layout.cp",
    "layout.ep",
    "layout.virtual_stages",
    "optimizer.beta1",
    "optimizer.beta2",
    "optimizer.eps",
    "optimizer.weight_decay",
    "optimizer.clip_norm",
    "optimizer.warmup_steps",
    "optimizer.min_lr_ratio",
    "checkpoint.keep",
}


def planned(
    folder: Path, *argv: str, cluster: str = "slurm", more: str = "", module: bool = False
) -> tuple[tuple[PlannedJob, ...], list[Problem]]:
    """Return the plans of a job with that script, and the problems."""
    head = "apiVersion: headway/v1alpha1\nkind: {}\nname: {}\n"
    for name, scheduler in SCHEDULERS.items():
        (folder / f"{name}.yaml").write_text(f"{head.format('Cluster', name)}scheduler: {scheduler}{REST}")
    trainer = json.dumps({"kind": "script", "options": {"argv": argv, "module": module}})
    job = f"{head.format('TrainingJob', 'case')}cluster: {cluster}\nnodes: 2\ntrainer: {trainer}\n{more}"
    (folder / "job.yaml").write_text(job)
    compiled = compile_documents([folder / "job.yaml"])
    return compiled.jobs, list(compiled.problems)


def argv_of(folder: Path, *argv: str, more: str = "", module: bool = False) -> list[str]:
    """Return the arguments in run.json of a plan without a problem."""
    (plan,), problems = planned(folder, *argv, more=more, module=module)
    assert [problem for problem in problems if problem.is_error] == []
    run = from_json(RunConfig, to_json(plan.plan.run))
    return list(run.trainer.options["argv"])


# --- values -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argument", "filled"),
    [
        ("{name} on {nodes} nodes", "case on 2 nodes"),
        ("{world_size}", "8"),
        ("{layout.dp_shard}x{layout.tp}x{layout.pp}", "2x2x2"),
        ("{batch.global}/{batch.micro}/{batch.sequence}", "32/2/128"),
        ("--lr={optimizer.lr}", "--lr=0.0003"),
        ("{precision.compute}", "bf16"),
        ("{overlap.tensor} {compile}", "false true"),
        ("{checkpoint.shared.steps} of {steps}", "25 of 100"),
        ("{model.kv_heads} {model.rope_theta}", "2 10000.0"),
        ("{runs}/{seed}", "/scratch/runs/7"),
        ("{checkpoint.keep} {resilience.timeouts.collective}", "3 600.0"),
        ('{{"tp": {layout.tp}}}', '{"tp": 2}'),
        ("{{layout.tp}}", "{layout.tp}"),
    ],
)
def test_argument_is_filled_with_the_value_of_the_plan(argument: str, filled: str, tmp_path: Path) -> None:
    assert argv_of(tmp_path, "train.py", argument, more=FULL) == ["train.py", filled]


@pytest.mark.parametrize(
    ("layout", "expected"),
    [("{}", "1F1B false"), ("{tp: 2}", "1F1B true"), ("{pp: 2, virtual_stages: 2}", "Interleaved1F1B false")],
)
def test_derived_values_of_a_layout_are_filled_for_any_degrees(layout: str, expected: str, tmp_path: Path) -> None:
    more = f"layout: {layout}\n"
    assert argv_of(tmp_path, "train.py", "{layout.schedule} {layout.sequence_parallel}", more=more)[1] == expected


def test_every_name_has_a_value_if_the_job_sets_every_field(tmp_path: Path) -> None:
    others = [name for name in NAMES if name not in ABSENT]
    filled = argv_of(tmp_path, *(f"{{{name}}}" for name in others), more=FULL)
    assert not {"None", "null", ""} & set(filled)
    assert len(filled) == len(others)


def test_every_name_is_from_the_plan_or_a_field_of_the_job() -> None:
    assert {section_of(name) for name in NAMES} - set(TrainingJob.model_fields) == {"runs", "run_directory", "world_size"}
    assert len(set(NAMES)) == len(NAMES)


@given(st.text())
def test_doubled_braces_become_braces_and_other_text_is_unchanged(text: str) -> None:
    written = text.replace("{", "{{").replace("}", "}}")
    assert list(mistakes(written, {})) == []
    assert fill(written, {}) == text


@pytest.mark.parametrize(
    ("argument", "hint"),
    [
        ("{tp}", "did you mean `{layout.tp}`?"),
        ("{optimizer.lrr}", "did you mean `{optimizer.lr}`?"),
        ("{precision.optimizer_state}", "known names: `precision.parameters`, `precision.compute`, `precision.reduce`"),
        ("{gpus_per_rack}", "docs/script.md lists all names"),
        (
            "{model.config}",
            "write the path itself, relative to where the job is submitted, or pass the sizes, for example `{model.layers}`",
        ),
        ("{}", "write `{{` and `}}` for literal braces"),
        ("seed}", "write `}}` for a literal brace"),
    ],
)
def test_unknown_name_is_rejected_with_a_suggestion(argument: str, hint: str, tmp_path: Path) -> None:
    plans, problems = planned(tmp_path, "train.py", argument, more=FULL)
    (found,) = [problem for problem in problems if problem.is_error]
    assert (found.code, found.hint, found.path) == ("HW312", hint, ("trainer", "options", "argv", 1))
    assert plans == ()


def unpassed(folder: Path, *argv: str, more: str) -> list[str]:
    """Return the names in the one warning about values that no argument has; the plan exists nevertheless."""
    (_,), problems = planned(folder, "train.py", *argv, more=more)
    assert {(problem.code, problem.path, problem.is_error) for problem in problems} <= {
        ("HW313", ("trainer", "options", "argv"), False)
    }
    return [name for problem in problems for name in re.findall("`([^`]+)`", problem.message)]


def all_of(more: str) -> list[str]:
    """Return arguments with every name that has a value in such a job."""
    return [f"{{{name}}}" for name in NAMES if name not in ABSENT and (section_of(name) in more or name == "world_size")]


@pytest.mark.parametrize("name", [name for name in NAMES if section_of(name) in yaml.safe_load(FULL) and name not in UNSAID])
def test_value_of_the_job_that_no_argument_has_is_reported(name: str, tmp_path: Path) -> None:
    more = FULL.replace("sequence_parallel: true", "sequence_parallel: false")
    arguments = [argument for argument in all_of(more) if argument != f"{{{name}}}"]
    # One value of the model is sufficient, and `headway.checkpoint` follows the job's checkpoints in a script that uses it.
    expected = [] if section_of(name) in ("model", "checkpoint") else [name]
    assert unpassed(tmp_path, *arguments, more=more) == expected


def test_default_of_a_layout_need_not_be_passed(tmp_path: Path) -> None:
    """`sequence_parallel` is on under tensor parallelism unless it is set."""
    arguments = [argument for argument in all_of(FULL) if argument != "{layout.sequence_parallel}"]
    assert unpassed(tmp_path, *arguments, more=FULL) == []


def test_four_of_many_unpassed_values_are_listed_and_the_rest_counted(tmp_path: Path) -> None:
    (_,), problems = planned(tmp_path, "train.py", more=FULL)
    (found,) = problems
    count = len(yaml.safe_load(FULL)["overlap"]) + len(yaml.safe_load(FULL)["precision"])
    others = [
        "model",
        "seed",
        "steps",
        "layout.pp",
        "layout.sharding",
        "layout.tp",
        "layout.schedule",
    ]
    others += ["batch.global", "batch.micro", "batch.sequence", "recompute", "compile"]
    others += ["optimizer.lr", "optimizer.schedule", "optimizer.decay_steps"]
    assert found.message == (
        f"not passed to the script: `model`, `seed`, `steps`, `layout.pp` and {count + len(others) - 4} more"
    )
    assert found.hint == "pass it, for example as `{model.layers}`, or leave out what the script does not read"


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("model: {preset: llama-3.1-8b}\n", ["model"]),
        ("layout: {dp_shard: 8}\n", ["layout.dp_shard"]),
        ("layout: {tp: 8, dp_shard: 1}\n", ["layout.tp"]),
        ("layout: {pp: 1, ep: 2}\n", ["layout.ep"]),
        ("optimizer: {lr: 1e-3, beta1: 0.9, clip_norm: 0.5}\n", ["optimizer.lr", "optimizer.clip_norm"]),
        ("batch: {global: 64 sequences, micro: 1, sequence: 1}\n", ["batch.global", "batch.micro"]),
        ("overlap: {tensor: false}\n", ["overlap.tensor"]),
        ("checkpoint: {keep: 9, tiers: [{kind: shared, every: 5 steps}]}\n", []),
        ("resilience: {timeouts: {collective: 20m, join: 20m}, grace: 20s}\n", ["resilience.timeouts.collective"]),
        ("seed: 0\nresilience: {timeouts: {collective: 10m}}\n", []),
    ],
)
def test_values_that_differ_from_their_default_must_be_passed(more: str, expected: list[str], tmp_path: Path) -> None:
    assert unpassed(tmp_path, more=more) == expected


def test_path_of_the_config_passes_the_model_to_the_script(tmp_path: Path) -> None:
    sizes = {"vocab_size": 256, "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 176}
    (tmp_path / "llama.json").write_text(json.dumps({"model_type": "llama", **sizes}))
    more = "model: {config: llama.json}\n"
    assert unpassed(tmp_path, "--config=jobs/llama.json", more=more) == []
    assert unpassed(tmp_path, more=more) == ["model"]


def test_pipeline_without_a_schedule_is_not_checked_against_schedule_rules(tmp_path: Path) -> None:
    more = "layout: {{pp: 8, virtual_stages: 2{}}}\nbatch: {{global: 4 sequences, micro: 1, sequence: 128}}\n"
    arguments = ["{layout.pp}", "{layout.virtual_stages}", "{batch.global}", "{batch.micro}", "{batch.sequence}"]
    _, problems = planned(tmp_path, "train.py", *arguments, more=more.format(""))
    assert [(problem.code, problem.is_error) for problem in problems] == [("HW320", False)]
    _, problems = planned(tmp_path, "train.py", *arguments, more=more.format(", schedule: 1F1B"))
    assert {problem.code for problem in problems} == {"HW319", "HW320"}


def test_data_of_a_script_is_rejected(tmp_path: Path) -> None:
    plans, problems = planned(tmp_path, "train.py", more="data: {kind: files, options: {paths: [a.txt]}}\n")
    (found,) = problems
    assert (found.code, found.path, found.hint) == ("HW208", ("data",), "leave `data` out")
    assert found.message == "the job's trainer takes no `data`: it reads its data itself"
    assert plans == ()


def test_job_without_training_fields_is_valid(tmp_path: Path) -> None:
    (_,), problems = planned(tmp_path, "train.py")
    assert problems == []


# --- fields that a trainer requires -----------------------------------------------------------------------------------


def test_builtin_trainer_requires_fields_that_a_script_may_omit(tmp_path: Path) -> None:
    planned(tmp_path, "train.py")
    job = tmp_path / "job.yaml"
    job.write_text(re.sub("trainer: .*", "", job.read_text()))
    (problem,) = compile_documents([job]).problems
    assert problem.message == "`run` or `trainer` is missing from a TrainingJob: nothing is run"
    job.write_text(job.read_text() + "trainer: {kind: builtin}\n")
    assert [problem.message for problem in compile_documents([job]).problems] == [
        f"`{name}` is missing from a TrainingJob" for name in TRAINERS["builtin"].needs
    ]
    assert TRAINERS["builtin"].needs == ("model", "data", "batch", "optimizer", "steps", "checkpoint")
    assert TRAINERS["script"].needs == ()


# --- the file ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [".", "..", "elsewhere"])
def test_script_is_searched_in_the_working_folder_and_up_from_the_job(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("repository/jobs", "repository/elsewhere"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "repository/elsewhere")
    script = tmp_path / "repository" / ("elsewhere" if place == "elsewhere" else f"jobs/{place}") / "train.py"
    _, missing = planned(tmp_path / "repository/jobs", "train.py", cluster="here")
    script.write_text("")
    _, found = planned(tmp_path / "repository/jobs", "train.py", cluster="here")
    assert [(problem.code, problem.path) for problem in missing] == [("HW412", ("trainer", "options", "argv", 0))]
    assert found == []


def test_script_on_another_scheduler_or_module_is_not_searched(tmp_path: Path) -> None:
    for cluster, module in (("slurm", False), ("pods", False), ("here", True)):
        _, problems = planned(tmp_path, "no-such.train", cluster=cluster, module=module)
        assert problems == []


def test_module_is_started_with_m(tmp_path: Path) -> None:
    assert argv_of(tmp_path, "research.train", "--fast", module=True) == ["-m", "research.train", "--fast"]


# --- the rendered files -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cluster", "file"), [("here", "local/run.sh"), ("slurm", "slurm/job.sbatch"), ("pods", "kubernetes/job.yaml")]
)
def test_submitted_file_contains_the_filled_arguments(cluster: str, file: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    awkward = """it's "quoted" $HOME `date` \\ RUN_JSON {{}} é"""
    (plan,), problems = planned(tmp_path, "train.py", "--tp={layout.tp}", awkward, cluster=cluster, more="layout: {tp: 2}\n")
    assert [problem.code for problem in problems] == ["HW703"], "`$HOME` is taken literally, with a warning"
    text = {path.relative_to(f"case/{cluster}").as_posix(): text for path, text in plan.files().items()}[file]
    run = from_json(RunConfig, _submitted_run(text))
    assert run.trainer.kind == "script"
    assert run.trainer.options == {"argv": ["train.py", "--tp=2", awkward.replace("{{}}", "{}")], "logs": True}


def _submitted_run(text: str) -> str:
    """Return run.json of a script or a manifest."""
    if text.startswith("#!"):
        (found,) = re.findall(r"<<'RUN_JSON'[^\n]*\n(.*?)\nRUN_JSON\n", text, re.DOTALL)
        return str(found)
    (job,) = yaml.safe_load(text)["spec"]["replicatedJobs"]
    return str(job["template"]["spec"]["template"]["metadata"]["annotations"]["headway/run.json"])


# --- the page ---------------------------------------------------------------------------------------------------------


def test_page_lists_exactly_the_names() -> None:
    section = PAGE.partition("### Values of the plan\n")[2].partition("\n### ")[0]
    rows = re.findall(r"^\| (`.*`) \| .* \|$", section, re.MULTILINE)
    assert [name for row in rows for name in re.findall("`([^`]+)`", row)] == list(NAMES)


def test_excerpt_on_the_page_is_in_the_example() -> None:
    shown = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)[0]
    job = (ROOT / "examples/own-script/job.yaml").read_text().splitlines()
    assert set(shown.splitlines()) <= set(job)


# --- commands, conditions, and values known when the run is opened ----------------------------------------------------


@pytest.mark.parametrize(
    ("argument", "kept"),
    [
        ("--sp{?layout.sequence_parallel}", "--sp"),
        ("--bf16{?precision.compute=bf16}", None),
        ("--fp32{?precision.compute=fp32}", "--fp32"),
        ("--tp={layout.tp}{?layout.tp=2}", "--tp=2"),
        ("--seconds={checkpoint.shared.seconds}{?checkpoint.shared.seconds}", None),
        ("--every={checkpoint.shared.steps}{?checkpoint.shared.steps}", "--every=10"),
        ("--accumulation={batch.accumulation}", "--accumulation=8"),
        ("{{?layout.tp}}", "{?layout.tp}"),
    ],
)
def test_argument_is_kept_if_its_condition_holds(argument: str, kept: str | None, tmp_path: Path) -> None:
    more = "layout: {tp: 2}\nbatch: {global: 64 sequences, micro: 2, sequence: 8}\ncheckpoint: {tiers: [{kind: shared, every: 10 steps}]}\n"
    more += "precision: {compute: fp32}\n"
    assert argv_of(tmp_path, "train.py", argument, more=more)[1:] == ([] if kept is None else [kept])


def test_name_and_directory_of_the_run_are_filled_in_when_it_is_opened(tmp_path: Path) -> None:
    (plan,), _ = planned(tmp_path, "train.py", "--out={run_directory}/a", "--name={run}-{{x}}", "--lr={{}}")
    config = from_json(RunConfig, to_json(plan.plan.run))
    assert config.trainer.options["late"] == [1, 2]
    opened = open_run(tmp_path / "runs", "case-1", config, 0)
    options = from_json(RunConfig, opened.run_json.read_text()).trainer.options
    assert options["argv"] == ["train.py", f"--out={tmp_path}/runs/case-1/a", "--name=case-1-{x}", "--lr={}"]
    assert "late" not in options
