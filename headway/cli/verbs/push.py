"""`headway push CLUSTER`: brings Linux switches that run FRR to their rendered configuration, one by one, and back where that fails."""

import argparse
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from msgspec import Struct

from headway.cli.hosts import ask, check_consent
from headway.cli.site import stopping
from headway.cli.terminal import StopError, progress
from headway.cli.views.problems import print_problems
from headway.cli.views.push import PushView
from headway.compile import PlannedCluster, compile_documents
from headway.infra.push.protection import NONE_IN_USE, FabricTree, NodesInUse, cut_off, protected
from headway.infra.push.running_jobs import read_in_use
from headway.infra.reach import Reach, SshError
from headway.infra.submit.shell import CommandError
from headway.infra.submit.site import SiteError, opened
from headway.jobspec.plan import SwitchPlan
from headway.jobspec.suggest import did_you_mean, joined_and, listed_some
from headway.templates.schedulers.slurm.options import SlurmOptions
from headway.templates.switches import SWITCHES
from headway.templates.switches.frr.change import change, value_of, with_site_lines
from headway.templates.switches.frr.options import FrrOptions
from headway.templates.switches.frr.touch import Touch, touches

if TYPE_CHECKING:
    from headway.infra.push.switch import PushTimes, SwitchReading

_OS = "frr"
_UNDO_S, _LEAST_UNDO_S, _MOST_UNDO_S = 180, 30, 3600
# In which BGP and BFD come up again, and how long they must last beyond the hold time.
_SETTLE_S, _LAST_S, _MOST_LAST_S = 60.0, 3.0, 33.0
# The hold time that the least time until the undo is for.
_USUAL_HOLD_S = 9
_MOST_SHOWN = 10


class PushTarget(Struct, frozen=True):
    """A switch to be pushed to: how it is reached, its rendered `frr.conf`, and the options that it was rendered with."""

    switch: SwitchPlan
    reach: Reach
    rendered: str
    options: FrrOptions

    @property
    def name(self) -> str:
        return self.switch.name


class _Due(Struct, frozen=True):
    """A switch that differs: its reading, the configuration that it is to have, and what the difference touches."""

    target: PushTarget
    before: "SwitchReading"
    text: str
    touches: Sequence[Touch]


class _Push(Struct, frozen=True):
    """One call of the verb: the cluster, its switches as a tree, the options, and where results are shown."""

    planned: PlannedCluster
    tree: FabricTree
    args: argparse.Namespace
    view: PushView


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("cluster", type=Path, metavar="CLUSTER", help="a Cluster document, with its inventories next to it")
    add("--switch", action="append", default=[], metavar="NAME", help="only this switch; repeatable (default: all that run FRR)")
    add("--diff", action="store_true", help="change nothing: print the differences, and exit with 1 if there are any")
    add("--yes", action="store_true", help="skip the confirmation (required without a terminal)")
    add(
        "--no-running-jobs",
        action="store_true",
        help="you state that no job runs on any node of the cluster and none starts; headway then does not ask the scheduler",
    )
    help_text = "time after which a switch undoes an unconfirmed push by itself (default: %(default)s)"
    add("--undo-after", type=int, default=_UNDO_S, metavar="SECONDS", help=help_text)
    add("--json", action="store_true", help="print the result for each switch as a JSON list; differences then go to stderr")
    parser.epilog = (
        "Exits with 0 if every switch is as rendered, with 1 if one differs (--diff) or was not changed, with 2 for mistakes in "
        "the documents, with 3 if a switch or the scheduler does not answer."
    )


def run(args: argparse.Namespace) -> int:
    """0; 1 for differences, a refusal and an undone push, 2 for mistakes in documents and options, 3 for what does not answer."""
    view = PushView(args.json)
    code = stopping(lambda: _push(args, view))
    view.print_json()
    return code


