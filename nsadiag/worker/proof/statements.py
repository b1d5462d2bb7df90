"""Writes down what each line of the user's makes, in one step: values, their gradients, and which gradients and parameters a line changes."""

from __future__ import annotations

import dis
import math
import sys
import threading
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any

import torch

from nsadiag.worker.interruptions import pass_on
from nsadiag.worker.place import is_user_code
from nsadiag.worker.proof.journal import journal

MOST_ROWS = 20_000
MOST_BEFORE = 4_000  # numbers before the step
MOST_ELEMENTS = 1 << 20  # of one value
MOST_CHECKED = 1 << 22  # of all parameters, which are looked at after each line outside of forward
MOST_PARTS = 16  # of a list or an object
MOST_NUMBERS = 4096  # of a list of them

Seen = dict[
    str, tuple[int, Any, int]
]  # by name: address, the object, which is kept alive by it, and its version


class Statements:
    """The trace function of one process. `step` is asked for the number of the step that runs, `outside` whether no module runs."""

    def __init__(self, wanted: int, step: Callable[[], int], outside: Callable[[], bool]) -> None:
        self._wanted, self._step, self._outside = wanted, step, outside
        self._thread = threading.get_ident()
        self._frames: dict[int, tuple[FrameType, int, Seen]] = {}
        self._rows = 0
        self._held: dict[str, torch.Tensor] = {}  # parameters, by name
        self._assigned: dict[CodeType, dict[int, set[str]]] = {}
        self._optimizers: list[Any] = []
        self._set: dict[tuple[str, str], float] = {}
        self._sums: dict[tuple[str, str], tuple[float, float]] = {}
        self._checks = False

    def begin(self) -> None:
        """From here on; not where a debugger or coverage traces."""
        if sys.gettrace() is None:
            sys.settrace(self._call)

    def end(self) -> None:
        """The last line has run."""
        if sys.gettrace() == self._call:
            sys.settrace(None)

    def holds(self, parameters: dict[str, torch.Tensor], optimizers: list[Any]) -> None:
        """The parameters that lines may change from here on, and what steps them."""
        self._held, self._optimizers = parameters, optimizers
        self._set = dict(self._settings())
        self._checks = sum(p.numel() for p in parameters.values()) <= MOST_CHECKED
        self._sums = dict(self._changes())

    # -- frames -----------------------------------------------------------------------------------

    def _call(self, frame: FrameType, _event: str, _: Any) -> Any:
        code = frame.f_code
        if code.co_filename[0] == "<" or not is_user_code(code) or threading.get_ident() != self._thread:
            return None
        try:
            self._enter(frame)
        except Exception as error:
            pass_on(error)
        return self._local

    def _enter(self, frame: FrameType) -> None:
        code = frame.f_code
        seen: Seen = {}
        self._frames[id(frame)] = (frame, 0, seen)
        arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        caller = self._stack(frame.f_back)[:1]
        for name in arguments:
            if name in frame.f_locals and name != "self":
                value = frame.f_locals[name]
                seen[name] = (id(value), value, _version(value))
                self._value(f"{code.co_name}({name})", value, caller[0] if caller else "", name)

    def _local(self, frame: FrameType, event: str, given: Any) -> Any:
        if event in ("line", "return"):
            try:
                self._ran(frame, event, given)
            except Exception as error:
                pass_on(error)
        return self._local

    def _ran(self, frame: FrameType, event: str, given: Any) -> None:
        _, last, seen = self._frames.get(id(frame), (frame, 0, {}))
        if last:
            place, assigned = _place(frame, last), self._assigned_at(frame.f_code).get(last, ())
            for name, value in list(frame.f_locals.items()):
                if name.startswith("__") or name == "self":
                    continue
                known = seen.get(name)
                is_other = known is None or known[0] != id(value) or known[2] != _version(value)
                if is_other or (name in assigned and isinstance(value, torch.Tensor)):
                    seen[name] = (id(value), value, _version(value))
                    self._value(name, value, place)
            self._attributes(frame.f_locals.get("self"), seen, place)
            if event == "return" and given is not None:
                self._value("return", given, place)
            if self._held and self._outside() and torch._C._current_graph_task_id() == -1:
                self._changed([place, *self._stack(frame.f_back)])
        if event == "return":
            self._frames.pop(id(frame), None)
        else:
            self._frames[id(frame)] = (frame, frame.f_lineno, seen)

    def _assigned_at(self, code: CodeType) -> dict[int, set[str]]:
        """The names that each line gives a value: also where it is the one they had."""
        if code not in self._assigned:
            lines = {at: line for begin, end, line in code.co_lines() if line for at in range(begin, end, 2)}
            found = self._assigned[code] = {}
            for each in dis.get_instructions(code):
                if each.opname.startswith(("STORE_FAST", "STORE_NAME")) and each.offset in lines:
                    names = each.argval if isinstance(each.argval, tuple) else (each.argval,)
                    found.setdefault(lines[each.offset], set()).update(names)
        return self._assigned[code]

    def _attributes(self, owner: Any, seen: Seen, place: str) -> None:
        """Numbers and tensors that the object holds itself."""
        for name, value in list(getattr(owner, "__dict__", {}).items())[:64]:
            key = f"self.{name}"
            known = seen.get(key)
            if known is None or known[0] != id(value):
                seen[key] = (id(value), value, 0)
                if known is not None or place.endswith(":__init__"):
                    self._value(key, value, place)

    def _stack(self, frame: FrameType | None) -> list[str]:
        """The user's lines that are being run, innermost first."""
        found: list[str] = []
        while frame is not None and len(found) < 8:
            if is_user_code(frame.f_code) and frame.f_code.co_filename[0] != "<":
                found.append(_place(frame, frame.f_lineno))
            frame = frame.f_back
        return found

    # -- rows -------------------------------------------------------------------------------------

    def _value(self, name: str, value: Any, place: str, local: str = "") -> None:
        step = self._step()
        if step > self._wanted or journal.is_full or self._rows >= MOST_ROWS:
            return
        whole = step == self._wanted
        if not whole and self._rows >= MOST_BEFORE:
            return
        backward = torch._C._current_graph_task_id() != -1
        for text, part in _parts(name, value):
            about = {
                "name": text,
                "number": self._rows,
                "place": place,
                "notes": ["backward"] * backward,
                "local_name": local,
            }
            if isinstance(part, float):
                journal.write("value", step, value=part if math.isfinite(part) else None, **about)
            elif whole and part.numel() <= MOST_ELEMENTS:
                graded = part.requires_grad and not part.is_leaf
                with torch.no_grad():
                    journal.write("value", step, part, graded=graded, **about)
                if graded and not backward:
                    part.register_hook(_Pulled(step, self._rows))
            else:
                continue
            self._rows += 1

    def _changed(self, stack: list[str]) -> None:
        """By the line that has run."""
        for key, value in self._settings():
            if self._set.get(key) != value and self._rows < MOST_ROWS:
                self._set[key] = value
                journal.write("touched", self._step(), name=key[1], number=self._rows, value=value, place=stack[0], notes=[key[0], *stack[1:]])  # fmt: skip
                self._rows += 1
        if self._checks and self._step() >= self._wanted:
            self._touched(stack)

    def _settings(self) -> Iterator[tuple[tuple[str, str], float]]:
        """Learning rates, and which parameters are trained."""
        for number, optimizer in enumerate(self._optimizers):
            for at, group in enumerate(optimizer.param_groups):
                yield ("rate", f"{number}.{at}"), float(group.get("lr", 0.0))
        for name, held in self._held.items():
            yield ("trained", name), float(held.requires_grad)

    def _touched(self, stack: list[str]) -> None:
        """Gradients and parameters that have other values than after the line before."""
        for key, sums in self._changes():
            if self._sums.get(key) == sums:
                continue
            self._sums[key] = sums
            kind, name = key
            held = self._held[name]
            tensor = held if kind == "parameter" else held.grad
            if tensor is not None and self._rows < MOST_ROWS:
                journal.write("touched", self._step(), tensor, name=name, number=self._rows, place=stack[0], notes=[kind, *stack[1:]])  # fmt: skip
                self._rows += 1

    def _changes(self) -> Iterator[tuple[tuple[str, str], tuple[float, float]]]:
        with torch.no_grad():
            for name, held in self._held.items():
                for kind, tensor in (("parameter", held), ("gradient", held.grad)):
                    if tensor is None:
                        yield (kind, name), (0.0, -1.0)
                        continue
                    plain = getattr(tensor, "_local_tensor", tensor).detach().double()
                    yield (kind, name), (float(plain.sum()), float((plain * plain).sum()))


