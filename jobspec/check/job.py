"""Checks a TrainingJob document against itself."""

import re
from collections.abc import Callable, Iterator

from headway.jobspec.check.environment import check_names, check_secret_names, check_values, check_webhook
from headway.jobspec.check.history import check_history
from headway.jobspec.check.layout import check_layout, sizes_of
from headway.jobspec.check.model import check_model
from headway.jobspec.check.multiples import nearest_multiples
from headway.jobspec.check.names import check_unique
from headway.jobspec.check.shell_lines import check_shell
from headway.jobspec.check.sweep import check_sweep
from headway.jobspec.check.tiers import check_peer, check_tiers
from headway.jobspec.flow import flow
from headway.jobspec.notation import counted, write_duration, write_parts
from headway.jobspec.parse import Parsed
from headway.jobspec.problem import JOB, Problem, Severity
from headway.jobspec.resolve.batch import batches
from headway.jobspec.spec.job import DEFAULT_TRAINER, TrainingJob
from headway.jobspec.spec.model import Model
from headway.jobspec.spec.resilience import Restart, Timeouts
from headway.runner.contract import DEFAULT_TIMEOUTS, STORED_TIERS

_GLOBAL = ("batch", "global")
# The digest at the end of an OCI image's name (opencontainers/image-spec descriptor.md); two of its algorithms, with their hex digits.
_DIGEST = re.compile(r"[^@]+@([a-z0-9]+(?:[+._-][a-z0-9]+)*):([A-Za-z0-9=_-]+)")
_HEX_DIGITS = {"sha256": 64, "sha512": 128}
# A shorter run is a test.
_SHORTEST_RUN = 2
# Some optimizers take 1, as a factor of a rate of their own.
_LARGEST_RATE = 1.0
# Published runs have rates from 1e-6 (fine-tuning) to 1e-2, weight decays to 0.3, and epsilons to 1e-5.
_SMALLEST_RATE = 2e-7
_LARGEST_EPS = 0.01
_LARGEST_DECAY = 5.0
# Apptainer and enroot images are files.
_IMAGE_FILE = (".sif", ".sqsh")
HOW_TO_PIN = "pin it by its digest, `NAME@sha256:...`: `docker buildx imagetools inspect NAME:TAG` or `skopeo inspect` print it"


def check_job(job: Parsed[TrainingJob]) -> Iterator[Problem]:
    """Yield every problem of the sections that are valid by themselves."""
    for needs, check in _RULES:
        if job.has(needs):
            yield from check(job.spec)
    yield from _check_model(job)
    yield from _check_layout(job)
    yield from check_history(job)
    yield from check_sweep(job)


# Trainers whose arguments are the model's sizes.
_OF_SIZES = ("megatron",)


def _check_model(job: Parsed[TrainingJob]) -> Iterator[Problem]:
    """Check the model. A missing size may be a misspelt one, which has a separate problem."""
    if not job.has(("model",)) or job.spec.model is None:
        return
    misspelt = job.document.value(("model",)).keys() - Model.model_fields.keys()
    of_script = job.has(("trainer",)) and job.spec.trainer.kind != DEFAULT_TRAINER
    are_needed = not of_script or job.spec.trainer.kind in _OF_SIZES
    for problem in check_model(
        job.spec.model, job.document.folder(("model", "config")), of_script=of_script, are_sizes_needed=are_needed
    ):
        if not misspelt or problem.path != ("model",):
            yield problem


def _check_layout(job: Parsed[TrainingJob]) -> Iterator[Problem]:
    if job.has(("layout",)):
        batch = job.spec.batch if job.has(("batch",)) else None
        yield from check_layout(job.spec.layout, sizes_of(job), batch, _framework(job))


def _framework(job: Parsed[TrainingJob]) -> str | None:
    """Return the framework that the options of a script name, or the kind of a trainer that is one."""
    if not job.has(("trainer",)):
        return None
    named: str | None = job.spec.trainer.options.get("framework")
    return named or job.spec.trainer.kind


def _check_clusters(job: TrainingJob) -> Iterator[Problem]:
    yield from check_unique(JOB, ("cluster",), None, job.cluster)


