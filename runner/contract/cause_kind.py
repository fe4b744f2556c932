"""Names the kinds of failures, as journal, ledger and suspects have them."""

from headway.runner.contract.text_enum import TextEnum


class CauseKind(TextEnum):
    CRASH = "crash"
    OUT_OF_MEMORY = "out of memory"
    HANG = "hang"
    USER_ERROR = "user error"
    NAN = "nan"
    PREEMPTION = "preemption"
    NODE_LOST = "node lost"
    STORAGE = "storage"
    HARDWARE = "hardware"
    CORRUPTION = "corruption"
