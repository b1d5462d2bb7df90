"""The end of a run before its last step: on SIGTERM, as schedulers send it before they kill, or at a deadline."""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Any

import torch
from torch import Tensor

from nsa.config import CheckpointConfig

REASONS = ("SIGTERM", "deadline")
EXIT_CODES = {None: 0, "SIGTERM": 128 + signal.SIGTERM, "deadline": 0}


class Stopping:
    """The decision to save a checkpoint and stop; without `checkpoint.dir` it is never taken, and SIGTERM kills at once.

    A signal may reach some ranks alone, and between other steps: `flags` of all ranks are reduced at a step that all take,
    and `reason` is what they agree on. A second SIGTERM kills.
    """

    def __init__(self, config: CheckpointConfig) -> None:
        self._on = config.dir is not None
        self._deadline = time.monotonic() + (config.deadline_s or float("inf"))
        self._terminated = False
        self._before: Any = None

    def __enter__(self) -> Stopping:
        if self._on and threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTERM, self._terminate)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)

    def flags(self, device: torch.device) -> Tensor:
        """This rank's reasons to stop, [len(REASONS)], 0 or 1."""
        due = (self._terminated, self._on and time.monotonic() >= self._deadline)
        return torch.tensor(due, dtype=torch.float32, device=device)

    def _terminate(self, number: int, frame: FrameType | None) -> None:
        self._terminated = True
        signal.signal(signal.SIGTERM, self._before)  # the next one is not ours


def reason_of(flags: list[float]) -> str | None:
    """The first reason that any rank has, given the sum or mean of all ranks' flags."""
    return next((reason for reason, flag in zip(REASONS, flags, strict=True) if flag), None)
