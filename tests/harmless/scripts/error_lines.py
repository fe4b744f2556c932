"""Errors that Python words with the script's own lines: nested calls, generators, chained ones, of an import, in a child."""

import subprocess
import sys
import traceback
import warnings


def third(value: int) -> float:
    return 1 / value


def second(value: int) -> float:
    return [third(one) for one in (value,)][0]


try:
    second(0)
except ZeroDivisionError:
    traceback.print_exc()
try:
    import absent_module  # noqa: F401
except ImportError:
    traceback.print_exc()
warnings.warn("seen", RuntimeWarning, stacklevel=1)
done = subprocess.run([sys.executable, "-c", "raise SystemExit(3)"], check=False)
print("child", done.returncode, flush=True)
second(0)
