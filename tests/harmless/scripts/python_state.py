"""The state of Python and torch at a script's first line, which other code would have changed before it."""

import faulthandler
import gc
import locale
import logging
import os
import random
import socket
import sys
import tempfile
import threading
import tracemalloc
import warnings

import facts

# Documented to differ: what torch's import before the script sets up, gc.freeze, a finder, and a hook behind each optimizer step.
gc_state = [gc.isenabled(), gc.get_threshold(), gc.get_debug(), len(gc.callbacks)]
logs = [
    logging.root.level,
    [str(handler) for handler in logging.root.handlers],
    logging.raiseExceptions,
    logging.lastResort is not None,
]
hooks = [
    threading.excepthook.__qualname__,
    sys.unraisablehook.__qualname__,
    len(sys.path_hooks),
    [name for finder in sys.meta_path if not (name := str(finder).split(" ")[0]).startswith("<headway.")],
]
import numpy
import torch
import torch.distributed

torch_state = {
    "dtype": str(torch.get_default_dtype()),
    "threads": [torch.get_num_threads()],
    "grad": torch.is_grad_enabled(),
    "deterministic": torch.are_deterministic_algorithms_enabled(),
    "started by elastic": torch.distributed.is_torchelastic_launched(),
    "initialized": torch.distributed.is_initialized(),
    "sharing": torch.multiprocessing.get_sharing_strategy(),
    "printed": str(torch.arange(3) / 7),
    "denormals": bool(torch.tensor([1e-40]).mul(1).item()),
    "autograd threads": torch.autograd.is_multithreading_enabled(),
    "matmul": torch.get_float32_matmul_precision(),
    "mmap": torch.serialization.get_default_mmap_options(),
    "endianness": str(torch.serialization.get_default_load_endianness()),
    "crc": torch.serialization.get_crc32_options(),
}

own = {
    name: f"{function.__module__}.{function.__qualname__}"
    for name, function in {
        "torch.save": torch.save,
        "torch.load": torch.load,
        "os.listdir": os.listdir,
        "os.scandir": os.scandir,
        "os.replace": os.replace,
        "os._exit": os._exit,
        "sys.exit": sys.exit,
        "open": open,
        "init_process_group": torch.distributed.init_process_group,
        "all_reduce": torch.distributed.all_reduce,
        "step": torch.optim.SGD.step,
        "backward": torch.Tensor.backward,
    }.items()
}
facts.write(
    gc=gc_state,
    logging=logs,
    hooks=hooks,
    fault=faulthandler.is_enabled(),
    trace=tracemalloc.is_tracing(),
    profile=sys.getprofile() is None,
    switch=sys.getswitchinterval(),
    locale=[locale.getlocale(), locale.getpreferredencoding()],
    timeout=socket.getdefaulttimeout(),
    tmp=tempfile.gettempdir(),
    numpy=[str(numpy.get_printoptions()["precision"]), str(numpy.geterr())],
    torch=torch_state,
    functions=own,
    seeded=random.Random(1).random(),
)
warnings.warn("a warning of the script", stacklevel=1)
logging.warning("a line of the root logger")
logging.getLogger("torch").warning("a line of torch's logger")