def _push(args: argparse.Namespace, view: PushView) -> int:
    if not args.diff:
        check_consent(args.yes)
    if not _LEAST_UNDO_S <= args.undo_after <= _MOST_UNDO_S:
        raise StopError(2, f"`--undo-after {args.undo_after}`: expected {_LEAST_UNDO_S} to {_MOST_UNDO_S} seconds")
    planned = _planned(args.cluster)
    tree = FabricTree(planned.plan)
    this = _Push(planned, tree, args, view)
    targets = _targets(planned, args.switch, tree)
    for target in targets:
        if args.undo_after < (least_s := round(_lasting_s(target) + _LEAST_UNDO_S - _LAST_S - _USUAL_HOLD_S)):
            message = f"the sessions of {target.name} are watched for {_lasting_s(target):g} s, by BGP's hold time"
            raise StopError(2, f"`--undo-after {args.undo_after}`: {message}; set {least_s} or more")
    progress(f"reading {_switches(len(targets))}")
    readings = _readings(targets, may_recover=not args.diff)
    due = [found for target in targets if (found := _due(target, readings[target.name], view)) is not None]
    if args.diff:
        return 1 if due else 0
    if not due:
        print(f"{_switches(len(targets))} checked, none to be changed", file=sys.stderr)
        return 0
    established = {name: reading.sessions.bgp for name, reading in readings.items()}
    established |= _sessions_of_partners(planned, tree, [each.target.name for each in due], targets)
    _check(this, due, established)
    if not args.yes:
        ask(f"change {_switches(len(due))}, one at a time?")
    return _change_all(this, due, established)


def _switches(count: int) -> str:
    return f"{count} switch{'' if count == 1 else 'es'}"


# --- the documents ----------------------------------------------------------------------------------------------------


def _planned(file: Path) -> PlannedCluster:
    """The cluster. Raises StopError with 2 for mistakes, so that 1 stays the code of a difference."""
    compiled = compile_documents([file], kinds=("Cluster",))
    print_problems(compiled.problems, sys.stderr, warnings=False)
    if compiled.problems.errors:
        raise StopError(2)
    if importlib.util.find_spec("paramiko") is None:
        raise StopError(3, "this needs paramiko; install headway with its extra `infra`")
    return compiled.clusters[0]


def _targets(planned: PlannedCluster, names: Sequence[str], tree: FabricTree) -> list[PushTarget]:
    """The chosen switches, in the order in which they are changed. Raises StopError with 2."""
    plan = planned.plan
    for name in names:
        if name not in tree.switches:
            raise StopError(
                2, f"`--switch {name}`: there is no such switch; {did_you_mean(name, tree.switches, 'switches').text}"
            )
    chosen = [tree.switches[name] for name in dict.fromkeys(names)] or [
        switch for switch in plan.switches if plan.fabric(switch.fabric).os == (_OS,)
    ]
    for fabric in dict.fromkeys(switch.fabric for switch in chosen or plan.switches):
        if plan.fabric(fabric).os != (_OS,):
            raise StopError(2, _other_system(fabric, plan.fabric(fabric).os))
    if not chosen:
        raise StopError(2, f"`{plan.name}` has no switches; name them in `switches` of its fabric")
    if nowhere := [switch.name for switch in chosen if switch.host is None]:
        raise StopError(2, f"no inventory has the address of {listed_some(nowhere)}; add `host` under `switches` of an Inventory")
    files = planned.files()
    found = []
    for switch in tree.order([switch.name for switch in chosen]):
        rendered = files[PurePosixPath(plan.name, "switches", switch.name, SWITCHES[_OS].file)]
        found.append(PushTarget(switch, _reach(switch, planned), rendered, _options(switch, planned)))
    return found


def _options(switch: SwitchPlan, planned: PlannedCluster) -> FrrOptions:
    options = planned.switches[switch.fabric, _OS]
    return options if isinstance(options, FrrOptions) else FrrOptions()


def _other_system(fabric: str, systems: Sequence[str]) -> str:
    if _OS in systems:
        others = joined_and([f"`{name}`" for name in systems if name != _OS])
        return f"the files of `{fabric}` are for {others} too, and a switch runs one system; keep only `frr` in `switches.os` to push"
    ways = joined_and([f"{SWITCHES[name].title} by {SWITCHES[name].loading}" for name in systems])
    return f"headway pushes to Linux switches with FRR only; load the files of `{fabric}` on {ways}"


def _reach(switch: SwitchPlan, planned: PlannedCluster) -> Reach:
    from headway.infra.push.switch import reach_of  # noqa: PLC0415 (paramiko is an extra)

    try:
        return reach_of(switch, _options(switch, planned).login, Path(planned.document.name).parent)
    except SshError as error:
        raise StopError(2, str(error)) from error


# --- the switches -----------------------------------------------------------------------------------------------------


