"""The innermost line of user code on a stack: not torch's, not the standard library's, not ours."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import CodeType, FrameType

from nsadiag.evidence.user_code import TYPED, is_user_of, roots_of

_roots: tuple[str, ...] = ()
# By file: a string remembers its hash, a code object computes it from all its constants.
users_files: dict[str, bool] = {}


def learn_user_code() -> list[str]:
    """Installed packages that are the user's in this process, by how it was started; from now on they count as such."""
    global _roots
    found = roots_of(getattr(sys, "orig_argv", sys.argv), os.getppid())
    _roots = tuple(found)
    users_files.clear()
    return found


def is_user_code(code: CodeType) -> bool:
    """Whether it is the user's: not torch's, nor another package's, nor the standard library's, nor ours."""
    file = code.co_filename
    known = users_files.get(file)
    if known is None:
        known = users_files[file] = file.startswith(TYPED) or is_user_of(file, _roots)
    return known


def user_place() -> str:
    """`file:line:function` of the caller's innermost user frame, "" if there is none."""
    frame: FrameType | None = sys._getframe(1)
    known = users_files.get
    while frame is not None:
        code = frame.f_code
        # A call for each frame would cost more than all the rest.
        user = known(code.co_filename)
        if user or (user is None and is_user_code(code)):
            return f"{code.co_filename}:{frame.f_lineno}:{code.co_name}"
        frame = frame.f_back
    return ""


def user_stack(most: int = 30) -> list[str]:
    """The same of all the user's frames, innermost first."""
    found: list[str] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and len(found) < most:
        code = frame.f_code
        if is_user_code(code):
            found.append(f"{code.co_filename}:{frame.f_lineno}:{code.co_name}")
        frame = frame.f_back
    return found


def label_of(group: str, place: str, detail: str) -> str:
    """The text that a collective's event carries of its call beside its number."""
    return f"{group}\t{place}\t{detail}" if detail else f"{group}\t{place}"


class Places:
    """Numbers of the names "\\tplace" that events carry, found without writing the name out.

    What runs once a step runs out of caches that the model has filled: each thing that it touches costs microseconds.
    """

    MOST_CODES = 4096  # they are kept, so that no other is taken for one of them

    def __init__(self, number_of: Callable[[str], int]) -> None:
        self._number_of = number_of
        self._kept: list[CodeType] = []
        # By address, since the hash of a code object is computed from all its constants; None where it is not the user's.
        self._known: dict[int, dict[int | tuple[int, str, str], int] | None] = {}

    def here(self) -> int:
        """The number of the caller's innermost user frame, as `user_place` finds it."""
        frame: FrameType | None = sys._getframe(1)
        known = self._known
        while frame is not None:
            code = frame.f_code
            key = id(code)
            numbers = known[key] if key in known else self._learn(code)
            if numbers is not None:
                return numbers.get(frame.f_lasti) or self._add(frame, numbers)
            frame = frame.f_back
        return self._number_of("\t")

    def labelled(self, group: str, detail: str) -> int:
        """The number of "group\\tplace\\tdetail", without the last where there is none: what a collective's event carries."""
        frame: FrameType | None = sys._getframe(1)
        known = self._known
        while frame is not None:
            code = frame.f_code
            key = id(code)
            numbers = known[key] if key in known else self._learn(code)
            if numbers is not None:
                label = (frame.f_lasti, group, detail)
                if (number := numbers.get(label)) is None:
                    place = f"{code.co_filename}:{frame.f_lineno}:{code.co_name}"
                    number = self._number_of(label_of(group, place, detail))
                    if number:  # else there is no room for more names, and none is to be taken here
                        numbers[label] = number
                return number
            frame = frame.f_back
        return self._number_of(label_of(group, "", detail))

    def _learn(self, code: CodeType) -> dict[int | tuple[int, str, str], int] | None:
        numbers: dict[int | tuple[int, str, str], int] | None = {} if is_user_code(code) else None
        if len(self._kept) < self.MOST_CODES:
            self._kept.append(code)
            self._known[id(code)] = numbers
        return numbers

    def _add(self, frame: FrameType, numbers: dict[int | tuple[int, str, str], int]) -> int:
        code = frame.f_code
        number = self._number_of(f"\t{code.co_filename}:{frame.f_lineno}:{code.co_name}")
        numbers[frame.f_lasti] = number
        return number
