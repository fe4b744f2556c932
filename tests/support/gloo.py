"""A fault of torch's gloo that tests must bear: its threads abort a process now and then when a group is destroyed, under torchrun too."""

ABORTED = "terminate called without an active exception"
TRIES = 5