def _readings(targets: Sequence[PushTarget], may_recover: bool) -> Mapping[str, "SwitchReading"]:
    """Each switch as it is. Raises StopError with 3 if one of them cannot be pushed to."""
    from headway.infra.push.switch import look, look_at_all, recover  # noqa: PLC0415 (paramiko is an extra)

    readings: dict[str, SwitchReading] = {}
    errors = []
    for target, found in zip(targets, look_at_all([target.reach for target in targets]), strict=True):
        reading = found
        if may_recover and not isinstance(reading, SshError) and _is_abandoned(reading):
            try:
                recover(target.reach)
                reading = look(target.reach)
            except SshError as error:
                reading = error
        if isinstance(reading, SshError):
            errors.append(str(reading))
        elif (obstacle := _obstacle(target, reading)) is not None:
            errors.append(f"{target.reach}: {obstacle}")
        else:
            readings[target.name] = reading
    for each in errors:
        print(f"error: {each}", file=sys.stderr)
    if errors:
        raise StopError(3, f"nothing was changed: {_switches(len(targets))} checked, {len(errors)} with errors")
    return readings


def _is_abandoned(reading: "SwitchReading") -> bool:
    earlier = reading.earlier
    return earlier is not None and not earlier.is_alive and earlier.state != "failed"


def _obstacle(target: PushTarget, reading: "SwitchReading") -> str | None:
    """Why nothing can be pushed to the switch, with what to do about it."""
    earlier = reading.earlier
    if earlier is not None and earlier.state == "failed":
        return (
            f"the undo of a push of {earlier.by} has failed; load /run/headway-push/old/frr.conf there by frr-reload.py, and remove "
            "/run/headway-push"
        )
    if earlier is not None and not earlier.is_alive:
        return f"a push of {earlier.by} was broken off, and so was its undo; `headway push` without `--diff` undoes it first"
    if earlier is not None:
        return f"a push of {earlier.by} is not confirmed yet; it ends within {max(0, earlier.left_s)} s, by its confirmation or its undo"
    if reading.obstacle is not None:
        return reading.obstacle
    if reading.host.partition(".")[0] != target.name.partition(".")[0]:
        return (
            f"the host there is called `{reading.host}`, not `{target.name}`; correct the address in the inventory, or the name "
            f"(`hostnamectl set-hostname {target.name}`)"
        )
    profile, wanted = (value_of(text, "frr defaults") for text in (reading.running, target.rendered))
    if profile != wanted:
        return (
            f"FRR runs with `frr defaults {profile}`, and takes `{wanted}` only when it starts: install the rendered frr.conf in "
            "/etc/frr and restart FRR once"
        )
    return None


def _due(target: PushTarget, reading: "SwitchReading", view: PushView) -> _Due | None:
    """Show how the switch differs from its rendered file; None if it does not."""
    text = with_site_lines(target.rendered, reading.running)
    found = change(reading.running, text)
    if found:
        view.differs(target.name, found, "running")
        touched = touches(found, reading.running, text, target.switch, reading.sessions.bgp)
        return _Due(target, reading, text, touched)
    saved = change(reading.saved or "", text)
    if saved:
        # A restart of FRR would load other settings.
        view.differs(target.name, saved, "/etc/frr/frr.conf; it runs as rendered")
        return _Due(target, reading, text, ())
    view.unchanged(target.name)
    return None


def _sessions_of_partners(
    planned: PlannedCluster, tree: FabricTree, names: Sequence[str], targets: Sequence[PushTarget]
) -> Mapping[str, Mapping[str, int]]:
    """The sessions of the switches that carry the traffic meanwhile, and are not among the targets; none of one that cannot be read."""
    from headway.infra.push.switch import look_at_all  # noqa: PLC0415 (paramiko is an extra)

    known = {target.name for target in targets}
    partners = [
        tree.switches[name] for name in tree.partners(names) if name not in known and tree.switches[name].host is not None
    ]
    found = zip(partners, look_at_all([_reach(switch, planned) for switch in partners]), strict=True)
    return {switch.name: reading.sessions.bgp for switch, reading in found if not isinstance(reading, SshError)}


# --- what must not be touched -----------------------------------------------------------------------------------------


