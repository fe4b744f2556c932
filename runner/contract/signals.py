"""Defines the signals to which headway assigns a meaning."""

import signal

# On this signal a worker writes the stack of the thread that receives it, no matter which one holds the GIL (faulthandler). Real-time
# signals have no other meaning.
STACKS_SIGNAL = int(signal.SIGRTMIN) + 7
