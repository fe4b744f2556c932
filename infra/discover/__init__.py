"""Describes a cluster from what its scheduler knows of it, for `headway discover`.

In: a shell on a machine with the scheduler's commands.
Out: the text of a Cluster and of an Inventory, with a comment on each line that the scheduler cannot know.
Start reading: `slurm.py` (`read_slurm`), then `documents.py`.
"""

from headway.infra.discover.documents import cluster_document, inventory_document
from headway.infra.discover.slurm import DiscoverError, FoundNode, SlurmDescription, read_slurm

__all__ = ["DiscoverError", "FoundNode", "SlurmDescription", "cluster_document", "inventory_document", "read_slurm"]