def _check(this: _Push, due: Sequence[_Due], established: Mapping[str, Mapping[str, int]]) -> None:
    """Raises StopError with 1 if the change of one of these switches would reach a running job, or take the last path of another."""
    in_use = _in_use(this.planned, due, this.args.no_running_jobs)
    refused: dict[str, list[str]] = {}
    for each in due:
        name = each.target.name
        found = [str(line) for line in protected(this.tree, name, each.touches, in_use)]
        for below in cut_off(this.tree, name, each.touches, established):
            found.append(f"{name}: {below} would lose its last path: its sessions with all other switches above it are down")
        if found:
            refused[name] = found
    for name, reasons in refused.items():
        for reason in reasons[:_MOST_SHOWN]:
            print(f"refused: {reason}", file=sys.stderr)
        if len(reasons) > _MOST_SHOWN:
            print(f"refused: {name}: {len(reasons) - _MOST_SHOWN} more of the kind", file=sys.stderr)
        result = this.view.results[name]
        result.state, result.reason = "refused", reasons[0]
    if refused:
        others = "; push to the other switches by `--switch`" if len(refused) < len(due) else ""
        raise StopError(1, f"nothing was changed on {listed_some(list(refused))}: wait for the jobs and the sessions{others}")


def _in_use(planned: PlannedCluster, due: Sequence[_Due], is_idle: bool) -> NodesInUse:
    """The nodes with running jobs. Raises StopError with 3 if that cannot be known."""
    if is_idle or all(touch.is_harmless for each in due for touch in each.touches):
        return NONE_IN_USE
    options = planned.scheduler
    hint = "make sure that none runs on its nodes, and add `--no-running-jobs`"
    if not isinstance(options, SlurmOptions):
        message = f"headway can ask only Slurm for running jobs, and the scheduler of `{planned.plan.name}` is `{planned.plan.scheduler}`"
        raise StopError(3, f"{message}; {hint}")
    try:
        with opened("slurm", options, "runs", Path(planned.document.name)) as site:
            return read_in_use(site.commands, options, planned.plan)
    except (SiteError, CommandError) as error:
        raise StopError(3, f"it is unknown which jobs run: {error}; {hint}") from error


# --- the changes ------------------------------------------------------------------------------------------------------


def _change_all(this: _Push, due: Sequence[_Due], established: Mapping[str, Mapping[str, int]]) -> int:
    """Change one switch after the other, and stop at the first that does not come to its end."""
    from headway.infra.push.switch import BEFORE, PushError, PushState, push  # noqa: PLC0415 (paramiko is an extra)

    view, known = this.view, dict(established)
    last: _Due | None = None
    with view.steps():
        for number, each in enumerate(due, 1):
            name = each.target.name
            place = f"{name} ({number} of {len(due)})"
            if last is not None:
                view.step(place, "looking at the sessions of the last switch")
                known[last.target.name] = _still_up(last)
            if last is not None or not this.args.yes:
                view.step(place, "asking for running jobs")
                _check(this, [each], known)
            try:
                outcome = push(each.target.reach, each.text, each.before, _times(each, this.args), partial(view.step, place))
            except PushError as error:
                raise StopError(1, f"{error}{_left(due[number:])}") from error
            view.ended(name, outcome.state, outcome.reason)
            if outcome.state is not PushState.APPLIED:
                raise StopError(1, f"{name}: {outcome.state}: {outcome.reason}{_left(due[number:])}")
            last = each
    print(f"{_switches(len(due))} changed, verified and confirmed; what ran before is {BEFORE} there", file=sys.stderr)
    return 0


def _times(each: _Due, args: argparse.Namespace) -> "PushTimes":
    from headway.infra.push.switch import PushTimes  # noqa: PLC0415 (paramiko is an extra)

    return PushTimes(args.undo_after, _SETTLE_S, _lasting_s(each.target))


def _lasting_s(target: PushTarget) -> float:
    """For how long the sessions must last: BGP that no longer gets through is found by the hold time, also where BFD does."""
    return min(_MOST_LAST_S, target.options.hold_s + _LAST_S)


def _still_up(last: _Due) -> Mapping[str, int]:
    """The sessions of the switch that was changed last. Raises StopError with 1 if some are down again, with 3 if it does not answer."""
    from headway.infra.push.switch import look, losses  # noqa: PLC0415 (paramiko is an extra)

    try:
        now = look(last.target.reach).sessions
    except SshError as error:
        raise StopError(3, f"{error}; no further switch was changed") from error
    if found := losses(last.before.sessions, now, last.text):
        raise StopError(1, f"{last.target.name}: {'; '.join(found)}, after its push was confirmed; no further switch was changed")
    return now.bgp


def _left(rest: Sequence[_Due]) -> str:
    return f"; not changed: {listed_some([each.target.name for each in rest])}" if rest else ""
