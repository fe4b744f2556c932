"""Serves in place of a chat's or a pager's webhook."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SECRET_PATH = "/services/T00/B00/s3cr3t"


class Webhook:
    """A server that answers with `statuses` in turn, then 200, and stores what it receives."""

    def __init__(self, *statuses: int) -> None:
        self.received: list[dict[str, Any]] = []
        self.paths: list[str] = []
        left = list(statuses)
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                hook.received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                hook.paths.append(self.path)
                self.send_response(left.pop(0) if left else 200)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}{SECRET_PATH}"

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()
