"""torch's flight recorders: every collective this rank issued, as JSON."""

from __future__ import annotations

import json
from typing import Any

from nsadiag.agent.captures.target import CaptureError, Target
from nsadiag.agent.captures.worker_server import ask
from nsadiag.evidence.layout import write_json

# Two recorders live side by side: NCCL's own, and (from torch 2.11 on) that of the other backends. Each
# has its handler, and answers with an empty document where its backend is not in use.
HANDLERS = ("dump_nccl_trace_json", "fr_trace_json")


def flight_recorder(target: Target) -> None:
    """fr.json: both recorders in one document. Raises CaptureError if neither answers."""
    dumps, errors = [], []
    for handler in HANDLERS:
        try:
            dumps.append(json.loads(ask(target.socket, handler)))
        except CaptureError as error:
            errors.append(error)
    if not dumps:
        raise errors[0]
    write_json(target.directory.flight_recorder, merged(dumps))


def merged(dumps: list[dict[str, Any]]) -> dict[str, Any]:
    """The entries of all, oldest first; the rest from whichever has it."""
    document: dict[str, Any] = {}
    for dump in dumps:
        for key, value in dump.items():
            if isinstance(value, dict):
                document[key] = {**document.get(key, {}), **value}
            elif key != "entries":
                document[key] = document.get(key) or value
    entries = [entry for dump in dumps for entry in dump.get("entries", [])]
    document["entries"] = sorted(entries, key=lambda entry: entry.get("time_created_ns", 0))
    return document
