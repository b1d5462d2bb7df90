"""Log lines that are JSON documents: of Docker, of cloud services, of structured loggers, under whatever names they use."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from nsadiag.analysis.ingest.messages.lines import Prefix
from nsadiag.analysis.ingest.messages.prefixes import speaker_of

MOST_BYTES = 256 * 1024
MESSAGE = (
    "message",
    "msg",
    "log",
    "event",
    "text",
    "body",
    "MESSAGE",
    "textPayload",
    "line",
    "short_message",
)
ERROR = (
    "exc_info",
    "exception",
    "stack_trace",
    "stack",
    "traceback",
    "exc_text",
    "error.stack_trace",
    "full_message",
)
RANK = ("rank", "global_rank", "RANK", "process_rank", "mpi_rank", "dist_rank")
LOCAL = ("local_rank", "LOCAL_RANK")
PID = ("pid", "process", "process_id", "_PID", "processId")
HOST = ("host", "hostname", "node", "pod", "pod_name", "_HOSTNAME", "ip", "node_name")
LEVEL = ("level", "levelname", "severity", "lvl", "log_level", "level_name")
TIME = ("time", "timestamp", "ts", "asctime", "@timestamp", "datetime")
# Objects in which some put what describes the process.
INSIDE = (
    "extra",
    "labels",
    "fields",
    "context",
    "attributes",
    "record",
    "kubernetes",
    "metadata",
    "jsonPayload",
)


@dataclass(frozen=True, kw_only=True)
class Document:
    """A record of a logger: what it says of itself, and its lines."""

    prefix: Prefix
    lines: tuple[str, ...]


def document_of(text: str) -> Document | None:
    """None where the text, which begins with a brace, is no record of a logger."""
    if len(text) > MOST_BYTES:
        return None
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        return None
    for name in INSIDE:
        if isinstance(inner := fields.get(name), dict):
            fields = {**inner, **fields}
    said = _word(fields, MESSAGE)
    error = _word(fields, ERROR)
    if not said and not error:
        return None
    whole = said if not error or error in said else f"{said}\n{error}"
    return Document(prefix=_prefix(fields), lines=tuple(_lines(whole)))


def _prefix(fields: Mapping[str, Any]) -> Prefix:
    return Prefix(
        speaker=speaker_of(
            _whole(fields, RANK), _whole(fields, LOCAL), _whole(fields, PID), _word(fields, HOST), ""
        ),
        level=_word(fields, LEVEL).lower(),
        time=_word(fields, TIME),
        stream=_word(fields, ("stream",)),
    )


def _lines(text: str) -> Iterator[str]:
    yield from text.rstrip("\n").split("\n")


def _word(fields: Mapping[str, Any], names: tuple[str, ...]) -> str:
    found = next((fields[name] for name in names if fields.get(name) not in (None, "")), "")
    if isinstance(found, list) and all(isinstance(each, str) for each in found):
        return "".join(found)
    return str(found) if isinstance(found, str | int | float) else ""


def _whole(fields: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    text = _word(fields, names)
    return int(text) if text.isdecimal() and len(text) < 10 else None
