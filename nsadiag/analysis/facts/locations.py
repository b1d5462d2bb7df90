"""Lines of user code: in stacks, in tracebacks, in the recording."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from nsadiag.analysis.records import RankEvidence
from nsadiag.evidence.documents.exceptions import Cause
from nsadiag.evidence.documents.python_stacks import StackFrame, Threads, frames_of_main
from nsadiag.evidence.documents.training import Sample
from nsadiag.evidence.numbers import natural
from nsadiag.evidence.recorder import Entry
from nsadiag.evidence.records import Place
from nsadiag.evidence.ring.blackbox import Phase
from nsadiag.evidence.ring.reader import Recording
from nsadiag.evidence.table import Table
from nsadiag.evidence.user_code import is_user
from nsadiag.source import model

# A call that may wait for other ranks in C, where no Python frame shows it.
MAY_WAIT_FOR_PEERS = re.compile(r"\.(wait|item|cpu|tolist|synchronize|result)\(|dist\.|distributed")
BACKWARD = "backward"
# Functions of torch on the stack of whoever is in a forward, in a backward, or waits for peers.
IN_A_STEP = frozenset({"_call_impl", "_wrapped_call_impl", "_engine_run_backward", "collective", "wait"})
OPTIMIZER = "/torch/optim/optimizer.py"
# Wherever it is installed: dumps come from other machines.
TORCH = re.compile(
    r"/torch/(distributed|nn|utils|autograd|optim|cuda|multiprocessing|fx|_\w+)/|/torch/\w+\.py$"
)
FAULT_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<function>\S+)')
FAULT_THREAD = re.compile(r"(Current thread|Thread) 0x[0-9a-f]+")


place = model.place


def of_frames(frames: Iterable[StackFrame]) -> Place | None:
    """The innermost user line of one thread's frames, innermost first."""
    for frame in frames:
        # One without a line is native.
        if frame.line and is_user(frame.filename):
            return place(frame.filename, frame.line, frame.name)
    return None


def of_wait(threads: Threads) -> tuple[str, str, int] | None:
    """The call into torch.distributed, or the backward pass, in which the main thread stands, and the user's line of it."""
    frames = frames_of_main(threads)
    call = call_in(frames)
    user = next((f for f in frames if f.line and is_user(f.filename)), None)
    return (call, user.filename, user.line) if call and user else None


def call_in(frames: Sequence[StackFrame]) -> str | None:
    """The call into torch.distributed, else the backward pass, that a thread is in; None if it is in neither."""
    calls = [op for f in reversed(frames) if (op := _waits_in(f))]
    return next((op for op in calls if op != BACKWARD), calls[0] if calls else None)


def _waits_in(frame: StackFrame) -> str | None:
    if frame.filename.endswith("torch/distributed/distributed_c10d.py"):
        return None if frame.name == "wrapper" else frame.name
    if frame.name == "_engine_run_backward" or (
        frame.name == "backward" and frame.filename.endswith("torch/autograd/__init__.py")
    ):
        return BACKWARD
    return None


def of_rank_now(rank: RankEvidence) -> Place | None:
    """The rank's line when it was last looked at; by its recording where no stack could be had."""
    for capture in reversed(rank.captures):
        found = of_frames(capture.main_frames)
        if found:
            return found
    return of_black_box(rank)


def of_exception(exception: Cause) -> Place | None:
    """The innermost user line of the traceback (outermost frame first)."""
    for frame in reversed(exception.frames):
        if is_user(frame.file):
            return place(frame.file, frame.line, frame.function, frame.code)
    return None


def of_faults(text: str) -> Place | None:
    """The innermost user line of what faulthandler wrote when the process died in C code."""
    return next(iter(all_of_faults(text)), None)


def all_of_faults(text: str) -> tuple[Place, ...]:
    """The user's lines of the thread that died, innermost first; of the main thread where it was none of Python's."""
    frames = FAULT_FRAME.finditer(_thread_that_died(text))
    return tuple(place(f["file"], int(f["line"]), f["function"]) for f in frames if is_user(f["file"]))


