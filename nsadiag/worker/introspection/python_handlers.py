"""Questions that torch's worker server answers in Python: each takes the interpreter lock for as long as the answer."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable
from typing import Any

from nsadiag.worker.interruptions import pass_on

_offered: set[str] = set()


def offer(name: str, tell: Callable[[], Any]) -> None:
    """Has the server answer to that name with what `tell` returns, as JSON; a torch that takes no handlers leaves it out.

    torch keeps handlers for the whole process, and refuses a second one of the same name.
    """
    if name in _offered:
        return
    try:
        from torch._C._distributed_c10d import _register_handler
    except ImportError:
        return

    def answer(_request: Any, response: Any) -> None:
        try:
            body = json.dumps(tell())
        except Exception as error:
            pass_on(error)
            # Raised into torch's server it would be an answer, too, but one without a reason.
            body = json.dumps({"error": repr(error)})
        response.set_content(body, "application/json")
        response.set_status(200)

    _register_handler(name, answer)
    _offered.add(name)
    # torch lets go of it after Python has ended: it must still be there then.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(answer))
