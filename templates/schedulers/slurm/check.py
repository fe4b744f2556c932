"""Reports what Slurm cannot do with a plan."""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping

from headway.jobspec.check.job import is_image_file
from headway.jobspec.check.multiples import listed_numbers, nearest_multiples
from headway.jobspec.check.names import group_hint
from headway.jobspec.check.shell_lines import check_shell
from headway.jobspec.document import Path
from headway.jobspec.notation import counted, write_duration
from headway.jobspec.plan import ClusterPlan, GroupPlan, JobPlan
from headway.jobspec.problem import CLUSTER, JOB, Problem, Severity
from headway.jobspec.spec.scheduling import ALL, ANY, SlurmAllow, SlurmRequest
from headway.templates.schedulers.containers import (
    IMAGE,
    check_hidden,
    check_mounts_in_place,
    check_no_image,
    check_secret_sources,
    check_steps,
    check_variables,
)
from headway.templates.schedulers.requests import (
    check_memory_of_groups,
    check_memory_of_node,
    check_request,
    own_option,
    place_of,
    request_of,
)
from headway.templates.schedulers.slurm import apptainer, pyxis
from headway.templates.schedulers.slurm.node_names import counted_up_to, names_in_slurm, with_count
from headway.templates.schedulers.slurm.options import SlurmOptions
from headway.templates.schedulers.slurm.placement import crossing_group, leaf_nodes

# Options of sbatch that the batch script sets itself, and the field that sets each of them, if there is one.
_OF_SBATCH = {
    "account": "account",
    "array": None,
    "constraint": "constraint",
    "cpus-per-task": None,
    "dependency": "dependency",
    "exclude": "exclude",
    "exclusive": "exclusive",
    "export": None,
    "export-file": None,
    "gpus-per-node": None,
    "job-name": None,
    "mem": "memory",
    "mem-per-cpu": "memory",
    "mem-per-gpu": "memory",
    "nice": "nice",
    "no-requeue": None,
    "nodes": None,
    "ntasks": None,
    "ntasks-per-node": None,
    "open-mode": None,
    "output": None,
    "partition": "partition",
    "qos": "qos",
    "requeue": None,
    "reservation": "reservation",
    "segment": None,
    "signal": None,
    "time": None,
    "wrap": None,
}
# Fields of a job that set an option of sbatch, where they are not among those of the scheduler.
_OF_JOBS: Mapping[str, str] = {
    "gpus-per-node": "gpus",
    "job-name": "name",
    "nodes": "nodes",
    "time": "limits.attempt.time",
}
# Options of srun that decide which processes start, where, and with which variables.
_OF_SRUN = (
    "chdir",
    "container-env",
    "container-image",
    "container-mounts",
    "container-workdir",
    "cpus-per-task",
    "export",
    "job-name",
    "kill-on-bad-exit",
    "multi-prog",
    "no-container-mount-home",
    "no-kill",
    "nodelist",
    "nodes",
    "ntasks",
    "ntasks-per-node",
    "overlap",
    "relative",
    "wait",
)
# Options of `apptainer exec` that decide what of the node is in the container, and with which variables.
_OF_APPTAINER = (
    "bind",
    "cleanenv",
    "compat",
    "contain",
    "containall",
    "cwd",
    "env",
    "env-file",
    "home",
    "mount",
    "net",
    "no-env",
    "no-eval",
    "no-home",
    "nv",
    "pwd",
    "rocm",
)
_CONTAINED = (
    "the ranks need the shared memory and the devices of the node, and the variables of the batch script",
    "leave it out: a job's container does not have the user's home, and `unset NAME` in `setup` of the job removes a variable",
)
_WHY = {
    "cleanenv": _CONTAINED,
    "compat": _CONTAINED,
    "contain": _CONTAINED,
    "containall": _CONTAINED,
    "net": ("the ranks need the network of the node", "leave it out"),
    "bind": ("the script mounts what the job names", "use `mounts` of the job"),
    "mount": ("the script mounts what the job names", "use `mounts` of the job"),
    "env": ("other users can see the command line, and the variables in it", "use `environment` or `secrets` of the job"),
    "env-file": ("a job has its variables in its document", "use `environment` or `secrets` of the job"),
    "array": ("every task of an array would train the same spec", "use `sweep` in the job for runs with different values"),
    "export": ("the ranks need the variables of the batch script", "set variables in `environment` of the job"),
}
# An example of an image, by what starts containers.
_IMAGES = {"pyxis": "/images/train.sqsh", "apptainer": "/images/train.sif"}
_HINT = "leave it out; set what a job asks for in the job, and the rest in the other options of its cluster"


