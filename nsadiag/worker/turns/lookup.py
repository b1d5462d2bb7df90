"""The plain value of a name in a frame: no code of the user's runs, and nothing is kept alive."""

from __future__ import annotations

import ctypes
import sys
from types import FrameType, GetSetDescriptorType
from typing import Any

from nsadiag.evidence.rehearsal.reads import Read
from nsadiag.worker.interruptions import pass_on
from nsadiag.worker.rehearsal.paths.values import ABSENT, LONGEST, PATHS, SIZED, text_of
from nsadiag.worker.turns.units import OPTIMIZED, OTHER

_HEAP = 1 << 9  # Py_TPFLAGS_HEAPTYPE
_MOST_KINDS = 512
# `f_locals` of a running function is a dictionary in Python 3.12: asking for it would keep all its tensors.
_get_variable: Any = None
_has_dictionary: dict[int, tuple[type, bool]] = {}


def _local(frame: FrameType, name: str) -> Any:
    if not frame.f_code.co_flags & OPTIMIZED or sys.version_info >= (3, 13):
        return frame.f_locals.get(name, ABSENT)
    global _get_variable
    if _get_variable is None:
        _get_variable = ctypes.pythonapi.PyFrame_GetVar
        _get_variable.restype, _get_variable.argtypes = ctypes.py_object, (ctypes.py_object, ctypes.py_object)
    try:
        return _get_variable(frame, name)
    except NameError as error:
        pass_on(error)
        return ABSENT


def plain_value(frame: FrameType, read: Read) -> Any:
    """A number, None, a bool, or a text that stands for what it is; OTHER where it is nothing of these."""
    code, name = frame.f_code, read[0]
    optimized = code.co_flags & OPTIMIZED
    held: Any = ABSENT
    if not optimized or name in code.co_varnames or name in code.co_cellvars or name in code.co_freevars:
        held = _local(frame, name)
    if held is ABSENT:
        held = frame.f_globals.get(name, ABSENT)
    for name in read[1:]:
        held = _own(held).get(name, ABSENT)
    kind = type(held)
    if kind is int or kind is float or held is None or kind is bool:
        return held
    if kind is str and len(held) <= LONGEST:
        return repr(held)
    if kind is str or kind in PATHS or kind in SIZED:
        return text_of(held)
    return OTHER


def _own(held: Any) -> dict[str, Any]:
    """The attributes that an instance holds itself: a property would run, and so would a class's own ways to find attributes."""
    kind = type(held)
    known = _has_dictionary.get(id(kind))
    if known is None:
        if len(_has_dictionary) >= _MOST_KINDS:
            return {}
        known = _has_dictionary[id(kind)] = (kind, _has_plain_dictionary(kind))
    return object.__getattribute__(held, "__dict__") if known[1] else {}


def _has_plain_dictionary(kind: type) -> bool:
    if not type.__dict__["__flags__"].__get__(kind) & _HEAP:
        return False
    for each in type.__dict__["__mro__"].__get__(kind):
        found = type.__dict__["__dict__"].__get__(each).get("__dict__")
        if found is not None:
            return isinstance(found, GetSetDescriptorType)
    return False
