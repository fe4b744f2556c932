"""Checks a TrainingJob against a Cluster: nodes, ranks, batch, storage and cost must fit."""

from collections.abc import Callable, Iterator, Mapping
from math import ceil, prod

from headway.jobspec.check.domains import check_domains
from headway.jobspec.check.layout import check_idle_stages, check_mesh, sizes_of
from headway.jobspec.check.multiples import divisors, listed_numbers
from headway.jobspec.check.names import group_hint
from headway.jobspec.check.tiers import check_reach
from headway.jobspec.document import Path
from headway.jobspec.notation import counted, write_parts
from headway.jobspec.parse import Parsed
from headway.jobspec.problem import JOB, Problem, Severity
from headway.jobspec.resolve.batch import batches, global_sequences
from headway.jobspec.resolve.domains import Domains
from headway.jobspec.resolve.mesh import MeshError, resolve_mesh
from headway.jobspec.resolve.nodes import domain_of, gpu_of, part_of_nodes, procs_per_node
from headway.jobspec.spec.batch import Batch
from headway.jobspec.spec.cluster import Cluster
from headway.jobspec.spec.job import TrainingJob
from headway.jobspec.spec.layout import Layout
from headway.jobspec.spec.nodes import NodeGroup
from headway.jobspec.suggest import Hint, listed
from headway.runner.contract import Mesh

# The scheduler that starts a job on no fewer nodes than it asks for.
# Numbers of nodes below those that there are which are tried for a layout.
_TRIED = 64
_ALL_OR_NOTHING = "kubernetes"
# An attempt's time is what it may take at most: one that takes a little more than the whole run is no mistake.
_MUCH_MORE = 2
# Failures for each restart, from which on a budget is no choice but a mistake.
_FAR_MORE = 10
_SHORTEST_MTBF_S = 86400.0
# More is not a few steps.
_REFILL_STEPS = 1000


def check_placement(job: Parsed[TrainingJob], cluster: Parsed[Cluster]) -> Iterator[Problem]:
    """Yield every problem of the sections that are valid by themselves."""
    for job_needs, cluster_needs, check in _RULES:
        if job.has(job_needs) and cluster.has(cluster_needs):
            yield from check(job.spec, cluster.spec)
    yield from _check_layout(job, cluster)


def _check_group(job: TrainingJob, cluster: Cluster) -> Iterator[Problem]:
    names = [nodes.name for nodes in cluster.node_groups]
    if job.group is not None and job.group not in names:
        message = f"`{cluster.name}` has no group of nodes `{job.group}`"
        near = group_hint(job.group, {nodes.name: nodes.gpu is not None for nodes in cluster.node_groups})
        holding = [nodes.name for nodes in cluster.node_groups if _holds(nodes, job)]
        if near.fix is None and len(holding) == 1 < len(names):
            near = Hint(f"write `{holding[0]}`, which holds the layout; known groups: {listed(names)}", holding[0])
        yield Problem("HW411", JOB, ("group",), message, near.text, fix=near.fix)


def _holds(nodes: NodeGroup, job: TrainingJob) -> bool:
    """Return whether the group has the job's nodes, and the layout divides their ranks."""
    if job.nodes > nodes.count - nodes.held_back:
        return False
    try:
        resolve_mesh(job.layout, job.nodes * (job.gpus or procs_per_node(nodes)))
    except MeshError:
        return False
    return True


def _check_gpus(job: TrainingJob, cluster: Cluster) -> Iterator[Problem]:
    """Check that a node has the GPUs that the job uses of it."""
    group = _group(job, cluster)
    if group is None or job.gpus is None or job.gpus <= (group.gpus or 0):
        return
    has = counted(group.gpus, "GPU") if group.gpus else "no GPUs"
    message = f"the job uses {counted(job.gpus, 'GPU')} of each node, but a node of `{group.name}` of `{cluster.name}` has {has}"
    hint = f"use at most {group.gpus}, and more `nodes`" if group.gpus else "leave `gpus` out, or set `group` to one with GPUs"
    yield Problem("HW434", JOB, ("gpus",), message, hint)


