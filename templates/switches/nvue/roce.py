"""The settings of `nv set qos roce`, as `nv show qos roce` prints them (cumulus-linux-516, RDMA over Converged Ethernet)."""

from collections.abc import Mapping

from headway.templates.reading import EcnView

# Switch priority -> traffic class, which is the egress queue.
QUEUES: Mapping[int, int] = {0: 0, 1: 0, 2: 0, 3: 3, 4: 0, 5: 0, 6: 6, 7: 0}
# Traffic class -> share of a full link; None is strict priority.
WEIGHTS: Mapping[int, int | None] = {0: 50, 3: 50, 6: None}
MARKED = (0, 3)
ECN = EcnView(150_000, 1_500_000, 100)
PFC_PRIORITY = 3
# The pool of lossless traffic at the way out is that of one traffic class, whatever the switch priority.
LOSSLESS_QUEUE = 3
# `qos pfc-watchdog`: polling-interval in milliseconds, robustness in polls.
WATCHDOG_POLL_MS, WATCHDOG_POLLS = 100, 3
