"""NCCL's own account of its communicators: one thread a process keeps it, and any of them answers for the whole job."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
from pathlib import Path
from typing import Any

from nsadiag.agent.captures.target import CaptureError, NodeTarget, NotApplicable
from nsadiag.deadlines.deadline import Deadline
from nsadiag.deadlines.sockets import Socket, connect
from nsadiag.evidence.layout import write_json, write_private
from nsadiag.evidence.secrets.masking import mask_text

DEFAULT_ADDRESS = "localhost:28028"
PROTOCOL = 2
# NCCL waits this long for processes that do not answer it, and a little more for what they relay.
COLLECT_S = 3
TOTAL_S = COLLECT_S + 4.0
MAX_ANSWER = 64 * 2**20
ATTEMPTS = 20  # two milliseconds each
# The end of a line that the next one, a key or an object, ought to be separated from.
NO_COMMA = re.compile(r'(?<=[^\s,:\[{])[ \t]*\n(?=\s*["{])')


def ras(target: NodeTarget) -> dict[str, Any]:
    """ras.json: NCCL's status of all communicators and ranks (RAS, NCCL 2.24; as text in ras.txt before 2.28)."""
    host, port = address(os.environ.get("NCCL_RAS_ADDR", DEFAULT_ADDRESS))
    text, as_json = _of_our_job(host, port, target.pids)
    document = parsed(text) if as_json else None
    if document is None:
        write_private(target.directory.ras_text, mask_text(text))
    else:
        write_json(target.directory.ras, document)
    if as_json and document is None:
        raise CaptureError(
            f"NCCL RAS: no valid JSON ({len(text)} bytes, kept in {target.directory.ras_text.name})"
        )
    return {"format": "json" if as_json else "text", "at": f"{host}:{port}"}


def parsed(text: str) -> Any:
    """The document; None if it is none, even with the comma that NCCL 2.28 leaves out where ranks are missing."""
    for candidate in (text, NO_COMMA.sub(",\n", text)):
        with contextlib.suppress(ValueError):
            return json.loads(candidate)
    return None


def _of_our_job(host: str, port: int, pids: tuple[int, ...]) -> tuple[str, bool]:
    """Asks again while another job answers: the port is the machine's, and for each connection the kernel picks anew
    who of all that listen takes it."""
    deadline = Deadline(TOTAL_S)
    for _ in range(ATTEMPTS):
        text, as_json = ask(host, port, deadline)
        if not pids or any(re.search(rf"\b{pid}\b", text) for pid in pids):
            return text, as_json
        if deadline.has_passed():
            break
    if not any(_may_use_nccl(pid) for pid in pids):
        raise NotApplicable("no process of the job has loaded NCCL")
    raise CaptureError("NCCL RAS: it was another job on this machine that answered")


def _may_use_nccl(pid: int) -> bool:
    """Whether the library is loaded; some builds of torch hold it inside their own."""
    try:
        maps = Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return True
    return "libnccl" in maps or "libtorch_cuda" in maps


def address(text: str) -> tuple[str, int]:
    """Host and port of NCCL_RAS_ADDR. Raises CaptureError if it is none."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit():
        raise CaptureError(f"NCCL_RAS_ADDR is {text!r}, which is no host:port")
    return host.strip("[]"), int(port)


def ask(host: str, port: int, deadline: Deadline) -> tuple[str, bool]:
    """The verbose status and whether it is JSON. Raises NotApplicable if nobody listens, CaptureError if nobody answers."""
    try:
        connection = connect(host, port, deadline)
    except (ConnectionRefusedError, socket.gaierror):
        raise NotApplicable(
            f"no NCCL RAS at {host}:{port}: no NCCL communicator here, or NCCL before 2.24"
        ) from None
    except OSError as error:
        raise CaptureError(f"NCCL RAS at {host}:{port}: {error}") from None
    with connection:
        try:
            return _converse(connection)
        except OSError as error:
            what = f"no answer in {deadline.seconds:g} s" if isinstance(error, TimeoutError) else str(error)
            raise CaptureError(f"NCCL RAS at {host}:{port}: {what}") from None


def _converse(connection: Socket) -> tuple[str, bool]:
    greeting = _line(connection, f"CLIENT PROTOCOL {PROTOCOL}")
    if not greeting.upper().startswith("SERVER PROTOCOL "):
        raise CaptureError(f"NCCL RAS: something else answers there: {greeting[:80]!r}")
    _line(connection, f"TIMEOUT {COLLECT_S}")
    as_json = _line(connection, "SET FORMAT json") == "OK"
    connection.sendall(b"VERBOSE STATUS\n")
    return _rest(connection).decode(errors="replace"), as_json


def _line(connection: Socket, command: str) -> str:
    """The one line that answers a command."""
    connection.sendall(command.encode() + b"\n")
    answer = b""
    for chunk in connection.chunks():
        answer += chunk
        if answer.endswith(b"\n") or len(answer) >= 4096:
            return answer.decode(errors="replace").strip()
    raise CaptureError(f"NCCL RAS: closed the connection at {command!r}")


def _rest(connection: Socket) -> bytes:
    parts, size = [], 0
    for chunk in connection.chunks():
        parts.append(chunk)
        size += len(chunk)
        if size > MAX_ANSWER:
            raise CaptureError(f"NCCL RAS: an answer of more than {MAX_ANSWER >> 20} MiB")
    return b"".join(parts)
