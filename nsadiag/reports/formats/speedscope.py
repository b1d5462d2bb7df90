"""The stacks of the last look, all ranks over each other: for speedscope.app, "left heavy"."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nsadiag.reports.cleaners.data import Json, json_text
from nsadiag.reports.formats.perfetto import only_run
from nsadiag.reports.load import cell_of
from nsadiag.reports.model import Report

if TYPE_CHECKING:
    from nsadiag.analysis.records import CaptureEvidence

SCHEMA = "https://www.speedscope.app/file-format-schema.json"
Frame = tuple[str, str, int]


class _Frames:
    """Each frame once, by number."""

    def __init__(self) -> None:
        self._numbers: dict[Frame, int] = {}

    def numbers(self, stack: list[Frame]) -> list[int]:
        return [self._numbers.setdefault(frame, len(self._numbers)) for frame in stack]

    def to_json(self) -> list[dict[str, Any]]:
        return [{"name": name, "file": file, "line": line} for name, file, line in self._numbers]


def render_speedscope(report: Report) -> Json:
    """The document: one profile of all ranks' main threads, then one a rank with all its threads. Raises UsageError."""
    run = only_run(report, "speedscope")
    cell = cell_of(run)
    frames = _Frames()
    looks = [(r.rank, r.last_capture) for r in cell.ranks if r.last_capture and r.last_capture.stacks]
    mains = [stack for rank, look in looks for stack in _stacks(rank, look)[:1]]
    profiles = [_profile(f"main threads of {len(mains)} ranks", mains, frames)] if mains else []
    profiles += [_profile(f"rank {rank}", _stacks(rank, look), frames) for rank, look in looks]
    document = {
        "$schema": SCHEMA,
        "name": run.name,
        "exporter": "nsadiag",
        "shared": {"frames": frames.to_json()},
        "profiles": profiles,
    }
    return json_text(document, indent=None)


def _stacks(rank: int, look: CaptureEvidence) -> list[list[Frame]]:
    """Outermost first, the main thread's before the others."""
    threads = sorted(look.stacks, key=lambda thread: not thread.is_main)
    found = []
    for thread in threads:
        stack = [(f.name, f.filename, f.line) for f in thread.frames]
        title = thread.thread_name or f"thread {thread.thread_id}"
        # The rank goes innermost, so that ranks at the same place lie under one frame.
        found.append([(str(title), "", 0), *stack[::-1], (f"rank {rank}", "", 0)])
    return found


def _profile(name: str, stacks: list[list[Frame]], frames: _Frames) -> dict[str, Any]:
    return {
        "type": "sampled",
        "name": name,
        "unit": "none",
        "startValue": 0,
        "endValue": len(stacks),
        "samples": [frames.numbers(stack) for stack in stacks],
        "weights": [1] * len(stacks),
    }
