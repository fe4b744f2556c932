"""Output of every form: bytes that are no text, long lines, carriage returns, no newline, both streams, past Python."""

import os
import sys

sys.stdout.buffer.write(bytes(range(256)) + b"\n")
sys.stdout.flush()
print("x" * 100_000)
for percent in range(0, 101, 10):
    print(f"\r{percent} %", end="", file=sys.stderr, flush=True)
print(file=sys.stderr)
print("\x1b[31mred\x1b[0m", "ümläut", "\N{SNOWMAN}", sep="\t")
for number in range(20_000):
    print("line", number)
sys.stdout.flush()
os.write(1, b"past Python\n")
os.write(2, b"past Python, to stderr\n")
sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
print("\n\n")
sys.stderr.write("the last word, without a newline")
