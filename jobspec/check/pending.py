"""Lists the parts of the language that are not implemented yet. Checks reject them, so that a run is what was reviewed."""

from collections.abc import Mapping

from msgspec import Struct


class Pending(Struct, frozen=True):
    """A field that is not implemented yet, by its path without indices, with its fields; `values` are the refused
    values, empty for all of them."""

    field: tuple[str, ...]
    values: str
    yet: str


# By kind of document. Those of jobs are found by the checks of the schedulers, those of clusters by `check_cluster` and `check_fabrics`.
PENDING: Mapping[str, tuple[Pending, ...]] = {
    "TrainingJob": (
        Pending(
            ("code", "commit"),
            "with a scheduler other than `slurm`, all but `HEAD`",
            "a run uses what is in the directory of its submission",
        ),
    ),
    "Cluster": (
        Pending(("health",), "", "nodes are neither checked nor excluded"),
        Pending(("fabrics", "shape"), "with `switches`, `dragonfly` and `torus`", "their files have the other shapes"),
        Pending(
            ("fabrics", "congestion"),
            "with `switches`, `trim-lossy` and `nic-managed`",
            "their files have `pfc`, `pfc-ecn` and `ecn-lossy`",
        ),
    ),
}

# Fields that documents, plans and inventories keep for people, and that change no rendered file and no estimate.
RECORDED: Mapping[str, Mapping[tuple[str, ...], str]] = {
    "Cluster": {("fabrics", "oversubscription", "spine"): "estimates do not depend on it; derived sizes of `switches` do"},
    "Inventory": {
        ("nodes", "serial"): "it identifies the machine, and no two devices may have the same",
        ("switches", "serial"): "it identifies the machine, and no two devices may have the same",
    },
}
