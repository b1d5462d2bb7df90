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
# By file: a string remembers its hash, a code object computes it from all its constants.
_is_user: dict[str, bool] = {}


def is_user_code(code: CodeType) -> bool:
    """Whether it is neither torch's, nor the standard library's, nor ours."""
    file = code.co_filename
    known = _is_user.get(file)
    if known is None:
        known = _is_user[file] = not file.startswith(_NOT_USER)
    return known


def user_place() -> str:
    """`file:line:function` of the caller's innermost user frame, "" if there is none."""
    frame: FrameType | None = sys._getframe(1)
    known = _is_user.get
    while frame is not None:
        code = frame.f_code
        # A call for each frame would cost more than all the rest.
        user = known(code.co_filename)
        if user or (user is None and is_user_code(code)):
            return f"{code.co_filename}:{frame.f_lineno}:{code.co_name}"
        frame = frame.f_back
    return ""
