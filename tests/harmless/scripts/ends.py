"""Ends in the way that its argument names."""

import atexit
import os
import signal
import sys
import threading
import time

way = sys.argv[1]
kept = open("kept.txt", "w")
kept.write("written before the end\n")
atexit.register(lambda: print("atexit", flush=True))
atexit.register(lambda: kept.write("written at the end\n"))


class Noisy:
    def __del__(self) -> None:
        print("deleted", flush=True)


noisy = Noisy()


def late() -> None:
    time.sleep(0.5)
    print("the thread has ended", flush=True)


match way:
    case "last line":
        pass
    case "exit 0":
        sys.exit(0)
    case "exit None":
        sys.exit()
    case "exit 3":
        sys.exit(3)
    case "exit text":
        sys.exit("a text")
    case "exit True":
        sys.exit(True)
    case "exit 256":
        sys.exit(256)
    case "SystemExit of a tuple":
        raise SystemExit((1, 2))
    case "quit":
        quit()
    case "exception":
        raise ValueError("a value\nwith two lines")
    case "group":
        raise ExceptionGroup("several", [ValueError("one"), TypeError("two")])
    case "cause":
        try:
            {}["absent"]
        except KeyError as error:
            raise RuntimeError("because of a key") from error
    case "note":
        error = RuntimeError("with a note")
        error.add_note("the note")
        raise error
    case "syntax":
        compile("a b", "text.py", "exec")
    case "interrupt":
        raise KeyboardInterrupt
    case "thread":
        threading.Thread(target=late).start()
    case "daemon":
        threading.Thread(target=lambda: time.sleep(600), daemon=True).start()
    case "thread raises":
        thread = threading.Thread(target=lambda: 1 / 0, name="divider")
        thread.start()
        thread.join()
    case "exit in a thread":
        thread = threading.Thread(target=sys.exit, args=(5,))
        thread.start()
        thread.join()
    case "atexit raises":
        atexit.register(lambda: 1 / 0)
    case "unraisable":

        class Bad:
            def __del__(self) -> None:
                raise RuntimeError("in __del__")

        bad = Bad()
        del bad
    case "_exit 0":
        os._exit(0)
    case "_exit 7":
        os._exit(7)
    case "abort":
        import faulthandler

        faulthandler.disable()
        os.abort()
    case "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    case "terminated":
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
    case "closed stdout":
        print("printed", flush=True)
        sys.stdout.close()
        sys.exit(0)
    case "closed descriptors":
        print("printed", flush=True)
        os.closerange(3, 256)
    case "exec":
        os.execv(sys.executable, [sys.executable, "-c", "print('another program', flush=True)"])
    case "fork":
        if (pid := os.fork()) == 0:
            print("the child", flush=True)
            sys.exit(0)
        os.waitpid(pid, 0)
    case "recursion":

        def deeper() -> None:
            deeper()

        try:
            deeper()
        except RecursionError as error:
            print("caught", error)
    case "asyncio":
        import asyncio

        async def main() -> None:
            await asyncio.sleep(0.1)
            print("in a loop", flush=True)

        asyncio.run(main())
    case _:
        raise SystemExit(f"no such way: {way}")
print("the last line", flush=True)
