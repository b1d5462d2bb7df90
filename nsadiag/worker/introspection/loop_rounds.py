"""The rounds of a main thread that computes, reported on request: its lines, and whether what it holds changes.

Asked over torch's worker server of a rank that is in a loop whose values nobody can see from outside: tensors, objects.
Values leave the process as digests only.
"""

from __future__ import annotations

import hashlib
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from types import FrameType
from typing import Any

from nsadiag.worker.interruptions import tolerated
from nsadiag.worker.introspection.loop_values import Values
from nsadiag.worker.introspection.traced_rounds import TracedRounds
from nsadiag.worker.place import is_user_code

SECONDS, INTERVAL_S = 1.2, 0.01
FEWEST, MOST_S = 40, 2.5  # samples, also on a busy machine, where there is time for so many
INNERMOST = 8  # functions whose values are told in full
MOST_FRAMES, MOST_NAMES, MOST_VALUES = 32, 200, 64
MOST_ITEMS, LONGEST_TEXT = 16, 1000
FEW_ELEMENTS, MOST_ELEMENTS = 64, 1 << 20  # of a tensor: told one by one; told by their sum
# How a rank whose lines are traced already is looked at line by line (rehearsal/paths/recorder.py).
observe: Callable[[Callable[[FrameType], None], threading.Event, float], bool] | None = None
PLAIN = (bool, int, float, complex, str, bytes, type(None))


def of_main_thread() -> dict[str, Any]:
    """The report on the main thread."""
    return report(threading.main_thread().ident or 0)


def report(thread: int) -> dict[str, Any]:
    """The lines of the user's functions that the thread is in all the time, outermost first, in order.

    And of each function that was seen, by variable, the values of the first half and of the second, as digests; of the
    innermost functions in full, as tokens.
    """
    traced = TracedRounds() if observe is not None and thread == threading.main_thread().ident else None
    if observe is not None and traced is not None and observe(traced.at_line, traced.done, MOST_S):
        told = _told(traced.shown, traced.values(), traced.state)
        rows = {f"{each['filename']}:{each['name']}" for each in told["frames"]} & {*traced.rows}
        return {**told, "rows": {name: traced.rows[name] for name in rows}, "closed": traced.closed()}
    shown: list[list[tuple[str, str, int]]] = []
    values: dict[str, dict[str, tuple[list[str], list[str]]]] = {}
    state = Values()
    began = time.monotonic()
    while (passed := time.monotonic() - began) < MOST_S and (passed < SECONDS or len(shown) < FEWEST):
        shown.append(_look(thread, values, state, late=len(shown) > FEWEST / 2))
        time.sleep(INTERVAL_S)
    return _told(shown, values, state)


def _told(
    shown: list[list[tuple[str, str, int]]],
    values: dict[str, dict[str, tuple[list[str], list[str]]]],
    state: Values,
) -> dict[str, Any]:
    # Some are looked at while the thread is calling or returning, and lack their outer frames.
    outer = Counter(s[0][:2] for s in shown if s).most_common(1)
    shown = [s for s in shown if s and s[0][:2] == outer[0][0]]
    depth = 0
    while shown and all(len(s) > depth and s[depth][:2] == shown[0][depth][:2] for s in shown):
        depth += 1
    return {
        "frames": [
            {"filename": shown[0][n][0], "name": shown[0][n][1], "lines": [s[n][2] for s in shown]}
            for n in range(depth)
        ],
        "within": sorted({frame for s in shown for frame in s[depth:]}),
        "values": values,
        "state": state.told(),
    }


def _look(
    thread: int,
    values: dict[str, dict[str, tuple[list[str], list[str]]]],
    state: Values,
    *,
    late: bool,
) -> list[tuple[str, str, int]]:
    """The user's frames, outermost first; notes what their variables hold."""
    frames: list[tuple[FrameType, int]] = []
    frame = sys._current_frames().get(thread)
    while frame is not None:
        if is_user_code(frame.f_code) and len(frames) < MOST_FRAMES:
            frames.append((frame, frame.f_lineno))
        frame = frame.f_back
    if any(line is None for _, line in frames):
        return []  # between two lines of one of them, which the interpreter has not numbered
    # What follows takes longer, and the thread goes on meanwhile. No frame is held on to: it keeps its variables alive.
    for number, (frame, _) in enumerate(frames):
        code = frame.f_code
        function, held = f"{code.co_filename}:{code.co_name}", frame.f_locals
        known = values.setdefault(function, {})
        for name, value in [*held.items()][:MOST_NAMES]:
            _note(known, name, value, late=late)
        if number < INNERMOST:
            state.note(function, {**_globals_of(frame), **held})
    return [(frame.f_code.co_filename, frame.f_code.co_name, line) for frame, line in reversed(frames)]


def _globals_of(frame: FrameType) -> dict[str, Any]:
    """Those that the function names."""
    return {name: frame.f_globals[name] for name in frame.f_code.co_names if name in frame.f_globals}


def _note(known: dict[str, tuple[list[str], list[str]]], name: str, value: Any, *, late: bool) -> None:
    digest = None if name.startswith("__") else digest_of(value)
    if digest is not None:
        seen = known.setdefault(name, ([], []))[late]
        if digest not in seen and len(seen) < MOST_VALUES:
            seen.append(digest)


def digest_of(value: Any) -> str | None:
    """Equal for equal values; None of what cannot be looked into."""
    words = _words(value, 2)
    return hashlib.blake2b(words.encode(errors="replace"), digest_size=8).hexdigest() if words else None


def _words(value: Any, deep: int) -> str | None:
    if isinstance(value, PLAIN):
        # The end of a long text is where one that grows differs.
        text = repr(value[-LONGEST_TEXT:] if isinstance(value, str | bytes) else value)
        return f"{text}{len(value)}" if isinstance(value, str | bytes) else text
    numbers = _numbers(value)
    if numbers is not None or not deep:
        return numbers
    # Of exact types alone: whatever is derived from them may run code of the user's.
    if type(value) in (list, tuple):
        ends = [*value[:MOST_ITEMS], *value[-MOST_ITEMS:]]
        return f"{len(value)}:{[_words(item, deep - 1) for item in ends]}"
    if type(value) is dict:
        items = [*value.items()][-MOST_ITEMS:]
        return f"{len(value)}:{[(_words(k, 0), _words(v, deep - 1)) for k, v in items]}"
    if type(value) in (set, frozenset, bytearray, deque):
        return str(len(value))
    if type(value).__module__.partition(".")[0] in ("torch", "numpy", "builtins"):
        return None
    with tolerated(AttributeError):
        inside = object.__getattribute__(value, "__dict__")
        return _words(inside, deep - 1) if type(inside) is dict and inside else None
    return None


def _numbers(value: Any) -> str | None:
    """The numbers in tensors of a CPU, and in numpy's arrays and numbers."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and type(value) in (torch.Tensor, torch.nn.Parameter):
        if value.device.type != "cpu" or value.layout is not torch.strided or value.numel() > MOST_ELEMENTS:
            return None
        with torch.no_grad():
            few = value.numel() <= FEW_ELEMENTS
            return f"{value.tolist() if few else (tuple(value.shape), value.double().sum().item())}"
    if numpy is not None and isinstance(value, numpy.ndarray | numpy.generic):
        few = value.size <= FEW_ELEMENTS
        if value.size > MOST_ELEMENTS or value.dtype.kind not in "biufc":
            return None
        return f"{value.tolist() if few else (value.shape, value.sum().item())}"
    return None
