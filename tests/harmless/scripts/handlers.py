"""Signals that a script sends to itself, by handlers, timers, wake-up descriptors and faulthandler."""

import faulthandler
import os
import signal
import time

import facts

got: list[str] = []
for number in (
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
    signal.SIGCHLD,
    signal.SIGHUP,
    signal.SIGCONT,
    signal.SIGVTALRM,
    signal.SIGWINCH,
):
    before = signal.signal(number, lambda sent, frame: got.append(signal.Signals(sent).name))
    print("before", signal.Signals(number).name, before, flush=True)
for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGCONT):
    os.kill(os.getpid(), number)
signal.setitimer(signal.ITIMER_REAL, 0.05)
time.sleep(0.2)
signal.alarm(1)
signal.pause()
if os.fork() == 0:
    os._exit(0)
os.wait()
time.sleep(0.05)
print("got", got, flush=True)
try:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(1)
except KeyboardInterrupt:
    print("interrupted", flush=True)
print("faulthandler", faulthandler.is_enabled(), flush=True)
with open("stack.txt", "w") as file:
    faulthandler.dump_traceback_later(0.05, file=file)
    time.sleep(0.2)
    faulthandler.register(signal.SIGUSR1, file=file, chain=False)
    os.kill(os.getpid(), signal.SIGUSR1)
    faulthandler.unregister(signal.SIGUSR1)
with open("stack.txt") as file:
    print("stack", [line.strip().split(", in ")[-1] for line in file if "handlers.py" in line], flush=True)
os.remove("stack.txt")
facts.write(signals=facts.handlers(), wakeup=signal.set_wakeup_fd(-1), timers=[signal.getitimer(signal.ITIMER_REAL)[0]])
