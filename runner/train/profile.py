"""Traces steps of a running job when `headway profile` asks for it, by torch.profiler."""

import sys
from pathlib import Path
from typing import Any

import torch

from headway.runner.contract import ProfileRequest, RecordError, RunDirectory, from_json
from headway.runner.posix import TEMPORARY


class StepProfiler:
    """This rank's part. Nothing that fails here reaches training.

    The first rank looks for a request once a step; through the flags that ranks agree on anyway, all begin and end at the same step.
    """

    def __init__(self, directory: RunDirectory, rank: int) -> None:
        self._profiles, self._file, self._rank = directory.profiles, directory.profile_request, rank
        # Of the first rank: steps that are still to be announced, of which request.
        self._left, self._announced = 0, ""
        self._active: tuple[ProfileRequest, Any] | None = None

    def is_wanted(self) -> bool:
        """Return whether the step after this one is to be traced; only of the first rank."""
        if self._left == 0 and (request := self._request()) is not None and request.name != self._announced:
            self._left, self._announced = request.steps, request.name
        wanted = self._left > 0
        self._left = max(0, self._left - 1)
        return wanted

    def follow(self, *, wanted: bool) -> None:
        """Begin or end, between two steps."""
        if wanted and self._active is None:
            self._begin()
        elif not wanted and self._active is not None:
            self._end()

    def _request(self) -> ProfileRequest | None:
        try:
            return from_json(ProfileRequest, self._file.read_text()) if self._file.exists() else None
        except (OSError, RecordError):
            return None

    def _begin(self) -> None:
        request = self._request()
        if request is None or self._rank not in request.ranks:
            return
        try:
            activities = [torch.profiler.ProfilerActivity.CPU]
            if torch.cuda.is_available():
                activities.append(torch.profiler.ProfilerActivity.CUDA)
            profile = torch.profiler.profile(activities=activities)
            profile.start()
            self._active = request, profile
        except Exception as error:
            self._say(request, error)

    def _end(self) -> None:
        assert self._active is not None  # noqa: S101
        (request, profile), self._active = self._active, None
        file = request.trace(self._profiles, self._rank)
        temporary = file.with_name(f"{TEMPORARY}{file.name}")
        try:
            profile.stop()
            file.parent.mkdir(parents=True, exist_ok=True)
            profile.export_chrome_trace(str(temporary))
            temporary.replace(file)
        except Exception as error:
            self._say(request, error)
        finally:
            _remove(temporary)

    def _say(self, request: ProfileRequest, error: Exception) -> None:
        text = f"no trace of rank {self._rank}: {type(error).__name__}: {error}"
        print(text, file=sys.stderr)
        file = request.failure(self._profiles, self._rank)
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        except OSError as full:
            print(f"`{file}` cannot be written: {full}", file=sys.stderr)


def _remove(file: Path) -> None:
    try:
        file.unlink(missing_ok=True)
    except OSError:
        return
