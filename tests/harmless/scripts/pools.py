"""Pools and processes of every start method, with what they print, return and raise."""

import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor


def square(number: int) -> int:
    return number * number


def name() -> str:
    return multiprocessing.current_process().name


def fail(number: int) -> int:
    raise ValueError(f"of {number}")


def say(text: str) -> None:
    print(text, __name__, os.environ["RANK"], flush=True)


def leave(code: int) -> None:
    sys.exit(code)


if __name__ == "__main__":
    for method in ("fork", "spawn", "forkserver"):
        context = multiprocessing.get_context(method)
        with context.Pool(2) as pool:
            print(method, pool.map(square, range(5)), flush=True)
            try:
                pool.map(fail, [3])
            except ValueError as error:
                print(method, "raised", error, flush=True)
        child = context.Process(target=say, args=(f"a child by {method}",))
        child.start()
        child.join()
        left = context.Process(target=leave, args=(3,))
        left.start()
        left.join()
        print(method, child.exitcode, left.exitcode, child.name, flush=True)
        queue = context.Queue()
        queue.put({"a": 1})
        print(method, queue.get(timeout=30), flush=True)
        with ProcessPoolExecutor(2, mp_context=context) as executor:
            print(method, list(executor.map(square, range(3))), flush=True)
    with ThreadPoolExecutor(2) as threads:
        print("threads", list(threads.map(square, range(3))), flush=True)
    print("default", multiprocessing.get_start_method(), multiprocessing.active_children(), flush=True)
