"""Drives a headless Chromium over its debugging pipe: opens a file, evaluates script in it, keeps its error messages."""

import fcntl
import json
import os
import select
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

ANSWER_WITHIN_S = 60.0
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-pipe",
)


class Browser:
    """A Chromium with one page; it ends with its context."""

    def __init__(self, program: str, profile: Path) -> None:
        child_in, self._out = os.pipe()
        self._in, child_out = os.pipe()
        # The pipe's ends are descriptors 3 and 4 of the browser; from 10 up they cannot be overwritten on their way there.
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (child_in, child_out)]
        argv = ["bash", "-c", f'exec "$@" 3<&{ends[0]} 4>&{ends[1]}', "bash", program, *FLAGS, f"--user-data-dir={profile}"]
        null = subprocess.DEVNULL
        self._process = subprocess.Popen([*argv, "about:blank"], pass_fds=ends, stdin=null, stdout=null, stderr=null)
        for end in (*ends, child_in, child_out):
            os.close(end)
        self._buffer = b""
        self._sent = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []

    def __enter__(self) -> "Browser":
        try:
            self._attach()
        except BaseException:
            self._end()
            raise
        return self

    def _attach(self) -> None:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._end()

    def _end(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._in)
        os.close(self._out)

    def open(self, page: Path) -> None:
        """Load the file and wait until it is complete."""
        self.events.clear()
        self.call("Page.navigate", url=page.resolve().as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self._receive()

    def evaluate(self, expression: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def complaints(self) -> list[str]:
        """Return messages of the page's console, its script and the content policy."""
        methods = ("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled")
        return [json.dumps(event["params"]) for event in self.events if event["method"] in methods]

    def requests(self) -> list[str]:
        sent = [event for event in self.events if event["method"] == "Network.requestWillBeSent"]
        return [str(event["params"]["request"]["url"]) for event in sent]

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._sent += 1
        session = {"sessionId": self._session} if self._session else {}
        os.write(self._out, json.dumps({"id": self._sent, "method": method, "params": params, **session}).encode() + b"\0")
        while (answer := self._receive()).get("id") != self._sent:
            pass
        assert "error" not in answer, (method, answer)
        result: dict[str, Any] = answer["result"]
        return result

    def _receive(self) -> dict[str, Any]:
        deadline = time.monotonic() + ANSWER_WITHIN_S
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))
            chunk = os.read(self._in, 1 << 16) if ready else b""
            assert chunk, "the browser ended or has not answered in time"
            self._buffer += chunk
        text, self._buffer = self._buffer.split(b"\0", 1)
        message: dict[str, Any] = json.loads(text)
        if "method" in message:
            self.events.append(message)
        return message