def _check_tokens(job: TrainingJob) -> Iterator[Problem]:
    """Check that a global batch in tokens is whole sequences."""
    for path, batch in batches(job):
        tokens, length = batch.global_batch.tokens or 0, batch.sequence_length
        if tokens % length:
            nearest = " or ".join(f"{count} tokens ({count // length} sequences)" for count in nearest_multiples(tokens, length))
            message = f"{tokens} tokens are not a multiple of the {length} tokens of a sequence"
            # Papers write 16M for 16 x 2^20 tokens.
            binary = (tokens // 10**6) << 20
            if tokens % 10**6 == 0 and binary % length == 0 and path == _GLOBAL:
                written = f"{tokens // 10**6}Mi tokens"
                yield Problem("HW323", JOB, path, message, f"write `{written}` ({binary // length} sequences)", fix=written)
                continue
            yield Problem("HW323", JOB, path, message, f"the nearest multiple is {nearest}")


def _check_tiers(job: TrainingJob) -> Iterator[Problem]:
    if job.checkpoint is not None:
        yield from check_tiers(job.checkpoint, job.steps)


def _check_first_checkpoint(job: TrainingJob) -> Iterator[Problem]:
    if job.checkpoint is None or job.steps is None:
        return
    for index, tier in enumerate(job.checkpoint.tiers):
        if tier.every.steps is not None and tier.every.steps > job.steps:
            message = f"the run ends after {counted(job.steps, 'step')}, before its first checkpoint at {tier.every.steps}"
            path = ("checkpoint", "tiers", index, "every")
            yield Problem("HW701", JOB, path, message, f"use at most {counted(job.steps, 'step')}", Severity.WARNING)


def _check_warmup(job: TrainingJob) -> Iterator[Problem]:
    if job.optimizer is not None and job.steps is not None and job.optimizer.warmup_steps >= max(job.steps, _SHORTEST_RUN):
        longer = "longer than the run of" if job.optimizer.warmup_steps > job.steps else "all of the run of"
        message = f"the warm-up of {counted(job.optimizer.warmup_steps, 'step')} is {longer} {job.steps}"
        hint = f"`lr` is never reached; use less than {job.steps}, for example `{max(1, job.steps // 50)}`"
        yield Problem("HW308", JOB, ("optimizer", "warmup_steps"), message, hint, Severity.WARNING)


def _check_rate(job: TrainingJob) -> Iterator[Problem]:
    """Warn about a rate at which one step of AdamW, which changes each weight by about the rate, destroys the model."""
    if job.optimizer is not None and job.optimizer.lr > _LARGEST_RATE:
        digits, exponent = f"{job.optimizer.lr:e}".split("e")
        # Without its exponent, most rates are of this size.
        meant = f"{float(digits):g}e-{abs(int(exponent)) or 4}"
        message = (
            f"AdamW changes each weight by about `lr` in a step, so `lr: {job.optimizer.lr:g}` destroys the model in one step"
        )
        hint = f"did you mean `{meant}`?"
        yield Problem("HW329", JOB, ("optimizer", "lr"), message, hint, Severity.WARNING)


def _check_numbers(job: TrainingJob) -> Iterator[Problem]:
    """Warn of numbers that no training has: a lost sign of an exponent, or two that are exchanged."""
    optimizer = job.optimizer
    if optimizer is None:
        return
    found: list[tuple[str, str, str]] = []
    if optimizer.beta1 > optimizer.beta2:
        message = f"`beta1` {optimizer.beta1:g} is above `beta2` {optimizer.beta2:g}"
        found.append(("beta1", message, f"exchange them: `beta1: {optimizer.beta2:g}, beta2: {optimizer.beta1:g}`"))
    if optimizer.eps > _LARGEST_EPS:
        message = f"`eps` {optimizer.eps:g} is larger than the second moments, so that no step has the size of `lr`"
        found.append(("eps", message, "did you mean `1e-8`?"))
    if optimizer.weight_decay > _LARGEST_DECAY:
        found.append(("weight_decay", f"a weight decay of {optimizer.weight_decay:g} removes the weights", "did you mean `0.1`?"))
    if 0 < optimizer.lr < _SMALLEST_RATE:
        meant = f"{optimizer.lr * 1000:g}"
        message = f"at `lr: {optimizer.lr:g}` a weight of 0.02 needs {0.02 / optimizer.lr:,.0f} steps to change as a whole"
        found.append(("lr", message, f"did you mean `{meant}`?"))
    if "min_lr_ratio" in optimizer.model_fields_set and 0 < optimizer.min_lr_ratio <= optimizer.lr:
        share = f"{optimizer.min_lr_ratio / optimizer.lr:.3g}"
        ends = f"{optimizer.lr * optimizer.min_lr_ratio:.2g}"
        message = f"`min_lr_ratio` {optimizer.min_lr_ratio:g} is a share of `lr`: the rate ends at {ends}"
        found.append(("min_lr_ratio", message, f"did you mean `{share}`, which ends at {optimizer.min_lr_ratio:g}?"))
    for name, message, hint in found:
        yield Problem("HW329", JOB, ("optimizer", name), message, hint, Severity.WARNING)


def _check_numbers_of_model(job: TrainingJob) -> Iterator[Problem]:
    if job.model is not None and job.model.rope_theta is not None and job.model.rope_theta < 1:
        message = f"rotary positions of the base {job.model.rope_theta:g} turn faster with each dimension, not slower"
        yield Problem("HW329", JOB, ("model", "rope_theta"), message, "did you mean `10000`?", Severity.WARNING)
    if job.model is not None and job.model.norm_eps is not None and job.model.norm_eps > _LARGEST_EPS:
        message = f"`norm_eps` {job.model.norm_eps:g} is larger than what the norms divide by"
        yield Problem("HW329", JOB, ("model", "norm_eps"), message, "did you mean `1e-5`?", Severity.WARNING)


# Bounds within which the ranks of many nodes have not even begun, and why.
_SLOW_AT_SCALE = {
    "join": "nodes boot and import at different speeds",
    "start": "they import, connect and build the model in that time",
    "collective": "one of them may load data, compile or save for longer",
}
_MANY_NODES, _SHORT_S, _SHORT_GRACE_S = 8, 60.0, 10.0


def _check_order_of_times(job: TrainingJob) -> Iterator[Problem]:
    """Check limits that others make pointless: they are exchanged, or have another unit."""
    times, restart = job.resilience.timeouts, job.resilience.restart
    if times.node_spare > times.node and "node_spare" in times.model_fields_set:
        message = f"`node_spare` {write_duration(times.node_spare)} is longer than `node` {write_duration(times.node)}, and has no effect"
        hint = f"use less than {write_duration(times.node)}, for example `node_spare: 3s`"
        yield Problem("HW708", JOB, ("resilience", "timeouts", "node_spare"), message, hint, Severity.WARNING)
    shorter = [name for name in ("compute", "start") if getattr(times, name) > times.busy]
    if shorter and "busy" in times.model_fields_set:
        own = write_duration(getattr(times, shorter[0]))
        message = (
            f"`busy` {write_duration(times.busy)} is shorter than `{shorter[0]}` {own}, which it prolongs for a rank that works"
        )
        hint = f"use more than {own}, for example `busy: 1d`"
        yield Problem("HW708", JOB, ("resilience", "timeouts", "busy"), message, hint, Severity.WARNING)
    if not job.resilience.replica_recovery and times.replica != Timeouts().replica:
        message = f"`replica` {write_duration(times.replica)} has no effect without `replica_recovery`"
        hint = "leave it out, or set `resilience.replica_recovery: true`"
        yield Problem("HW708", JOB, ("resilience", "timeouts", "replica"), message, hint, Severity.WARNING, at_key=True)
    # The default, written out, is no mistake, and a budget of 0 is its own answer.
    if restart.no_progress > max(restart.budget, Restart().no_progress) and restart.budget:
        message = f"`no_progress` {restart.no_progress} is never reached: the budget is {restart.budget} restarts"
        path = ("resilience", "restart", "no_progress")
        yield Problem("HW708", JOB, path, message, f"use at most {restart.budget}", Severity.WARNING, fix=str(restart.budget))
    if (
        job.steps is not None
        and restart.budget
        and restart.refill_steps > job.steps
        and "refill_steps" in restart.model_fields_set
    ):
        message = f"no restart is ever returned: the run has {counted(job.steps, 'step')}, fewer than `refill_steps` {restart.refill_steps}"
        hint = f"use less than {job.steps}, for example `refill_steps: 100`"
        yield Problem("HW708", JOB, ("resilience", "restart", "refill_steps"), message, hint, Severity.WARNING)
    for name, reason in _SLOW_AT_SCALE.items():
        own = getattr(times, name)
        if job.nodes >= _MANY_NODES and name in times.model_fields_set and own < _SHORT_S:
            message = (
                f"`{name}` {write_duration(own)} is short for {job.nodes} nodes, which are then taken for lost or hung: {reason}"
            )
            hint = f"use more than {write_duration(_SHORT_S)}; the default is {write_duration(DEFAULT_TIMEOUTS[name].floor_s)}"
            yield Problem("HW708", JOB, ("resilience", "timeouts", name), message, hint, Severity.WARNING)
    grace = job.resilience.grace
    if job.nodes >= _MANY_NODES and "grace" in job.resilience.model_fields_set and grace < _SHORT_GRACE_S:
        message = (
            f"`grace` {write_duration(grace)} is short for {job.nodes} nodes: ranks finish a step and write a checkpoint in it"
        )
        hint = f"use more than {write_duration(_SHORT_GRACE_S)}, for example `grace: 2m`"
        yield Problem("HW708", JOB, ("resilience", "grace"), message, hint, Severity.WARNING)
    checks = job.resilience.corruption
    # The other one is refused by the trainer.
    name = "replay" if job.trainer.kind == DEFAULT_TRAINER else "compare"
    if checks is not None and job.steps is not None:
        every = getattr(checks, name)
        if every is not None and every.steps is not None and every.steps > (job.steps or 0):
            message = f"the run ends after {counted(job.steps or 0, 'step')}, before its first check at {every.steps}"
            path = ("resilience", "corruption", name)
            yield Problem("HW701", JOB, path, message, f"use at most {counted(job.steps or 0, 'step')}", Severity.WARNING)


def _check_decay(job: TrainingJob) -> Iterator[Problem]:
    """Check that only warm-up, stable, decay has a decay length."""
    optimizer = job.optimizer
    if optimizer is None:
        return
    if optimizer.schedule == "wsd" and optimizer.decay_steps is None:
        length = 1000 if job.steps is None else max(1, job.steps // 10)
        hint = f"set the length of the final decay, for example `decay_steps: {length}`"
        yield Problem("HW210", JOB, ("optimizer", "schedule"), "the schedule `wsd` needs `decay_steps`", hint)
    elif optimizer.schedule != "wsd" and optimizer.decay_steps is not None:
        message = f"`decay_steps` has no effect: the schedule `{optimizer.schedule}` decays from the warm-up to the last step"
        if optimizer.schedule == "constant":
            message = "`decay_steps` has no effect: the schedule `constant` never decays"
        path = ("optimizer", "decay_steps")
        yield Problem("HW210", JOB, path, message, "leave it out, or set `schedule: wsd`", at_key=True)


def _check_end_of_decay(job: TrainingJob) -> Iterator[Problem]:
    """Warn about the rate at the end of a decay that there is none of."""
    optimizer = job.optimizer
    if optimizer is not None and optimizer.schedule == "constant" and "min_lr_ratio" in optimizer.model_fields_set:
        message = "`min_lr_ratio` has no effect: the schedule `constant` never decays"
        hint = "leave it out, or set `schedule: cosine`"
        yield Problem("HW210", JOB, ("optimizer", "min_lr_ratio"), message, hint, Severity.WARNING, at_key=True)


def _check_setup(job: TrainingJob) -> Iterator[Problem]:
    yield from check_shell(JOB, ("setup",), job.setup)
    for index, line in enumerate(job.setup):
        if line.split()[:1] == ["source"]:
            message = "`source` is not a command of POSIX shells, such as dash, which is `sh` on Debian and Ubuntu"
            written = line.replace("source", ".", 1)
            yield Problem("HW210", JOB, ("setup", index), message, f"write `{written}`", Severity.WARNING, fix=flow(written))


def _check_formats(job: TrainingJob) -> Iterator[Problem]:
    """Warn about matrices in a finer format than the parameters have: what they gain is lost at the update."""
    if (job.precision.parameters, job.precision.compute) == ("bf16", "fp32"):
        message = "matrices are computed in fp32, but the optimizer keeps the parameters in bf16, which rounds each update"
        hint = "exchange them: `parameters: fp32, compute: bf16`"
        yield Problem("HW210", JOB, ("precision", "compute"), message, hint, Severity.WARNING)


def _check_decay_fits(job: TrainingJob) -> Iterator[Problem]:
    optimizer, steps = job.optimizer, job.steps
    if optimizer is None or steps is None or optimizer.decay_steps is None or optimizer.schedule != "wsd":
        return
    if optimizer.warmup_steps + optimizer.decay_steps > steps:
        message = (
            f"{counted(optimizer.warmup_steps, 'step')} of warm-up and {optimizer.decay_steps} of decay, but the run has {steps}"
        )
        if optimizer.warmup_steps * 2 > steps > optimizer.decay_steps:
            # A warm-up of most of the run is what is wrong.
            most = steps - optimizer.decay_steps
            yield Problem("HW324", JOB, ("optimizer", "warmup_steps"), message, f"use at most {most} for the warm-up")
            return
        left = steps - optimizer.warmup_steps
        hint = f"use at most {left} for the decay" if left > 0 else "shorten both, or train longer"
        yield Problem("HW324", JOB, ("optimizer", "decay_steps"), message, hint)


def is_image_file(image: str) -> bool:
    """Return whether the image is a file, and not a name in a registry: by its first character or its suffix."""
    return image.startswith(("/", ".")) or image.endswith(_IMAGE_FILE)


def _check_image(job: TrainingJob) -> Iterator[Problem]:
    scheme, slashes, name = (job.code.image or "").partition("://")
    if slashes:
        message = f"an image is a name in a registry or a file, without `{scheme}://`"
        yield Problem("HW204", JOB, ("code", "image"), message, f"write `{name}`", fix=name)
        return
    found = None if job.code.image is None else not_pinned(job.code.image)
    if found:
        yield Problem("HW221", JOB, ("code", "image"), found, HOW_TO_PIN)


def not_pinned(image: str) -> str | None:
    """Return why the name of an image can refer to another image later; None for a file, or a name with a digest."""
    name = image.rpartition("#")[2]
    if is_image_file(image):
        return None
    return _not_a_digest(name) if "@" in name else _by_tag(name)


def _by_tag(name: str) -> str:
    tag = name.rpartition("/")[2].partition(":")[2]
    named = f"by the tag `{tag}`" if tag else "without a tag, which means `latest`"
    return f"the image is named {named}, which can refer to another image at the next attempt"


def _not_a_digest(name: str) -> str | None:
    digest = _DIGEST.fullmatch(name)
    if digest is None:
        return f"`{name.partition('@')[2]}` is not a digest: an algorithm, a colon and hex digits"
    algorithm, encoded = digest.groups()
    digits = _HEX_DIGITS.get(algorithm)
    if digits is None or re.fullmatch(f"[0-9a-f]{{{digits}}}", encoded):
        return None
    found = f"{len(encoded)} characters" if len(encoded) != digits else "others"
    return f"`{algorithm}:{encoded}` is not a digest: {algorithm} has {digits} of the digits 0-9a-f, this has {found}"


def _check_overlap(job: TrainingJob) -> Iterator[Problem]:
    """Report overlaps of communication that the layout does not have."""
    layout = job.layout
    for name, axis in (("tensor", "tp"), ("pipeline", "pp"), ("experts", "ep")):
        if getattr(job.overlap, name) and getattr(layout, axis) == 1:
            message = f"`{name}` overlaps the communication of `{axis}`, which is 1"
            yield Problem(
                "HW210", JOB, ("overlap", name), message, f"leave it out, or set `layout.{axis}`", Severity.WARNING, at_key=True
            )


def _check_mounts(job: TrainingJob) -> Iterator[Problem]:
    targets = [(mount.target or mount.source).rstrip("/") for mount in job.mounts]
    for index, target in enumerate(targets):
        if target in targets[:index]:
            message = f"a second directory is mounted at `{target}`, where it would hide the first"
            path = ("mounts", index, "target" if job.mounts[index].target is not None else "source")
            yield Problem("HW209", JOB, path, message, "give each a different `target`")


def _check_names(job: TrainingJob) -> Iterator[Problem]:
    yield from check_names(job.environment)
    yield from check_values(job.environment, {secret.name for secret in job.secrets})


def _check_cost_limit(job: TrainingJob) -> Iterator[Problem]:
    if job.limits.attempt.gpu_hours is not None and job.limits.attempt.time is None:
        hint = "add `time`: GPU-hours are nodes x GPUs x time; or set `limits.run.gpu_hours`, which is counted"
        yield Problem(
            "HW210", JOB, ("limits", "attempt", "gpu_hours"), "`gpu_hours` of an attempt without its `time` is not enforced", hint
        )


def _check_run_limit(job: TrainingJob) -> Iterator[Problem]:
    attempt, run = job.limits.attempt.time, job.limits.run.time
    if attempt is not None and run is not None and attempt > run:
        message = f"an attempt of {write_duration(attempt)} is longer than the whole run, {write_duration(run)}"
        # A longer run is right whatever its steps need.
        hint = f"set `limits.run.time` to more than {write_duration(attempt)}, or `limits.attempt.time` to at most {write_duration(run)}"
        yield Problem("HW708", JOB, ("limits", "attempt", "time"), message, hint, Severity.WARNING)


def _check_time(job: TrainingJob) -> Iterator[Problem]:
    """Check the times: the scheduler asks the job to save and stop so long before it ends it; nodes may take so long to start."""
    time, grace, join = job.limits.attempt.time, job.resilience.grace, job.resilience.timeouts.join
    if time is None:
        return
    if time <= grace:
        message = (
            f"an attempt of {write_parts(time)} is asked to stop {write_parts(grace)} "
            f"before its end, which is before it has started"
        )
        yield Problem(
            "HW708", JOB, ("limits", "attempt", "time"), message, "use a longer `time`, or a shorter `resilience.grace`"
        )
    elif time <= join:
        message = f"an attempt of {write_parts(time)} may end before its nodes have joined, which may take {write_parts(join)}"
        hint = "use a longer `time`, or a shorter `resilience.timeouts.join`"
        yield Problem("HW708", JOB, ("limits", "attempt", "time"), message, hint, Severity.WARNING)


def _check_horizon(job: TrainingJob) -> Iterator[Problem]:
    """Report a horizon within which a check for corruption may not have been made: the sound checkpoint is gone when one finds it."""
    checkpoint, corruption = job.checkpoint, job.resilience.corruption
    if checkpoint is None or checkpoint.horizon is None:
        return
    stored = [tier.every.steps for tier in checkpoint.tiers if tier.kind in STORED_TIERS and tier.every.steps is not None]
    if stored and checkpoint.horizon < (most := min(stored)):
        message = f"checkpoints are {most} steps apart, so that none is kept for a horizon of {checkpoint.horizon} steps"
        hint = f"use several intervals, for example `{10 * most} steps`, or leave it out"
        yield Problem("HW717", JOB, ("checkpoint", "horizon"), message, hint, Severity.WARNING)
        return
    if corruption is None:
        return
    found = [each.steps for each in (corruption.compare, corruption.replay) if each is not None and each.steps is not None]
    if found and checkpoint.horizon < min(found):
        message = (
            f"corruption is looked for every {min(found)} steps, and the older checkpoint is only {checkpoint.horizon} steps back"
        )
        hint = f"use at least `{min(found)} steps`"
        yield Problem("HW717", JOB, ("checkpoint", "horizon"), message, hint, Severity.WARNING, fix=f"{min(found)} steps")


_Rule = Callable[[TrainingJob], Iterator[Problem]]
_RULES: tuple[tuple[tuple[str, ...], _Rule], ...] = (
    (("cluster",), _check_clusters),
    (("code",), _check_image),
    (("batch", "history"), _check_tokens),
    (("checkpoint",), _check_tiers),
    (("checkpoint", "nodes"), check_peer),
    (("checkpoint", "steps"), _check_first_checkpoint),
    (("optimizer", "steps"), _check_warmup),
    (("optimizer",), _check_rate),
    (("optimizer",), _check_numbers),
    (("model",), _check_numbers_of_model),
    (("resilience", "steps", "trainer", "nodes"), _check_order_of_times),
    (("optimizer", "steps"), _check_decay),
    (("optimizer",), _check_end_of_decay),
    (("precision",), _check_formats),
    (("setup",), _check_setup),
    (("optimizer", "steps"), _check_decay_fits),
    (("checkpoint", "resilience"), _check_horizon),
    (("limits",), _check_cost_limit),
    (("limits",), _check_run_limit),
    (("limits", "resilience"), _check_time),
    (("environment",), _check_names),
    (("environment", "resilience"), check_webhook),
    (("environment", "secrets"), check_secret_names),
    (("mounts",), _check_mounts),
    (("layout", "overlap"), _check_overlap),
)
