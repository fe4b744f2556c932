"""Side effects on the outside world: files written, jobs started, hosts configured over SSH.

In: rendered files, a job's plan, or the files that each host of a cluster should hold.
Out: trees on disk, supervisor processes on this machine, hosts changed through Pulumi.
Start reading: `tree.py` (`headway render`), `submit/local.py` (`headway run`), `stack.py`
(`headway up`, `preview`, `down`), `push/switch.py` (`headway push`).
"""