def check(options: SlurmOptions, plan: JobPlan, cluster: ClusterPlan) -> Iterator[Problem]:
    """Yield problems with containers that nothing starts, impossible mounts, and groups of ranks that Slurm does not
    keep together."""
    asked = request_of(plan)
    own = [
        *_check_further(JOB, place_of(plan, "sbatch"), asked.get("sbatch", ()), _OF_SBATCH, options.allow),
        *_check_further(JOB, place_of(plan, "srun"), asked.get("srun", ()), _OF_SRUN, options.allow),
        *_check_further(JOB, place_of(plan, "apptainer"), asked.get("apptainer", ()), _OF_APPTAINER, options.allow),
    ]
    # What no job may set is not to be allowed either.
    places = {problem.path for problem in own}
    yield from own
    yield from (problem for problem in check_request(plan, options.allow) if problem.path not in places)
    yield from check_memory_of_node(options.memory, plan, cluster)
    yield from _check_part(options, plan)
    yield from _check_grace(options, plan)
    yield from _check_segment(options, plan, cluster)
    if "apptainer" in asked and (options.containers != "apptainer" or plan.code["image"] is None):
        message = f"`apptainer` has no effect: `{plan.cluster}` does not start this job by Apptainer"
        hint = "leave it out, or set `code.image` on a cluster with `containers: apptainer`"
        yield Problem("HW210", JOB, place_of(plan, "apptainer"), message, hint, at_key=True)
    if options.containers is None:
        hint = (
            "if the nodes have pyxis or Apptainer, add `containers: pyxis`, or `containers: apptainer` with an `image_cache`, to the "
            "cluster's `scheduler.options`; else leave `image` out"
        )
        yield from check_no_image(plan, "its Slurm options do not set `containers`", hint)
    elif plan.code["image"] is not None:
        yield from _check_image(options, plan, plan.code["image"])
        yield from _check_paths(options, plan, cluster)
        yield from _check_mounts(plan)
        if options.containers == "apptainer":
            yield from _check_own_variables(plan)
    if plan.code["image"] is None:
        yield from check_mounts_in_place(plan, _IMAGES.get(options.containers or ""))
    yield from check_variables(plan)
    yield from check_secret_sources(plan)
    yield from _check_topology(options, plan, cluster)


def _check_topology(options: SlurmOptions, plan: JobPlan, cluster: ClusterPlan) -> Iterator[Problem]:
    """Warn about blocks of NVLink domains where each domain is in one node."""
    if options.topology == "block" and not any(group.nvlink_domain > group.gpus > 0 for group in cluster.groups):
        message = f"`topology: block` has no effect: no NVLink domain of `{plan.cluster}` spans several nodes"
        hint = "leave it out, or set `nvlink_domain` and `imex` of the group whose racks have one"
        yield Problem("HW210", CLUSTER, ("scheduler", "options", "topology"), message, hint, Severity.WARNING, at_key=True)


