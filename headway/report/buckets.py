"""Names each bucket of the goodput ledger for readers: a label in words, and the class that colours it in page.css."""

from collections.abc import Mapping

from msgspec import Struct


class Bucket(Struct, frozen=True):
    label: str
    css: str


BUCKETS: Mapping[str, Bucket] = {
    "productive": Bucket("productive", "b-productive"),
    "lost_recompute": Bucket("steps done again", "b-lost"),
    "save_block": Bucket("waiting for saves", "b-save"),
    "restore": Bucket("restoring", "b-restore"),
    "detect": Bucket("detecting", "b-detect"),
    "restart": Bucket("starting", "b-restart"),
    "rendezvous": Bucket("rendezvous", "b-rendezvous"),
    "queue": Bucket("in the queue", "b-queue"),
    "hang": Bucket("hanging", "b-hang"),
    "straggle": Bucket("waiting for stragglers", "b-straggle"),
    "spare_idle": Bucket("idle spares", "b-idle"),
}
NOT_RECORDED = Bucket("not recorded", "b-none")


def bucket(name: str) -> Bucket:
    """The bucket of that name; one that this version does not know keeps its own name."""
    return BUCKETS.get(name, Bucket(name, "b-other"))
