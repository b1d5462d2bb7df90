"""Places of ranks at this moment, without a verdict: line, call, and since when. The processes are not paused."""

from __future__ import annotations

import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from nsadiag.agent.captures.failure import Refused
from nsadiag.agent.captures.python.py_spy import nonblocking_stacks
from nsadiag.agent.captures.target import CaptureError
from nsadiag.evidence.documents.python_stacks import StackFrame, Threads, frames_of_main
from nsadiag.evidence.phrases import plain_path
from nsadiag.evidence.ring.blackbox import Kind
from nsadiag.evidence.ring.reader import Event, Recording, read_blackbox
from nsadiag.evidence.user_code import is_ours, is_user

ANSWER_S = 1.0
# Decorators of torch, Ray and the standard library, which stand between a call and its function.
WRAPPERS = ("wrapper", "wrapped", "decorate_context", "inner", "_fn", "auto_init_wrapper")
NO_CALLS = (Kind.PROCESS, Kind.STEP, Kind.PHASE, Kind.MODULE, Kind.FORWARD, Kind.BACKWARD)


@dataclass(frozen=True, kw_only=True)
class Sought:
    """A rank to look for, and what helps to find it."""

    rank: int
    pid: int
    alive: bool
    recorder: Path | None = None
    socket: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Whereabouts:
    """One rank. `since_s`: seconds since it entered the call, or since its newest event; None where nothing records it."""

    rank: int
    pid: int
    place: str = ""  # file:line in function, of the innermost user code
    call: str = ""  # what that line called, and has not returned
    since_s: float | None = None
    unseen: str = ""  # the reason why it shows no place
    host: str = ""  # of a job on several

    def to_json(self) -> dict[str, object]:
        return asdict(self)


def whereabouts(sought: Iterable[Sought]) -> list[Whereabouts]:
    """All of them at once, in order of rank."""
    with ThreadPoolExecutor(max_workers=8) as pool:
        return sorted(pool.map(_of_rank, sought), key=lambda found: found.rank)


def _of_rank(sought: Sought) -> Whereabouts:
    if not sought.alive:
        return Whereabouts(rank=sought.rank, pid=sought.pid, unseen="ended")
    try:
        frames, unseen = frames_of_main(_stacks(sought)), ""
    except CaptureError as error:
        frames, unseen = (), str(error)
    own = next((n for n, frame in enumerate(frames) if is_user(frame.filename)), None)
    call, since_s, recorded_at = _recorded(sought.recorder)
    place = _place(frames[own]) if own is not None else ""
    if not call:
        call = _called(frames[: len(frames) if own is None else own])
    return Whereabouts(
        rank=sought.rank,
        pid=sought.pid,
        place=place or recorded_at or (_place(frames[0]) if frames else ""),
        call=call,
        since_s=since_s,
        unseen="" if frames or recorded_at else unseen or "no Python stack",
    )


def _stacks(sought: Sought) -> Threads:
    """By py-spy, or by torch's server in the rank where that may not look. Raises CaptureError."""
    try:
        return nonblocking_stacks(sought.pid)
    except Refused:
        if sought.socket is None or not sought.socket.exists():
            raise
        from nsadiag.agent.captures.worker_server import WorkerServer  # with a client of HTTP
        from nsadiag.evidence.stacks import from_faulthandler  # with all documents of a capture

        text = WorkerServer(sought.socket).ask("dump_traceback", timeout_s=ANSWER_S)
        return from_faulthandler(text.decode(errors="replace"))


def _place(frame: StackFrame) -> str:
    return f"{_short(frame.filename)}:{frame.line} in {frame.name}"


def _short(file: str) -> str:
    """Below the working directory without it."""
    path = Path(plain_path(file))
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def _called(within: Iterable[StackFrame]) -> str:
    """The function that the user's line called, seen from `within` it, innermost first."""
    names = (frame.name.rpartition(".")[2] for frame in within if not is_ours(frame.filename))
    named = [name for name in names if name not in WRAPPERS]
    return named[-1] if named else ""


def _recorded(recorder: Path | None) -> tuple[str, float | None, str]:
    """The call that the main thread has begun and not ended, the seconds since then or since the newest event, and its line."""
    recording = read_blackbox(recorder) if recorder else None
    if recording is None or recording.header is None:
        return "", None, ""
    now_ns = time.monotonic_ns()
    for event in recording.open_spans:
        if event.kind not in NO_CALLS:
            return (
                _named(event, counts=_python_calls_all(recording)),
                max(now_ns - event.t_ns, 0) / 1e9,
                _site(event.site),
            )
    newest = next(recording.decode(recording.events[-1:]), None)
    return "", max(now_ns - newest.t_ns, 0) / 1e9 if newest else None, ""


def _named(event: Event, *, counts: bool) -> str:
    """`all_reduce #41` of a collective whose number `counts`, else the event's own name."""
    name = event.name or Kind(event.kind).name.lower()
    return f"{name} #{event.a}" if counts and event.kind == Kind.COLLECTIVE and event.a > 0 else name


def _python_calls_all(recording: Recording) -> bool:
    """Whether a call's number is that of a verdict: where DDP or FSDP calls from C++, no recorder of Python's counts it."""
    return not set(recording.events["kind"].unique()) & {Kind.GRADIENT, Kind.BUCKET, Kind.UNIT}


def _site(site: str) -> str:
    """`train.py:41 in main` of `/path/to/train.py:41:main`."""
    file, _, rest = site.rpartition("/")
    name, _, rest = rest.partition(":")
    line, _, function = rest.partition(":")
    return f"{_short(f'{file}/{name}')}:{line} in {function}" if line else ""
