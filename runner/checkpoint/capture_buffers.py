"""Connects a rank to its keeper, and hands out the buffers in shared memory that the keeper takes captures from."""

import contextlib
import threading
from collections.abc import Callable
from typing import Any

from headway.runner.checkpoint.keeper.capture import BufferLayout
from headway.runner.checkpoint.keeper.link import KeeperError, KeeperLink, SharedBuffer
from headway.runner.checkpoint.save_reports import SaveReports


class CaptureBuffers:
    """The buffers of one rank. `connect` returns a new link, also after the keeper has died."""

    def __init__(self, connect: Callable[[], KeeperLink], reports: SaveReports) -> None:
        self._connect, self._reports = connect, reports
        self._link: KeeperLink | None = None
        self._buffers: list[SharedBuffer] = []
        # Buffers that a device still writes to.
        self._copying: set[int] = set()

    @property
    def connected(self) -> bool:
        return self._link is not None and self._reports.keeper_gone is None

    def reserve(self, layout: BufferLayout, count: int) -> dict[int, Any]:
        """Reserve `count` buffers of this layout, connecting if need be. Return their views by index. Raises KeeperError."""
        if not self.connected:
            if self._link is not None:
                self._link.close()
            link = self._connect()
            with self._reports.changed:
                self._link, self._reports.keeper_gone = link, None
            threading.Thread(target=self._listen, args=(link,), daemon=True).start()
        assert self._link is not None  # noqa: S101
        self._buffers = self._link.reserve(layout.bytes, count)
        self._link.describe(layout)
        self._copying = set()
        return {buffer.index: buffer.view for buffer in self._buffers}

    def take(self) -> int:
        """Return a buffer without readers; waits for one. Raises KeeperError if the keeper is gone."""
        with self._reports.changed:
            self._reports.changed.wait_for(lambda: self._reports.keeper_gone is not None or self._unused())
            if self._reports.keeper_gone is not None:
                raise KeeperError(self._reports.keeper_gone)
            index = self._unused()[0]
            self._copying.add(index)
            return index

    def give_back(self, index: int) -> None:
        """Count a buffer as no longer written to."""
        with self._reports.changed:
            self._copying.discard(index)

    def seal(self, index: int, step: int, tiers: tuple[str, ...], objects: dict[str, Any]) -> None:
        """Hand the copy in a buffer over to the keeper."""
        assert self._link is not None  # noqa: S101
        try:
            self._link.seal(index, step, tiers, objects)
        except KeeperError as error:
            self._reports.fail(step, tiers, str(error))
        self.give_back(index)

    def confirm(self, step: int) -> None:
        """Release earlier captures: all ranks have this one."""
        if self._link is not None and self.connected:
            self._link.confirm(step)

    def drop(self, step: int) -> None:
        """Release a capture that not all ranks have: unconfirmed, it would keep its buffer, and block later saves."""
        with self._reports.changed:
            link = self._link if self.connected else None
        if link is not None:
            with contextlib.suppress(KeeperError):
                link.drop(step)

    def close(self) -> None:
        if self._link is not None:
            self._link.close()

    def _unused(self) -> list[int]:
        return [buffer.index for buffer in self._buffers if buffer.free and buffer.index not in self._copying]

    def _listen(self, link: KeeperLink) -> None:
        while True:
            try:
                event = link.event(None)
            except KeeperError as error:
                with self._reports.changed:
                    if link is self._link:
                        self._reports.keeper_gone = str(error)
                    self._reports.changed.notify_all()
                return
            if event is not None:
                self._reports.report(event)
