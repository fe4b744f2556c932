"""Tracing, profiling and debugging of a script, whose results hold nothing but the script."""

import cProfile
import pdb
import pstats
import sys
import threading
import tracemalloc

import facts
import torch
from torch.profiler import ProfilerActivity, profile, record_function

called: list[str] = []


def trace(frame, event, argument):  # type: ignore[no-untyped-def]
    if event == "call":
        called.append(frame.f_code.co_name)
    return trace


def inner() -> int:
    return sum(range(10))


def outer() -> int:
    return inner() + 1


sys.settrace(trace)
outer()
sys.settrace(None)
profiler = cProfile.Profile()
profiler.runcall(outer)
names = sorted(name for _, _, name in pstats.Stats(profiler).stats if "/" not in name)
tracemalloc.start()
kept = [bytes(10_000) for _ in range(10)]
grown = tracemalloc.get_traced_memory()[0] >= 100_000
tracemalloc.stop()
torch.manual_seed(0)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with profile(activities=[ProfilerActivity.CPU]) as recorded:
    with record_function("a step"):
        model(torch.ones(4)).sum().backward()
        optimizer.step()
keys = sorted(event.key for event in recorded.key_averages())
pdb.Pdb(stdin=__import__("io").StringIO("p 1 + 1\nc\n"), stdout=open("pdb.txt", "w")).set_trace()
facts.write(
    called=called, names=names, grown=grown, keys=keys, threads=[t.name for t in threading.enumerate() if t.daemon is False]
)
