"""torch's wait counters: how often, how long, and whether right now, a rank waits in its C++ code."""

from __future__ import annotations

import json

from nsadiag.agent.captures.target import CaptureError, Target
from nsadiag.evidence.layout import write_json


def wait_counters(target: Target) -> None:
    """counters.json: torch's wait counters (active, total, longest), such as those of its key-value store."""
    answer = target.server.ask("wait_counter_values")
    try:
        write_json(target.directory.counters, json.loads(answer))
    except ValueError:
        raise CaptureError("worker server, wait_counter_values: no JSON") from None
