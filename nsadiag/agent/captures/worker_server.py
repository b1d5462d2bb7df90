"""Asks torch's C++ worker server, over its unix socket; it answers while the rank's GIL is held."""

from __future__ import annotations

import http.client
import json
from pathlib import Path
from typing import Any

from nsadiag.agent.captures.failure import CaptureError, NotApplicable
from nsadiag.deadlines.deadline import Deadline
from nsadiag.deadlines.http import UnixHttp
from nsadiag.evidence.layout import (
    LEAVING,
    PYTHON_HANDLER,
    ROUNDS_HANDLER,
    TASKS_HANDLER,
    UNGRADED_HANDLER,
)

TIMEOUT_S = 4.0
GREETING_S = 2.0  # it answers this in under a millisecond, if it answers at all
# They wait for the interpreter lock: a thread that does so while Python ends is torn down by force, and C++ answers that
# by aborting the process. A rank that has come to its exit handlers has given its socket another name.
NEED_PYTHON = frozenset(
    {
        TASKS_HANDLER,
        ROUNDS_HANDLER,
        UNGRADED_HANDLER,
        PYTHON_HANDLER,
        "dump_traceback",
        "fr_trace_pickle",
        "dump_nccl_trace_pickle",
    }
)
MAX_ANSWER = 256 * 2**20


class WorkerServer:
    """One rank's server during one look: remembers what it offers, and that it is silent."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._offered: frozenset[str] | None = None
        self._silent: str | None = None

    def handlers(self) -> frozenset[str]:
        """The names it answers to. Raises CaptureError if there is no server or no answer in time."""
        if self._silent:
            raise CaptureError(self._silent)
        if self._offered is None:
            try:
                body = self._exchange("GET", "/handler/", GREETING_S)
                self._offered = frozenset(map(str, json.loads(body)))
            except (CaptureError, ValueError) as error:
                self._silent = str(error)
                raise CaptureError(self._silent) from None
        return self._offered

    def ask(self, handler: str, query: str = "", timeout_s: float = TIMEOUT_S) -> bytes:
        """The answer of one handler. Raises NotApplicable if it offers none of that name, else CaptureError."""
        if handler not in self.handlers():
            raise NotApplicable(f"this torch's worker server has no {handler}")
        if handler in NEED_PYTHON and self._path is not None and not self._path.exists():
            raise NotApplicable("the rank's interpreter is about to end")
        return self._exchange("POST", f"/handler/{handler}{query}", timeout_s)

    def ask_json(self, handler: str, timeout_s: float = TIMEOUT_S) -> Any:
        """The answer of one of our handlers. Raises as `ask` does, and CaptureError where it failed or is cut off."""
        try:
            told = json.loads(self.ask(handler, timeout_s=timeout_s))
        except ValueError:
            raise CaptureError(f"worker server, {handler}: no JSON") from None
        if isinstance(told, dict) and "error" in told:
            raise CaptureError(f"worker server, {handler}: {told['error']}")
        return told

    def _exchange(self, method: str, address: str, timeout_s: float) -> bytes:
        path = self._path
        if path is not None and not path.exists():
            path = path.with_name(f"{path.stem}{LEAVING}")
        if path is None or not path.exists():
            raise CaptureError("the rank has no worker server")
        connection = UnixHttp(path, Deadline(timeout_s))
        name = address.removeprefix("/handler/").partition("?")[0] or "list of handlers"
        try:
            connection.request(method, address)
            response = connection.getresponse()
            body = response.read(MAX_ANSWER)
        except TimeoutError:
            raise CaptureError(f"worker server, {name}: no answer in {timeout_s:g} s") from None
        except (OSError, http.client.HTTPException) as error:
            raise CaptureError(f"worker server, {name}: {error or type(error).__name__}") from None
        finally:
            connection.close()
        if response.status != http.client.OK:
            said = body[:200].decode(errors="replace")
            raise CaptureError(f"worker server, {name}: HTTP {response.status} {said}")
        return body
