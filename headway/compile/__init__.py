"""The compiler: documents to plans and problems. Every verb that takes documents uses it, and so can
other programs, for example a GitOps controller.

In: the paths of TrainingJob, Cluster and Inventory documents. Out: `Compiled`: the plans, ready to
render, and the problems, each with its place and a hint. It reads files and writes none, prints
nothing, and runs nothing.

    compiled = compile_documents([Path("job.yaml")])
    if not compiled.problems.errors:
        files = compiled.jobs[0].files()

Start reading: `compiler.py` (the steps in their order), then the module of a step: `document.py`,
`cluster.py`, `job.py`.
"""

from headway.compile.cluster import PlannedCluster
from headway.compile.compiler import Compiled, compile_documents
from headway.compile.job import PlannedJob
from headway.compile.problems import Problems
from headway.compile.sources import Sources

__all__ = ["Compiled", "PlannedCluster", "PlannedJob", "Problems", "Sources", "compile_documents"]
