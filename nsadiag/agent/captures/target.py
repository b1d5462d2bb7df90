"""What a capture is pointed at."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from nsadiag.evidence.layout import CaptureDir


class CaptureError(Exception):
    """The evidence could not be had; the message says what stood in the way."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """One rank's process, and where its evidence goes."""

    pid: int
    directory: CaptureDir
    socket: Path | None  # of torch's worker server