def _check_nodes(job: TrainingJob, cluster: Cluster) -> Iterator[Problem]:
    group = _group(job, cluster)
    if group is None:
        return
    free, wanted = group.count - group.held_back, job.nodes + job.resilience.spares
    # A group that is held back as a whole is a problem of the cluster's document.
    if wanted > free > 0:
        own = f" and {n} spare{'' if n == 1 else 's'}" if (n := job.resilience.spares) else ""
        kept = f", {n} of them held back" if (n := group.held_back) else ""
        there = f"the group `{group.name}` of `{cluster.name}` has {group.count}{kept}"
        message = f"the job needs {counted(job.nodes, 'node')}{own}, but {there}"
        path: Path = ("nodes",) if job.nodes > free else ("resilience", "spares")
        large = (each for each in cluster.node_groups if each.count - each.held_back >= wanted)
        larger = next((each for each in large if (each.gpus or 0) >= (group.gpus or 0)), None)
        other = f"`group: {larger.name}`, which has them" if larger is not None else "another cluster"
        most = f"use at most {free} in total"
        # Fewer nodes that the layout does not divide would be the next mistake.
        if path == ("nodes",) and (whole := _most_whole(job, group, free - job.resilience.spares)) is not None:
            most += (
                ""
                if whole == free - job.resilience.spares
                else f", for example `nodes: {whole}`, which the layout and the batch divide"
            )
        yield Problem("HW403", JOB, path, message, f"{most}, or {other}")


def _most_whole(job: TrainingJob, group: NodeGroup, free: int) -> int | None:
    """Return the most nodes, of so many, whose ranks the layout divides; None if none of the next numbers below does."""
    ranks = job.gpus or group.gpus or group.procs or 1
    batches_of = [batch for _, batch in batches(job) if _is_whole(batch)] if job.batch is not None else []
    for nodes in range(free, max(0, free - _TRIED), -1):
        try:
            mesh = resolve_mesh(job.layout, nodes * ranks)
        except MeshError:
            continue
        # A batch that is not whole on them would be the next mistake.
        replicas = mesh.dp_replicate * mesh.dp_shard
        parts = [(global_sequences(batch), batch.micro_sequences * replicas) for batch in batches_of]
        if all(sequences % step == 0 for sequences, step in parts):
            return nodes
    return None


def _is_whole_with(job: TrainingJob, world_size: int) -> bool:
    """Return whether the batch and `ep` divide over the ranks with the `dp_shard` that they leave."""
    try:
        mesh = resolve_mesh(job.layout.model_copy(update={"dp_shard": None}), world_size)
    except MeshError:
        return True
    batches_of = [batch for _, batch in batches(job) if _is_whole(batch)] if job.batch is not None else []
    replicas = mesh.dp_replicate * mesh.dp_shard
    if mesh.dp_shard * mesh.cp * mesh.tp % (job.layout.ep or 1):
        return False
    return all(global_sequences(batch) % (batch.micro_sequences * replicas) == 0 for batch in batches_of)


def _check_range(job: TrainingJob, cluster: Cluster) -> Iterator[Problem]:
    """Check that a job can run on every number of nodes of its range."""
    group, fewest = _group(job, cluster), job.min_nodes
    if group is None or fewest is None:
        return
    place: Path = ("min_nodes",)
    if fewest > job.nodes:
        message = f"the fewest nodes are {fewest}, and the most {job.nodes}"
        yield Problem("HW435", JOB, place, message, f"use at most {job.nodes} for the fewest, or exchange the two")
        return
    if fewest == job.nodes:
        return
    if cluster.scheduler.kind == _ALL_OR_NOTHING:
        message = "a JobSet's pods start together or not at all: `nodes: {min, max}` needs Slurm or this machine"
        yield Problem("HW435", JOB, place, message, f"write `nodes: {job.nodes}`, and hold `resilience.spares` for lost nodes")
        return
    if job.trainer.kind != "script":
        message = f"the trainer `{job.trainer.kind}` runs on a fixed number of nodes"
        yield Problem("HW306", JOB, place, message, f"write `nodes: {job.nodes}`")
        return
    layout, procs = job.layout, procs_per_node(group)
    whole = layout.pp * layout.cp * layout.tp * layout.dp_replicate
    if layout.dp_shard is not None:
        message = f"`dp_shard: {layout.dp_shard}` holds for one number of nodes, and the job may run on {fewest} to {job.nodes}"
        yield Problem("HW435", JOB, ("layout", "dp_shard"), message, "leave it out: it is what the nodes leave")
    elif procs % whole:
        message = f"groups of {whole} ranks are not whole on every number of nodes from {fewest} to {job.nodes}: a node has {procs} ranks"
        yield Problem("HW435", JOB, place, message, f"use degrees whose product divides {procs}, or one number of nodes")