def _thread_that_died(text: str) -> str:
    """Its paragraph. A transport's own thread, which ends the process, has no frames: then that of the main one."""
    # What another process may have written into the same log is another death.
    words = f"{text}Fatal Python error".split("Fatal Python error")
    threads = [each for each in words[min(1, len(words) - 2)].split("\n\n") if FAULT_THREAD.search(each)]
    if not threads:
        return text
    died = next((each for each in threads if "Current thread" in each), "")
    # From the newest to the oldest, which is the main one; of very many threads not all are there.
    return died if FAULT_FRAME.search(died) or "\n...\n" in text else threads[-1]


def of_text(text: str) -> Place | None:
    """From the worker's `file:line:function`."""
    if text.count(":") < 2:
        return None
    file, line, function = text.rsplit(":", 2)
    number = natural(line)
    return place(file, number, function) if number is not None and is_user(file) else None


def of_black_box(rank: RankEvidence) -> Place | None:
    """The user line of the newest event that carries one."""
    newest = rank.recording.events[::-1][:2000]
    return _first_site(rank.recording, newest[newest["phase"] == Phase.BEGIN])


def _first_site(recording: Recording, records: Table) -> Place | None:
    """The user line of the first that has one: a thread of torch's own, as one that writes a checkpoint, has none."""
    found = (of_text(label.site) for label in recording.labels_of(records))
    return next((place for place in found if place is not None), None)


def of_entry(entry: Entry) -> Place | None:
    """The innermost user line of a flight recorder's entry, where it has a stack."""
    for frame in entry.get("frames") or []:
        file = str(frame.get("filename", ""))
        if is_user(file) and not TORCH.search(file):
            return place(file, natural(str(frame.get("line"))) or 0, str(frame.get("name")))
    return None


def of_call(rank: RankEvidence, wall_ns: int) -> Place | None:
    """The user line under which the rank was at that time: where it issued a collective, say.

    The flight recorder's entries carry wall time and, as JSON, no stack; the recording knows both clocks.
    """
    header = rank.recording.header
    if header is None:
        return None
    mono_ns = wall_ns - header.wall_ns + header.monotonic_ns
    events = rank.recording.events
    before = events[(events["t_ns"] <= mono_ns) & (events["phase"] == Phase.BEGIN) & (events["c"] != 0)]
    return _first_site(rank.recording, before[::-1][:20])


def most_seen(samples: Iterable[Sample], *, beside: bool = False) -> Place | None:
    """The innermost user line that a rank's stack samples show most often, of the main thread, or of one beside it."""
    innermost = (
        next((f for f in (s.beside if beside else s.frames) if is_user(f.file)), None) for s in samples
    )
    seen = [frame for frame in innermost if frame]
    if not seen:
        return None
    # A generator or lambda of a line counts for the line.
    (file, line), _ = Counter(frame[:2] for frame in seen).most_common(1)[0]
    (_, _, function), _ = Counter(f for f in seen if f[:2] == (file, line)).most_common(1)[0]
    return place(file, line, function)


def waits_for_peers(sample: Sample) -> bool:
    """Whether the innermost user line stood in a collective."""
    inside = itertools.takewhile(lambda frame: not is_user(frame.file), sample.frames)
    return any("/torch/distributed/" in frame.file for frame in inside)


def in_a_step(sample: Sample) -> bool:
    """Whether the rank was in the model, in its backward, in a collective or in its optimizer: not at what lies between steps."""
    return any(
        frame.function.rpartition(".")[2] in IN_A_STEP or frame.file.endswith(OPTIMIZER)
        for frame in sample.frames
    )


def in_backward(sample: Sample) -> bool:
    return any(frame.function == "_engine_run_backward" for frame in sample.frames)


def short(at: Place) -> str:
    """For a sentence: the file's name, the line and the function; the whole path stands in `where`."""
    return f"{Path(at.file).name}:{at.line}" + (f" in {at.function}" if at.function else "")