def check_options(options: SlurmOptions) -> Iterator[Problem]:
    """Check the further options of sbatch and srun, and those that need another."""
    own: Path = ("scheduler", "options")
    if options.image_cache is not None and options.containers is None:
        message = "`image_cache` has no effect: without `containers`, no job has an image"
        hint = "add `containers: pyxis` or `containers: apptainer`, whichever the nodes have, or leave `image_cache` out"
        yield Problem("HW210", CLUSTER, (*own, "image_cache"), message, hint, at_key=True)
    if options.apptainer and options.containers != "apptainer":
        message = "`apptainer` has no effect without `containers: apptainer`"
        hint = "set `containers: apptainer` if the nodes have Apptainer, or leave `apptainer` out"
        yield Problem("HW210", CLUSTER, (*own, "apptainer"), message, hint, at_key=True)
    for name in ("leaf_nodes", "switch_wait"):
        if getattr(options, name) is not None and options.topology != "tree":
            message = f"`{name}` has no effect without `topology: tree`"
            hint = f"set `topology: tree` if Slurm has topology/tree, or leave `{name}` out"
            yield Problem("HW210", CLUSTER, (*own, name), message, hint, at_key=True)
    for name, allowed in () if options.allow is None else options.allow:
        if allowed in ALL:
            message = f"`allow.{name}` allows the value `{allowed[0]}` only, and the word for every value is `{ANY}`"
            yield Problem("HW210", CLUSTER, (*own, "allow", name), message, f"write `{ANY}`", fix=ANY)
    yield from _check_further(CLUSTER, (*own, "directives"), options.directives, _OF_SBATCH)
    yield from _check_further(CLUSTER, (*own, "srun"), options.srun, _OF_SRUN)
    yield from _check_further(CLUSTER, (*own, "apptainer"), options.apptainer, _OF_APPTAINER)
    yield from check_shell(CLUSTER, (*own, "setup"), options.setup)
    yield from check_shell(CLUSTER, (*own, "login", "setup"), () if options.login is None else options.login.setup)
    for index, line in enumerate(options.setup):
        if line.split()[:1] == ["source"]:
            message = "the batch script is POSIX shell, in which `source` is no command (dash, Debian's and Ubuntu's `sh`)"
            hint = "write `.` in its place, with a path that has a `/`"
            yield Problem("HW210", CLUSTER, (*own, "setup", index), message, hint)


def _check_further(
    document: str, place: Path, given: Iterable[str], own: Collection[str], allow: SlurmAllow | None = None
) -> Iterator[Problem]:
    """Report options that the batch script sets itself; a job has only those that the cluster allows, if it lists them."""
    for index, option in enumerate(given):
        if re.match(r"--gres=(?:.*,)?gpu\b", option):
            message = "the batch script asks for the GPUs itself, and `--gres` would ask for them again"
            yield Problem(
                "HW210", document, (*place, index), message, "leave it out, and set `gpus` in the job for a part of a node"
            )
            continue
        name = own_option(option, own)
        if name is None:
            continue
        last = "" if own is _OF_APPTAINER else ", and Slurm would use the last of two"
        message, hint = f"`--{name}` is set by the batch script itself{last}", _HINT
        if name in _WHY:
            why, hint = _WHY[name]
            message = f"`--{name}` is not supported: {why}"
        elif isinstance(own, Mapping) and own[name] is not None:
            where = "`scheduler.options` of the cluster"
            if document == JOB and own[name] in SlurmRequest.model_fields:
                where = "`scheduler.slurm`"
            hint = f"leave it out, and set `{own[name]}` under {where}"
            if document == JOB and allow is not None and not getattr(allow, str(own[name]), True):
                hint = f"leave it out: the cluster's `allow` does not let jobs set `{own[name]}`"
        elif name in _OF_JOBS:
            hint = f"leave it out, and set `{_OF_JOBS[name]}` in the job"
        yield Problem("HW210", document, (*place, index), message, hint)


def _check_part(options: SlurmOptions, plan: JobPlan) -> Iterator[Problem]:
    """Check that Slurm gives out parts of nodes."""
    if options.exclusive and not plan.has_whole_nodes:
        found = f"{plan.gpus_per_slot} of {plan.gpus_per_node} GPUs"
        message = f"`{plan.cluster}` gives jobs whole nodes (`exclusive`), and this one uses {found}"
        hint = (
            "leave `gpus` out, or have the cluster's owner remove `exclusive`: jobs with all GPUs of a node have it alone anyway"
        )
        yield Problem("HW434", JOB, ("gpus",), message, hint)


def _check_grace(options: SlurmOptions, plan: JobPlan) -> Iterator[Problem]:
    """Slurm asks with SIGTERM and kills after KillWait, except at a time limit, before which `--signal` asks earlier."""
    grace = plan.run.grace_s
    if grace > options.kill_wait:
        message = (
            f"a requeue, a preemption or scancel kills the job after {write_duration(options.kill_wait)} (`KillWait` of "
            f"slurm.conf), before its grace of {write_duration(grace)} is over"
        )
        hint = (
            f"raise `KillWait` in slurm.conf and set `kill_wait` under `scheduler.options` of the cluster, or use a grace of "
            f"at most {write_duration(options.kill_wait)}"
        )
        yield Problem("HW430", JOB, ("resilience", "grace"), message, hint, Severity.WARNING)


