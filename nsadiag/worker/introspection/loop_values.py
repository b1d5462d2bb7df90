"""Values of the variables of a loop, for a reader who asks whether anything that could end it is still new.

Each value is told by a token that is equal for equal values: the whole of a container or a tensor counts, and what
cannot be looked into is named by its type instead.
"""

from __future__ import annotations

import hashlib
import math
import sys
import types
from collections import deque
from typing import Any

PLAIN = {bool, int, float, complex, str, bytes, type(None)}
CONSTANT = (types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType, type)
MOST_NAMES, MOST_ATTRIBUTES, MOST_TOKENS = 200, 40, 512
MOST_PLAIN, MOST_ITEMS, MOST_NUMBERS = 100_000, 64, 1 << 16
MOST_BITS, MOST_TEXT = 256, 1000  # told as they are: Python refuses to write an int of thousands of digits
DEEP = 2  # levels of objects and containers that are looked into
# What they do shows in what they deliver: random numbers, the next item.
DELIVERS = ("random.", "numpy.random.", "torch._C.Generator", "itertools.")
SCALAR = "="  # tokens of plain values begin with it
_whole: dict[type, bool] = {}  # what is known of classes
NOTHING = "~"  # the token of what says nothing of its own


class Values:
    """The tokens of names and of attributes, by function, and the types of what could not be seen in full."""

    def __init__(self) -> None:
        self.tokens: dict[str, dict[str, list[str]]] = {}  # in order, none twice in a row
        self.unseen: dict[str, dict[str, str]] = {}

    def note(self, function: str, values: dict[str, Any]) -> dict[str, str]:
        """One look at the variables of a function; their tokens."""
        found = {}
        for name, value in [*values.items()][:MOST_NAMES]:
            if name.startswith("__") or issubclass(type(value), CONSTANT):  # not what `__class__` says
                continue
            found[name] = self._note(function, name, value)
            for attribute, held in [*_attributes(value).items()][:MOST_ATTRIBUTES]:
                found[f"{name}.{attribute}"] = self._note(function, f"{name}.{attribute}", held)
        return found

    def _note(self, function: str, name: str, value: Any) -> str:
        token, unseen = token_of(value)
        seen = self.tokens.setdefault(function, {}).setdefault(name, [])
        if seen[-1:] != [token] and len(seen) < MOST_TOKENS:
            seen.append(token)
        if unseen:
            self.unseen.setdefault(function, {})[name] = unseen
        return token

    def told(self) -> dict[str, Any]:
        """The same, for JSON."""
        return {"tokens": self.tokens, "unseen": self.unseen}


def token_of(value: Any) -> tuple[str, str]:
    """Its token, and the type of whatever of it could not be seen; "" where all was."""
    unseen: list[str] = []
    words = _words(value, DEEP, unseen)
    short = words if words == NOTHING else _digest(words)
    return SCALAR * (type(value) in PLAIN) + short, unseen[0] if unseen else ""


def _digest(words: str) -> str:
    return hashlib.blake2b(words.encode(errors="replace"), digest_size=8).hexdigest()


def _words(value: Any, deep: int, unseen: list[str]) -> str:
    kind = type(value)
    if kind in PLAIN:
        if kind is float and not math.isfinite(value):
            return repr(value)
        if kind is int and value.bit_length() > MOST_BITS:
            return f"int {hash(value)}"
        return f"{value[:MOST_TEXT]!r}{hash(value)}" if kind in (str, bytes) else repr(value)
    if issubclass(kind, CONSTANT):
        return str(kind.__name__)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if name.startswith(DELIVERS) or (kind.__module__ == "builtins" and kind.__name__.endswith("iterator")):
        unseen.append(name)
        return NOTHING
    if kind in (range, slice) and {type(value.start), type(value.stop), type(value.step)} <= PLAIN:
        return repr(value)
    if kind in (list, tuple, deque, set, frozenset, dict):
        return _of_container(value, deep, unseen)
    if kind.__module__.partition(".")[0] in ("torch", "numpy"):
        return _of_numbers(value, name, unseen)
    inside = _attributes(value)
    if inside and not _is_whole(kind):
        unseen.append(name)
        return f"{name}@{id(value)}"
    if not inside or not deep:
        unseen.append(name if not inside else f"object {name}")
        return f"{name}@{id(value)}"
    return f"{name}@{id(value)}{[(each, _words(held, deep - 1, unseen)) for each, held in inside.items()]}"


