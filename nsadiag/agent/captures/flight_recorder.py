"""torch's flight recorders: every collective this rank issued, as JSON, and once more with stacks."""

from __future__ import annotations

import json
from typing import Any

from nsadiag.agent.captures.answers import gil_owner
from nsadiag.agent.captures.target import CaptureError, NotApplicable, Target
from nsadiag.evidence.layout import write_json, write_private

# Two recorders live side by side: NCCL's own, and (from torch 2.11 on) that of the other backends. Each
# has its handler, and answers with an empty document where its backend is not in use.
HANDLERS = ("dump_nccl_trace_json", "fr_trace_json")
PICKLE_HANDLERS = ("dump_nccl_trace_pickle", "fr_trace_pickle")


def flight_recorder(target: Target) -> None:
    """fr.json: every collective that the rank issued, from both of torch's recorders."""
    dumps, errors = [], []
    for handler in HANDLERS:
        try:
            dumps.append(json.loads(target.server.ask(handler)))
        except CaptureError as error:
            errors.append(error)
    if not dumps:
        raise CaptureError(str(errors[0]))
    write_json(target.directory.flight_recorder, merged(dumps))


def flight_recorder_pickle(target: Target) -> dict[str, Any]:
    """fr.pickle: the same of NCCL, with the Python stack that issued each collective.

    torch needs the GIL to name the lines of a stack: while a thread holds it, the stacks are left out,
    since the request would wait for ever and take one of the server's few threads with it.
    """
    offered = [name for name in PICKLE_HANDLERS if name in target.server.handlers()]
    if not offered:
        raise NotApplicable("this torch's worker server dumps no pickles")
    stacks = gil_owner(target.directory) is None
    dump = target.server.ask(offered[0], "" if stacks else "?includestacktraces=false")
    write_private(target.directory.flight_recorder_pickle, dump)
    return {"stacks": stacks}


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
