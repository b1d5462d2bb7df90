"""Small values as text: whatever would run code of the user's, or take time, is left out."""

from __future__ import annotations

import itertools
import pathlib
import sys
from collections import deque
from types import FrameType
from typing import Any

from nsadiag.evidence.rehearsal.paths import TENSOR
from nsadiag.evidence.rehearsal.reads import Read
from nsadiag.worker.interruptions import pass_on

LONGEST = 40
MOST_ITEMS = 4
SIZED = (list, tuple, dict, set, frozenset, deque, range, bytes, bytearray)
PATHS = (pathlib.PosixPath, pathlib.PurePosixPath)
ABSENT = object()


def value_of(frame: FrameType, read: Read) -> str:
    """The value of a name in that frame; "" where it has none that is worth a word."""
    held: Any = frame.f_locals.get(read[0], ABSENT)
    if held is ABSENT:
        held = frame.f_globals.get(read[0], ABSENT)
    for name in read[1:]:
        # A property would run; what an instance holds is in its dictionary.
        owned = held.__dict__ if type(held).__flags__ & _HEAP and hasattr(type(held), "__dict__") else {}
        held = owned.get(name, ABSENT) if isinstance(owned, dict) else ABSENT
    return text_of(held)


_HEAP = 1 << 9  # Py_TPFLAGS_HEAPTYPE: a class that Python code made


def text_of(value: object) -> str:
    """A number, a short text, or the size of a container."""
    kind = type(value)
    if kind in (int, bool, type(None)):
        text = repr(value)
        return text if len(text) <= LONGEST else f"int of {len(text)} digits"
    if kind is float:
        return f"{value:.9g}"
    if kind is str:
        return repr(value) if len(value) <= LONGEST else f"str of {len(value)} characters"  # type: ignore[arg-type]
    if kind in PATHS:
        return repr(str(value))[: LONGEST * 3]
    if kind in SIZED:
        return _sized(value)
    torch = sys.modules.get("torch")
    if torch is not None and kind is getattr(torch, "Tensor", None):
        return _element(torch, value)
    return ""


def _element(torch: Any, tensor: Any) -> str:
    """The one number of a tensor on the CPU; not where somebody watches operations, who would see one that is ours."""
    core = torch._C
    if tensor.numel() != 1 or not tensor.is_cpu or tensor.layout is not torch.strided or tensor.is_complex():
        return ""
    if (
        core._len_torch_dispatch_stack()
        or core._len_torch_function_stack()
        or core._functorch.peek_interpreter_stack()
    ):
        return ""
    try:
        return f"{TENSOR}{tensor.item():.9g}"
    except RuntimeError as error:  # its memory is freed, or it is of another kind than it looks
        pass_on(error)
        return ""


def _sized(value: Any) -> str:
    name = type(value).__name__
    plain = isinstance(value, list | tuple) and len(value) <= MOST_ITEMS
    items = [text_of(each) for each in value if type(each) in (int, bool, float, str)] if plain else []
    if plain and len(items) == len(value):
        return f"{name} [{', '.join(items)}]"
    keys = list(itertools.islice(value, MOST_ITEMS)) if isinstance(value, dict | set | frozenset) else []
    if keys and all(type(each) in (int, str) for each in keys):
        # In the order of a loop over it, which may be what differs.
        return f"{name} of {len(value)}: {', '.join(map(text_of, keys))}{', …' if len(value) > MOST_ITEMS else ''}"
    return f"{name} of {len(value)}"