def _is_whole(kind: type) -> bool:
    """Whether all that such an object holds is in its dictionary: not of a file, of a container's subclass, or where there are slots."""
    found = _whole.get(kind)
    if found is None:
        made = [each for each in kind.__mro__ if each is not object and each.__module__ != "builtins"]
        # An exception of Python's own holds what it was given, and nothing that goes on.
        holds = [
            each
            for each in kind.__mro__
            if each.__module__ == "builtins" and each is not object and not issubclass(each, BaseException)
        ]
        found = _whole[kind] = not (holds or any(map(_hides, made)))
    return found


def _hides(kind: type) -> bool:
    own = vars(kind)
    return bool(own.get("__slots__")) or any(
        type(each) is types.MethodDescriptorType for each in own.values()
    )


def _of_container(value: Any, deep: int, unseen: list[str]) -> str:
    """A container of plain values as a whole; of a few others one by one. Nothing here runs code of the user's."""
    name = type(value).__name__
    # Neither of these lets another thread run before it is done.
    items = tuple(value.items()) if type(value) is dict else tuple(value)
    parts = (*value.keys(), *value.values()) if type(value) is dict else items
    if len(items) <= MOST_PLAIN and set(map(type, parts)) <= PLAIN:
        whole = hash(frozenset(items)) if type(value) in (set, frozenset) else hash(items)
        return f"{name} {len(items)}:{whole}"
    if len(items) > MOST_ITEMS or not deep:
        unseen.append(f"container {name}")
        return f"{name} {len(items)}"
    if type(value) is dict:
        pairs = [(_words(k, deep - 1, unseen), _words(v, deep - 1, unseen)) for k, v in items]
        return f"{name} {len(items)}:{pairs}"
    return f"{name} {len(items)}:{[_words(each, deep - 1, unseen) for each in items]}"


def _of_numbers(value: Any, name: str, unseen: list[str]) -> str:
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    array = None
    if torch is not None and type(value) in (torch.Tensor, torch.nn.Parameter):
        if value.device.type == "cpu" and value.layout is torch.strided and value.numel() <= MOST_NUMBERS:
            if value.is_shared():  # another process may write to it
                unseen.append(f"shared {name}")
            with torch.no_grad():
                if value.numel() == 1 and not value.is_complex():
                    return _words(value.item(), 0, unseen)
                return f"{tuple(value.shape)}{hash(tuple(value.flatten().tolist()))}"
    elif numpy is not None and (type(value) is numpy.ndarray or issubclass(type(value), numpy.generic)):
        array = value if value.dtype.kind in "biufc" and value.size <= MOST_NUMBERS else None
    elif name.startswith(("torch.device", "torch.dtype", "torch.Size", "numpy.dtype")):
        return str(value)
    if array is None:
        unseen.append(name)
        return f"{name}@{id(value)}"
    return (
        _words(float(array), 0, unseen)
        if array.size == 1 and array.dtype.kind in "biuf"
        else f"{array.shape}{hash(array.tobytes())}"
    )


def _attributes(value: Any) -> dict[str, Any]:
    """Attributes of an object of the user's; nothing of what libraries made, whose parts say nothing to a reader."""
    kind = type(value)
    if kind in PLAIN or kind.__module__.partition(".")[0] in ("builtins", "torch", "numpy", "collections"):
        return {}
    try:
        inside = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return inside if type(inside) is dict else {}
