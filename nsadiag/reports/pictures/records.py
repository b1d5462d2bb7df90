"""The records that a verdict cites, and the ends of logs, embedded: the page can be sent without its directory."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nsadiag.evidence.documents.files import read_tail
from nsadiag.evidence.layout import RunDir, read_json
from nsadiag.evidence.records import Verdict
from nsadiag.evidence.secrets.masking import mask_text
from nsadiag.evidence.secrets.published import mask_likely
from nsadiag.reports.model import RunReport
from nsadiag.reports.sources import source_href

MOST_CHARACTERS = 1600  # of one record
MOST_RECORDS = 24
LOG_BYTES, LOG_LINES, LOGS = 6000, 24, 6
KEY = re.compile(r"([A-Za-z_]\w*)|\[(\d{1,6})\]")
LEFT_OUT = "…"


@dataclass(frozen=True, kw_only=True)
class Log:
    """The end of one log."""

    name: str  # relative to the run directory
    text: str


def cited(run: RunReport) -> dict[str, str]:
    """By source the record's text, of JSON documents that lie in the run directory."""
    if run.verdict is None:
        return {}
    found: dict[str, str] = {}
    for item in run.verdict.evidence[:MOST_RECORDS]:
        path, _, place = item.source.partition("#")
        if path.endswith(".json") and source_href(run.directory, run.directory, item.source):
            text = _record(read_json(run.directory / path), place)
            if text:
                found[item.source] = text
    return found


def _record(document: Any, place: str) -> str:
    """The value at `entries[9]`, as far as it is of a size to read; empty where the place is a reader's hint."""
    value = document
    keys = KEY.findall(place) if re.fullmatch(r"(?:\.?[A-Za-z_]\w*|\[\d{1,6}\])+", place) else []
    for name, number in keys:
        if name and isinstance(value, dict) and name in value:
            value = value[name]
        elif number and isinstance(value, list) and int(number) < len(value):
            value = value[int(number)]
        else:
            return ""
    if value is None or (place and not keys):
        return ""
    text = mask_likely(mask_text(json.dumps(value, indent=1, default=str, ensure_ascii=False)))
    return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}\n{LEFT_OUT}"


def logs_of(run: RunReport) -> list[Log]:
    """The ends of stderr and stdout, those of guilty ranks first; nothing of a job that went well."""
    verdict: Verdict | None = run.verdict
    if verdict is None or verdict.outcome == "healthy":
        return []
    order = sorted(run.ranks, key=lambda rank: rank.rank not in verdict.guilty_ranks)
    found: list[Log] = []
    for rank in order[:LOGS]:
        directory = RunDir(path=run.directory).rank(rank.rank)
        for path in (directory.stderr, directory.stdout):
            text = _tail(path)
            if text and len(found) < LOGS:
                found.append(Log(name=path.relative_to(run.directory).as_posix(), text=text))
    return found


def _tail(path: Path) -> str:
    """Whole lines."""
    try:
        raw = read_tail(path, LOG_BYTES + 1)
    except OSError:
        return ""
    lines = raw[-LOG_BYTES:].decode("utf-8", "replace").splitlines()
    whole = lines[1:] if len(raw) > LOG_BYTES else lines
    return mask_likely(mask_text("\n".join(whole[-LOG_LINES:]))).strip("\n")
