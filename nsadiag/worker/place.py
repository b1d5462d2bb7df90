"""The innermost line of user code on a stack: not torch's, not the standard library's, not ours."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path
from types import CodeType, FrameType

_OURS = str(Path(__file__).resolve().parents[1])
_NOT_USER = tuple(
    {*(sysconfig.get_paths()[k] for k in ("stdlib", "platstdlib", "purelib", "platlib")), _OURS, "<frozen"}
)
_is_user: dict[CodeType, bool] = {}


def is_user_code(code: CodeType) -> bool:
    """Whether it is neither torch's, nor the standard library's, nor ours."""
    known = _is_user.get(code)
    if known is None:
        known = _is_user[code] = not code.co_filename.startswith(_NOT_USER)
    return known


def user_place() -> str:
    """`file:line:function` of the caller's innermost user frame, "" if there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if is_user_code(frame.f_code):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}:{frame.f_code.co_name}"
        frame = frame.f_back
    return ""
