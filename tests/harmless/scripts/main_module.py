"""A script's own module: pickled classes of it, its source, its siblings, its resources, its name to others.

It then imports the scripts beside it that its arguments name: what each of them finds, for one start of the launchers.
"""

import copyreg
import importlib
import inspect
import os
import pickle
import sys
from dataclasses import dataclass
from pathlib import Path

import facts
import torch


@dataclass
class Config:
    lr: float = 0.1


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))


Path("config.pickle").write_bytes(pickle.dumps(Config()))
print(pickle.loads(Path("config.pickle").read_bytes()), Config.__module__)
torch.save(Model(), "model.pt")
print(type(torch.load("model.pt", weights_only=False)).__module__)
print(inspect.getsource(Config).splitlines()[1], inspect.getfile(Config) == __file__)
print(
    sys.modules["__main__"].__dict__ is globals(),
    __builtins__.__name__,
    facts.__file__ == str(Path(__file__).with_name("facts.py")),
)
print(inspect.stack()[0].function)
try:
    raise ValueError
except ValueError as error:
    trace = error.__traceback__
    assert trace is not None
    print(trace.tb_frame.f_code.co_filename == __file__, __loader__.__class__.__name__)
import __main__

print(__main__.Config is Config, copyreg.__name__, sys.argv[0] == __file__)

for name in sys.argv[1:]:
    print("now", name, flush=True)
    importlib.import_module(name)
    if os.path.exists(f"facts-{facts.rank()}.json"):
        os.rename(f"facts-{facts.rank()}.json", f"{name}-{facts.rank()}.json")
