"""torch's flight recorder: every collective this rank issued, as JSON."""

from __future__ import annotations

import json

from nsadiag.agent.captures.target import CaptureError, Target
from nsadiag.agent.captures.worker_server import ask

# torch 2.13 renamed the handler when the recorder learnt to serve gloo as well.
HANDLERS = ("fr_trace_json", "dump_nccl_trace_json")


def flight_recorder(target: Target) -> None:
    """fr.json; the newer handler's name first."""
    first: CaptureError | None = None
    for handler in HANDLERS:
        try:
            body = ask(target.socket, handler)
        except CaptureError as error:
            first = first or error
            continue
        json.loads(body)
        target.directory.flight_recorder.write_bytes(body)
        return
    assert first is not None
    raise first