def _check_degrees(job: TrainingJob, cluster: Cluster) -> Iterator[Problem]:
    group = _group(job, cluster)
    if group is None:
        return
    world_size = _world_size(job, cluster)
    try:
        resolve_mesh(job.layout, world_size)
    except MeshError as error:
        axis, hint = _culprit(job.layout, world_size, job.nodes, group)
        if axis == "dp_shard" and not _is_whole_with(job, world_size):
            whole = _most_whole(job, group, group.count - group.held_back)
            hint = hint if whole is None else f"write `nodes: {whole}`, which the layout and the batch divide"
        ranks = f"{counted(job.nodes, 'node')} of {counted(world_size // job.nodes, 'rank')} on `{cluster.name}`"
        yield Problem("HW301", JOB, ("layout", axis), f"{error}: {ranks}", hint)


def _check_batch(job: TrainingJob, cluster: Cluster) -> Iterator[Problem]:
    mesh = _mesh(job, cluster)
    if mesh is None:
        return
    for path, batch in batches(job):
        replicas = mesh.dp_replicate * mesh.dp_shard
        step, sequences = batch.micro_sequences * replicas, global_sequences(batch)
        if sequences % step and _is_whole(batch):
            message = f"the global batch of {counted(sequences, 'sequence')} is not a multiple of `micro` x data-parallel ranks = {step}"
            found = f"{message} ({batch.micro_sequences} x {replicas} on `{cluster.name}`)"
            above = -(-sequences // step) * step
            least = sequences // replicas
            whole = [each for each in range(1, batch.micro_sequences) if least and least % each == 0]
            # The smallest first: what a rank has memory for is not known here.
            smaller = f"set `micro` to {listed_numbers(whole)}; or, " if whole and sequences % replicas == 0 else ""
            hint = f"{smaller}the nearest multiple is {counted(above, 'sequence')}" + (
                f" or {above - step}" if above > step else ""
            )
            if job.gpus is not None and job.gpus & (job.gpus - 1):
                halves, doubled = 1 << (job.gpus.bit_length() - 1), 1 << job.gpus.bit_length()
                group = _group(job, cluster)
                most = group.gpus if group is not None and group.gpus else halves
                fitting = [each for each in (doubled, halves) if each <= most and not sequences * job.gpus % (step * each)]
                hint = f"write `gpus: {fitting[0]}`; or, {hint}" if fitting else hint
            is_micro = smaller and batch.micro_sequences > least and path == ("batch", "global")
            yield Problem("HW305", JOB, ("batch", "micro") if is_micro else path, found, hint)


def _is_whole(batch: Batch) -> bool:
    """Return whether the batch is whole sequences; the number of sequences is rounded else."""
    return (batch.global_batch.tokens or 0) % batch.sequence_length == 0


def _check_layout(job: Parsed[TrainingJob], cluster: Parsed[Cluster]) -> Iterator[Problem]:
    """Check the groups of ranks that the layout makes of the job's nodes; the model's sizes count as far as they are known."""
    if not job.has(("group", "nodes", "gpus", "layout", "resilience")) or not cluster.has(("name", "node_groups")):
        return
    group, mesh = _group(job.spec, cluster.spec), _mesh(job.spec, cluster.spec)
    sizes = sizes_of(job)
    if mesh is not None:
        yield from check_mesh(job.spec.layout, mesh, sizes, job.spec.batch if job.has(("batch",)) else None)
    if mesh is not None and job.has(("batch", "trainer")) and job.spec.batch is not None and job.spec.trainer.kind == "script":
        yield from check_idle_stages(job.spec.layout, mesh, job.spec.batch)
    if group is not None:
        yield from check_domains(job.spec, group, sizes)


def _check_storage(job: TrainingJob, cluster: Cluster) -> Iterator[Problem]:
    group = _group(job, cluster)
    if group is not None:
        yield from check_reach(job, cluster, group)


def _check_cost(job: TrainingJob, cluster: Cluster) -> Iterator[Problem]:
    """Report that spares are held, and cost, from the start."""
    group, time, limit = _group(job, cluster), job.limits.attempt.time, job.limits.attempt.gpu_hours
    gpus = 0 if group is None or group.gpus is None else (job.nodes + job.resilience.spares) * group.gpus
    whole = job.limits.run.gpu_hours
    if time is not None and whole is not None and gpus * time > _MUCH_MORE * whole * 3600:
        message = (
            f"one attempt of {write_parts(time)} on {gpus} GPUs of `{cluster.name}` uses {gpus * time / 3600:,.0f} GPU-hours, and "
            f"the whole run ends after {whole:,.0f}"
        )
        longest = whole * 3600 // gpus
        hint = (
            f"set `gpu_hours` to what all attempts need, more than {gpus * time / 3600:.0f}, or an attempt's `time` to less than "
        )
        hint += write_parts(longest // 3600 * 3600 or longest)
        yield Problem("HW708", JOB, ("limits", "run", "gpu_hours"), message, hint, Severity.WARNING)
    if time is None or limit is None or gpus * time <= limit * 3600:
        return
    message = (
        f"{gpus} GPUs of `{cluster.name}` for {write_parts(time)} are {gpus * time / 3600:,.10g} "
        f"GPU-hours, but one attempt may use at most {limit:,.10g}"
    )
    longest = limit * 3600 // gpus // 60 * 60
    needed = f"set `gpu_hours: {gpus * time / 3600:.10g}`"
    hint = (
        f"use at most `time: {write_parts(longest)}`, or fewer nodes; or {needed}"
        if longest
        else "use fewer nodes, or raise the limit"
    )
    yield Problem("HW417", JOB, ("limits", "attempt", "gpu_hours"), message, hint)


def _check_budget(job: TrainingJob, cluster: Cluster) -> Iterator[Problem]:
    """Warn of a budget of restarts that the failures of one attempt use up many times: the run ends at the first of them."""
    restart, time, mtbf_s = job.resilience.restart, job.limits.attempt.time, cluster.failures.node_mtbf
    stated = restart.model_fields_set & {"budget", "refill_steps"}
    # A node that fails within hours is a problem of its own.
    if time is None or mtbf_s is None or mtbf_s < _SHORTEST_MTBF_S or job.steps is None or not stated:
        return
    # All that the run could ever have, against the failures of one attempt.
    restarts, failures = restart.budget + job.steps // restart.refill_steps * (restart.budget > 0), time * job.nodes / mtbf_s
    if failures < _FAR_MORE * max(restarts, 1):
        return
    every = write_parts(max(60, int(mtbf_s / job.nodes) // 60 * 60))
    message = (
        f"{job.nodes} nodes lose one every {every}: about {failures:.0f} times in an attempt of {write_parts(time)}, but the "
    )
    message += f"run has {counted(restarts, 'restart')}"
    field = "budget" if "budget" in stated and restart.budget * _FAR_MORE < failures else "refill_steps"
    enough = 10 * ceil(failures / 10)
    hint = f"use for example `budget: {enough}`" + (
        ", with fewer `refill_steps`" if "refill_steps" in stated and restart.refill_steps > _REFILL_STEPS else ""
    )
    yield Problem("HW708", JOB, ("resilience", "restart", field), message, hint, Severity.WARNING)


def _group(job: TrainingJob, cluster: Cluster) -> NodeGroup | None:
    """Return the job's group of nodes; None when the cluster has none of that name."""
    groups = {nodes.name: nodes for nodes in cluster.node_groups}
    group = cluster.node_groups[0] if job.group is None else groups.get(job.group)
    if group is not None and group.gpu is not None and group.gpus is None:
        # How many is a problem of the cluster's document.
        return None
    return None if group is None else part_of_nodes(group, job.gpus)


def _world_size(job: TrainingJob, cluster: Cluster) -> int:
    group = _group(job, cluster)
    return 0 if group is None else job.nodes * procs_per_node(group)


def _mesh(job: TrainingJob, cluster: Cluster) -> Mesh | None:
    """Return the job's mesh on the cluster; None when there is none."""
    world_size = _world_size(job, cluster)
    try:
        return resolve_mesh(job.layout, world_size) if world_size else None
    except MeshError:
        return None


def _more_nodes(degrees: Mapping[str, int], world_size: int, nodes: int, group: NodeGroup) -> str:
    """Return the number of nodes that has as many ranks as the degrees, if they are whole nodes of the group and more than there are."""
    ranks, product = world_size // nodes, prod(degrees.values())
    fits = product > world_size and product % ranks == 0 and product // ranks <= group.count - group.held_back
    return f"; or, for these degrees, write `nodes: {product // ranks}`" if fits else ""


def _culprit(layout: Layout, world_size: int, nodes: int, group: NodeGroup) -> tuple[str, str]:
    """Return the degree to change, if one is enough `dp_shard` or else the largest, and the remedy."""
    degrees = {axis: degree for axis, degree in layout.model_dump(include=set(Mesh().axes)).items() if degree is not None}
    others = {axis: prod(degrees.values()) // degree for axis, degree in degrees.items()}
    alone = [axis for axis in degrees if world_size % others[axis] == 0 and (degrees[axis] > 1 or axis == "dp_shard")]
    if "dp_shard" in alone:
        more = _more_nodes(degrees, world_size, nodes, group)
        return "dp_shard", f"leave `dp_shard` out, or set it to {world_size // others['dp_shard']}{more}"
    axis = max(alone or degrees, key=lambda name: degrees[name])
    if not alone:
        ranks, product = world_size // nodes, prod(degrees.values())
        fewer = (
            f"write `nodes: {product // ranks}`, or "
            if product % ranks == 0 and product // ranks <= group.count - group.held_back
            else ""
        )
        return axis, f"{fewer}choose degrees whose product {'divides' if layout.dp_shard is None else 'is'} {world_size}"
    left = world_size // others[axis]
    numbers = divisors(left) if layout.dp_shard is None else [left]
    if axis == "tp" and group.gpus is not None:
        domains = Domains(domain_of(group), group.gpus, group.count)
        numbers = [number for number in numbers if not domains.are_crossed_by(number)] or numbers
    if axis in ("pp", "dp_replicate") and layout.ep and layout.dp_shard is None:
        # `ep` folds over the ranks that remain (check/layout.py).
        rest = left * layout.cp * layout.tp
        numbers = [number for number in numbers if (rest // number) % layout.ep == 0] or numbers
    fitting = listed_numbers(numbers)
    return axis, f"if the others stay the same, `{axis}` can be {fitting}"


def _check_format(job: TrainingJob, cluster: Cluster) -> Iterator[Problem]:
    """Check that the GPUs support the format of the matrices."""
    group, compute = _group(job, cluster), job.precision.compute
    gpu = None if group is None else gpu_of(group)
    if gpu is None or compute is None or gpu.supports(compute):
        return
    message = f"`{gpu.name}` ({gpu.arch}) does not support {compute}"
    able = listed(each for each in ("fp8", "bf16") if gpu.supports(each))
    yield Problem("HW325", JOB, ("precision", "compute"), message, f"use {able}, or GPUs of a later generation")


_Rule = Callable[[TrainingJob, Cluster], Iterator[Problem]]
_RULES: tuple[tuple[tuple[str, ...], tuple[str, ...], _Rule], ...] = (
    (("group",), ("name", "node_groups"), _check_group),
    (("group", "gpus"), ("name", "node_groups"), _check_gpus),
    (("group", "nodes", "resilience"), ("name", "node_groups"), _check_nodes),
    (("group", "nodes", "min_nodes", "gpus", "layout", "trainer"), ("name", "node_groups", "scheduler"), _check_range),
    (("group", "nodes", "gpus", "layout"), ("name", "node_groups"), _check_degrees),
    (("group", "nodes", "gpus", "layout", "batch", "history"), ("name", "node_groups"), _check_batch),
    (("group", "precision"), ("name", "node_groups"), _check_format),
    (("group", "checkpoint"), ("name", "node_groups", "storage"), _check_storage),
    (("group", "nodes", "gpus", "limits", "resilience"), ("name", "node_groups"), _check_cost),
    (("nodes", "limits", "resilience", "steps"), ("failures",), _check_budget),
)
