"""`headway torchrun`: torchrun's command line, run by headway's agents.

In: torchrun's arguments, environment variables and the rendezvous endpoint.
Out: a run directory, this node's place in it, and the supervisor in place of this process.
Start reading: `__main__.py`, `launcher.py`, `configure.py` (arguments to run.json), `naming.py`
(which run a command belongs to), `rendezvous.py` (several nodes).
"""