def _check_segment(options: SlurmOptions, plan: JobPlan, cluster: ClusterPlan) -> Iterator[Problem]:
    if options.topology == "tree":
        yield from _check_switches(options, plan, cluster)
    if plan.segment_nodes is None or (options.topology == "tree" and leaf_nodes(options, cluster) is None):
        return
    if options.topology == "block":
        yield from _check_whole_segments(plan, plan.segment_nodes, cluster.group(plan.group))
        return
    layout = plan.spec["layout"]
    axis = "tp" if layout["tp"] > cluster.group(plan.group).gpus else "ep"
    message = (
        f"groups of {layout[axis]} ranks need {plan.segment_nodes} nodes of one NVLink domain, but Slurm is not asked for them"
    )
    hint = (
        "if Slurm 24.05 or newer has topology/block with a block per domain, add `topology: block` to the cluster's "
        "`scheduler.options`: jobs then request segments"
    )
    yield Problem("HW425", JOB, ("layout", axis), message, hint, Severity.WARNING)


def _check_switches(options: SlurmOptions, plan: JobPlan, cluster: ClusterPlan) -> Iterator[Problem]:
    """Check that the nodes below a leaf switch are known, and that groups of ranks which span nodes stay below one."""
    path: Path = ("scheduler", "options", "topology")
    if leaf_nodes(options, cluster) is None:
        message = f"`{cluster.name}` has no switches in its plan, so no job can ask for the fewest leaf switches that hold it"
        hint = "set `leaf_nodes` to the nodes below one leaf switch, or leave `topology` out"
        if plan.segment_nodes is not None:
            hint = "write `block`, which keeps jobs in NVLink domains, if Slurm has topology/block; else leave `topology` out"
        yield Problem("HW425", CLUSTER, path, message, hint, Severity.WARNING)
    if (crossing := crossing_group(options, plan, cluster)) is not None:
        axis, ranks, below = crossing
        message = (
            f"groups of {ranks} ranks may be placed across leaf switches: {plan.nodes} nodes do not fit below one of {below} nodes, "
            f"and Slurm's topology/tree does not keep groups together"
        )
        hint = f"use a multiple of {below} nodes, which fill whole leaf switches, if groups of {ranks} ranks fill them exactly"
        yield Problem("HW425", JOB, ("layout", axis), message, hint, Severity.WARNING)


def _check_whole_segments(plan: JobPlan, segment: int, group: GroupPlan) -> Iterator[Problem]:
    """Check that the job's own nodes are whole segments, since they hold whole groups of ranks; spares need not be."""
    if plan.nodes % segment:
        message = (
            f"{plan.slots} nodes and {plan.spares} spares are not a multiple of the {segment} nodes that come from "
            f"one NVLink domain together, and Slurm accepts `--segment` only if it divides the nodes"
        )
        room = group.count - group.held_back
        fitting = [count for count in nearest_multiples(plan.nodes, segment) if plan.slots <= count <= room]
        nearest = listed_numbers([count - plan.slots for count in fitting or [plan.slots]])
        yield Problem("HW428", JOB, ("resilience", "spares"), message, f"set the spares to {nearest}")


def check_cluster(options: SlurmOptions, cluster: ClusterPlan) -> Iterator[Problem]:
    """Yield problems with Slurm's names of the nodes: other groups, other numbers of nodes, and a name of two nodes."""
    yield from check_memory_of_groups(options.memory, cluster)
    groups = {group.name: group.count for group in cluster.groups}
    found = []
    for name, names in options.node_names.items():
        path: Path = ("scheduler", "options", "node_names", name)
        if name not in groups:
            message = f"`{name}` is not a group of nodes of `{cluster.name}`"
            near = group_hint(name, {group.name: group.gpu is not None for group in cluster.groups})
            found.append(Problem("HW437", CLUSTER, path, message, near.text, at_key=True, fix=near.fix))
        elif (listed := counted_up_to(names, groups[name])) != groups[name]:
            said = f"{listed}" if listed <= groups[name] else "more"
            message = f"`{names}` has {said} names, but `{name}` has {counted(groups[name], 'node')}"
            fitting = with_count(names, groups[name])
            hint = "name each node of the group once, in the plan's order"
            if fitting is not None:
                hint = f"write `{fitting}`, or `count` of the group as it is" if listed > groups[name] else f"write `{fitting}`"
            found.append(Problem("HW437", CLUSTER, path, message, hint))
    yield from found
    if not found and options.node_names:
        twice = [name for name, count in Counter(names_in_slurm(cluster, options.node_names).values()).items() if count > 1]
        if twice:
            message = f"`{twice[0]}` is the name of two nodes"
            yield Problem("HW437", CLUSTER, ("scheduler", "options", "node_names"), message, "give each node a name of its own")


