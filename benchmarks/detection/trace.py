"""Reads and writes traces: heartbeats and probes of a job's ranks as they arrived, as JSON lines, for replay to any detector."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from headway.runner.health.watch import Probe, RankBeat

_Cells = Mapping[str, list[object]]


@dataclass(frozen=True)
class Heard:
    """The messages that arrived at once, so many seconds after the beginning."""

    at_s: float
    beats: Mapping[int, RankBeat] = field(default_factory=dict)
    probes: Mapping[int, Probe] = field(default_factory=dict)


@dataclass(frozen=True)
class Trace:
    """`happened_s` is when rank 1 did what the trace is called after; `steps_s` is how long the steps before it took."""

    what: str
    ranks: int
    happened_s: float
    steps_s: tuple[float, ...]
    heard: tuple[Heard, ...]

    @property
    def bound_s(self) -> float:
        """Within which a proven hang is to be named: 2 s, or 5 times what 99 of 100 steps took at the most."""
        return max(2.0, 5 * sorted(self.steps_s)[-1 - len(self.steps_s) // 100])


def write(trace: Trace, path: Path) -> None:
    """A head line, then one for each moment; a stack is written once and then named by its number."""
    stacks: dict[tuple[str, ...], int] = {}
    lines = [{key: value for key, value in asdict(trace).items() if key != "heard"}]
    lines += [_line(heard, stacks) for heard in trace.heard]
    path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))


def read(path: Path) -> Trace:
    head, *lines = map(json.loads, path.read_text().splitlines())
    return Trace(**{**head, "steps_s": tuple(head["steps_s"])}, heard=tuple(_heard(lines)))


def _line(heard: Heard, stacks: dict[tuple[str, ...], int]) -> dict[str, object]:
    beats = {rank: [_rounded(cell) for cell in beat] for rank, beat in heard.beats.items()}
    probes, names = {}, {}
    for rank, probe in heard.probes.items():
        if probe.stack not in stacks:
            names[len(stacks)] = list(probe.stack)
            stacks[probe.stack] = len(stacks)
        probes[rank] = [probe.state, probe.cpu_s, probe.io_bytes, stacks[probe.stack], probe.where, probe.waits_on]
    found = {"at_s": _rounded(heard.at_s), "beats": beats, "stacks": names, "probes": probes}
    return {key: value for key, value in found.items() if value != {}}


def _heard(lines: Iterable[dict[str, object]]) -> Iterator[Heard]:
    stacks: dict[int, tuple[str, ...]] = {}
    for line in lines:
        names, beats, probes = (_cells(line.get(key)) for key in ("stacks", "beats", "probes"))
        stacks |= {int(number): tuple(map(str, stack)) for number, stack in names.items()}
        yield Heard(
            float(str(line["at_s"])),
            {int(rank): RankBeat(*cells) for rank, cells in beats.items()},  # type: ignore[arg-type]
            {int(rank): _probe(cells, stacks) for rank, cells in probes.items()},
        )


def _cells(value: object) -> _Cells:
    return value if isinstance(value, dict) else {}


def _probe(cells: list[object], stacks: Mapping[int, tuple[str, ...]]) -> Probe:
    state, cpu_s, io_bytes, stack, where, waits_on = cells
    return Probe(str(state), float(str(cpu_s)), int(str(io_bytes)), stacks[int(str(stack))], _text(where), _text(waits_on))


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _rounded(cell: object) -> object:
    return round(cell, 3) if isinstance(cell, float) else cell
