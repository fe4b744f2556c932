"""How many descriptors and threads a script has that has opened nothing, and which number its first file gets."""

import os

import facts

with open("file", "w") as file:
    first = file.fileno()
open_now = []
for number in range(0, 256):
    try:
        open_now.append((number, os.readlink(f"/proc/self/fd/{number}").split(":")[0].split("/")[-1]))
    except OSError:
        continue
facts.write(first=first, open=[number for number, _ in open_now], threads=len(os.listdir("/proc/self/task")))
