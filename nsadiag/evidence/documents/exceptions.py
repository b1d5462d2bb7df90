"""Exceptions as a rank recorded them: exception.json, raised.jsonl, unnamed.jsonl; its own call to exit, leaving.json."""

from __future__ import annotations

from dataclasses import dataclass

from nsadiag.evidence.documents.values import Pid, Whole


@dataclass(frozen=True, kw_only=True)
class TracebackFrame:
    """One line of a traceback."""

    file: str
    line: int
    function: str
    code: str | None = None


@dataclass(frozen=True, kw_only=True)
class Cause:
    """An exception from which another one came."""

    type: str
    message: str
    frames: tuple[TracebackFrame, ...] = ()  # outermost first
    cause: Cause | None = None
    meant: bool = False  # the later one was raised `from` it
    displaced: bool = False  # a clean-up's own error took its place (analysis.ingest.masked_exceptions)
    place: str = ""  # of the call that it left


@dataclass(frozen=True, kw_only=True)
class Raised(Cause):
    """An exception as a rank saw it, with whatever it came from."""

    thread: str
    t_mono_ns: Whole
    frames: tuple[TracebackFrame, ...]
    module: str = ""
    t_wall_ns: Whole = 0
    hidden: Cause | None = None  # it was raised `from None` in place of this one
    how: str = ""
    during: str = ""
    step: int = 0
    group: str = ""
    number: int | None = None
    stack: tuple[str, ...] = ()
    pid: Pid | None = None
    argv: tuple[str, ...] = ()
    spawned_as: int | None = None
    source: str = ""  # of one that a log tells
    traceback: str = ""

    @property
    def in_main_thread(self) -> bool:
        """Whether the main thread raised it."""
        return self.thread == "MainThread"


NOT_RAISED = Raised(type="", message="", thread="", t_mono_ns=0, frames=())


@dataclass(frozen=True, kw_only=True)
class Leaving:
    """A call to exit."""

    call: str
    place: str
    arguments: str = ""
    handling: Raised | None = None  # the exception that was being handled
    ended_with: Whole | None = None  # the code, where the process is known to have ended with it


@dataclass(frozen=True, kw_only=True)
class SentSignal:
    """A signal that a rank sent."""

    call: str
    to: Whole  # a pid, or 0 for its own group
    signal: Whole
    place: str
    t_mono_ns: Whole = 0