class _Pulled:
    """The hook of one value."""

    def __init__(self, step: int, number: int) -> None:
        self._step, self._number = step, number

    def __call__(self, gradient: torch.Tensor) -> None:
        try:
            with torch.no_grad():
                journal.write("pulled", self._step, gradient, number=self._number)
        except Exception as error:
            pass_on(error)


def _place(frame: FrameType, line: int) -> str:
    return f"{frame.f_code.co_filename}:{line}:{frame.f_code.co_name}"


def _version(value: Any) -> int:
    return value._version if isinstance(value, torch.Tensor) and not value.is_inference() else 0


def _parts(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The tensors and numbers in it; a list of whole numbers is one tensor."""
    if isinstance(value, torch.nn.Parameter):
        return
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield name, float(value)
    elif isinstance(value, list | tuple | range) and value:
        if len(value) <= MOST_NUMBERS and all(type(each) is int for each in value):
            yield name, torch.tensor(list(value))
        elif not isinstance(value, range):
            for number, each in enumerate(value[:MOST_PARTS]):
                if isinstance(each, torch.Tensor | int | float):
                    yield from _parts(f"{name}[{number}]", each)
    elif isinstance(value, dict):
        for key, each in list(value.items())[:MOST_PARTS]:
            if isinstance(each, torch.Tensor | int | float):
                yield from _parts(f"{name}[{key!r}]", each)
