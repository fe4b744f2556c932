"""Serves one connection to the keeper: one thread reads requests, another writes, so that no slow reader blocks others."""

import logging
import os
import threading
from collections.abc import Callable
from queue import SimpleQueue

from headway.runner.checkpoint.keeper.capture import BufferLayout
from headway.runner.checkpoint.keeper.protocol import Hello
from headway.runner.checkpoint.keeper.wire import LostError, Message, Wire, WireError

_log = logging.getLogger(__name__)

Outgoing = tuple[Message, tuple[int, ...], bool]


class WorkerSession:
    """A worker's connection, or that of an agent, which only lists. `hello` and `layout` are the newest that it sent."""

    def __init__(self, wire: Wire) -> None:
        self.hello: Hello | None = None
        self.layout: BufferLayout | None = None
        self._wire = wire
        self._outgoing: SimpleQueue[Outgoing | None] = SimpleQueue()
        self._writer = threading.Thread(target=self._write, daemon=True)

    def run(self, handle: Callable[["WorkerSession", Message], None]) -> None:
        """Handle requests until the connection ends, or sends an invalid one: that is reported, and the connection closed."""
        self._writer.start()
        try:
            while True:
                handle(self, self._wire.receive().message)
        except LostError:
            return
        except WireError as error:
            _log.warning("refused a connection: %s", error)
        finally:
            self._outgoing.put(None)
            self._wire.hang_up()
            self._writer.join()
            self._wire.close()

    def tell(self, message: Message) -> None:
        """Send an event."""
        self._outgoing.put((message, (), False))

    def answer(self, message: Message, descriptors: tuple[int, ...] = ()) -> None:
        """Send the answer to the current request. Its descriptors are closed once they are sent."""
        self._outgoing.put((message, descriptors, True))

    def hang_up(self) -> None:
        self._wire.hang_up()

    def _write(self) -> None:
        gone = False
        while (item := self._outgoing.get()) is not None:
            message, descriptors, answers = item
            try:
                if not gone:
                    self._wire.send(message, descriptors, answers=answers)
            except WireError:
                # The reader gets the same error.
                gone = True
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)