def _check_image(options: SlurmOptions, plan: JobPlan, image: str) -> Iterator[Problem]:
    is_pyxis = options.containers == "pyxis"
    if is_pyxis and image.endswith(apptainer.SUFFIX):
        message = f"`{image}` is an Apptainer image, but pyxis starts enroot images (`.sqsh`) and images of registries"
        yield Problem("HW422", JOB, IMAGE, message, "make one with `enroot import`, or set the image's digest in its registry")
    elif not is_pyxis and image.endswith(pyxis.SUFFIX):
        message = f"`{image}` is an enroot image, whose variables Apptainer does not set"
        hint = "make a `.sif` file with `apptainer pull`, or set the image's digest in its registry"
        yield Problem("HW422", JOB, IMAGE, message, hint)
    elif not is_pyxis and not is_image_file(image) and options.image_cache is None:
        message = f"each node of `{plan.cluster}` would pull the image at each attempt, all into the user's home"
        hint = (
            "have the cluster's owner set `image_cache`, a directory on a disk of each node, or make a `.sif` file with "
            "`apptainer pull` and write its path"
        )
        yield Problem("HW422", JOB, IMAGE, message, hint)


def _check_own_variables(plan: JobPlan) -> Iterator[Problem]:
    """Report variables that no container of Apptainer gets from outside."""
    names: list[tuple[Path, str]] = [(("environment", name), name) for name in plan.spec["environment"]]
    names += [(("secrets", index), secret["name"]) for index, secret in enumerate(plan.spec["secrets"])]
    for path, name in names:
        if name in apptainer.OWN_VARIABLES:
            message = f"`{name}` is set by Apptainer itself in each container"
            yield Problem("HW418", JOB, path, message, f"leave it out, or write `export {name}=...` in `setup`", at_key=True)
        elif name.startswith(apptainer.OWN_PREFIXES):
            message = f"`{name}` is a setting of Apptainer, which starts the container before the ranks have their variables"
            hint = f"write `export {name}=...` in `scheduler.options.setup` of the cluster"
            yield Problem("HW418", JOB, path, message, hint, at_key=True)


def _check_mounts(plan: JobPlan) -> Iterator[Problem]:
    """Check the mounts. The runs' directory may be inside another mount, from the same place and writable."""
    for index, mount in enumerate(plan.mounts):
        yield from check_steps(("mounts", index, "source"), mount.source)
        yield from check_steps(("mounts", index, "target"), mount.target)
        same = mount.source.rstrip("/") == mount.target.rstrip("/") and not mount.read_only
        yield from check_hidden(plan, index, *(() if same else (plan.runs,)))


def _check_paths(options: SlurmOptions, plan: JobPlan, cluster: ClusterPlan) -> Iterator[Problem]:
    name, separators, others = ("pyxis", pyxis.SEPARATORS, "commas, colons and spaces")
    if options.containers == "apptainer":
        name, separators, others = ("Apptainer", apptainer.SEPARATORS, "commas, colons and backslashes")
    runs = ("storage", [storage.path for storage in cluster.storage].index(plan.runs), "path")
    places: list[tuple[str, Path, str]] = [(CLUSTER, runs, plan.runs)]
    for index, mount in enumerate(plan.mounts):
        places += [(JOB, ("mounts", index, "source"), mount.source), (JOB, ("mounts", index, "target"), mount.target)]
    for document, path, place in places:
        if found := separators.search(place):
            message = f"`{place}` cannot be mounted: {name} ends a path at `{found[0]}`"
            yield Problem("HW423", document, path, message, f"use a path without {others}")
