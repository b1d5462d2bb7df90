"""The records that a verdict cites, and the ends of logs, embedded: the page can be sent without its directory."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nsadiag.evidence.documents.files import read_tail, read_text
from nsadiag.evidence.layout import RunDir, read_json, read_json_lines
from nsadiag.evidence.records import Verdict
from nsadiag.evidence.ring.blackbox import Kind, Phase
from nsadiag.evidence.ring.reader import Recording, read_blackbox
from nsadiag.evidence.secrets.masking import mask_text
from nsadiag.evidence.secrets.published import mask_likely
from nsadiag.reports.model import RunReport
from nsadiag.reports.sources import source_href

if TYPE_CHECKING:
    from nsadiag.analysis.records import CellEvidence

MOST_CHARACTERS = 1600  # of one record
MOST_RECORDS = 24
RECORD_WIDTH, DEEPEST = 280, 12  # characters of a line, levels that are laid out
LOG_BYTES, LOG_LINES, LOGS = 6000, 24, 6
ROWS = 12  # of a recorder's events, of rows, of a log: the last
AROUND = 4  # lines of a source, before and after
LINE = re.compile(r"line ([0-9]{1,7})")
NUMBER = re.compile(r"[1-9][0-9]{0,6}")
KINDS, PHASES = ({each.value: each.name.lower() for each in names} for names in (Kind, Phase))
KEY = re.compile(r"([A-Za-z_]\w*)|\[(\d{1,6})\]")
LEFT_OUT = "…"


@dataclass(frozen=True, kw_only=True)
class Log:
    """The end of one log."""

    name: str  # relative to the run directory
    text: str


def cited(run: RunReport) -> dict[str, str]:
    """By source the record's text, of files that lie in the run directory."""
    if run.verdict is None:
        return {}
    found: dict[str, str] = {}
    sources = [item.source for item in run.verdict.evidence[:MOST_RECORDS]]
    quoted = _quoted(run.collected, sources) if run.collected else _texts(run.directory, sources)
    for source, said in quoted.items():
        text = mask_likely(mask_text(said))
        if text:
            found[source] = text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}\n{LEFT_OUT}"
    return found


def _texts(directory: Path, sources: list[str]) -> dict[str, str]:
    known = (source for source in sources if source_href(directory, directory, source))
    return {source: _text(directory, source) for source in known}


def _quoted(cell: CellEvidence, sources: list[str]) -> dict[str, str]:
    """Lines of other tools' logs, each marked, with those around it."""
    from nsadiag.analysis.external.quoting import lines_around

    found = lines_around(
        cell, [source for source in sources if LINE.fullmatch(source.partition("#")[2])], AROUND
    )
    return {
        source: "\n".join(
            f"{'>' if source.endswith(f'#line {at}') else ' '} {at:>5} {text[:RECORD_WIDTH]}"
            for at, text in lines
        )
        for source, lines in found.items()
    }


def _text(directory: Path, source: str) -> str:
    """The record at `file#place`."""
    name, _, place = source.partition("#")
    path = directory / name
    if LINE.fullmatch(place):
        return _lines(path, place)
    if path.suffix == ".json":
        return _record(read_json(path), place)
    if path.suffix == ".jsonl":
        return _rows(read_json_lines(path), place)
    if path.name == "blackbox.bin":
        return _events(read_blackbox(path))
    return _tail(path, ROWS) if path.suffix == ".log" else ""


def _rows(rows: list[Any], place: str) -> str:
    """The row of that number, which begins at 1, or the last ones."""
    number = int(place) if NUMBER.fullmatch(place) else None
    shown = rows[-ROWS:] if number is None else rows[number - 1 : number]
    return "\n".join(json.dumps(row, default=str, ensure_ascii=False) for row in shown)


def _events(recording: Recording) -> str:
    """The last events, each with the seconds until the last of them."""
    events = list(recording.decode(recording.events[-ROWS:]))
    lines = []
    for event in events:
        kind, phase = KINDS.get(event.kind, str(event.kind)), PHASES.get(event.phase, str(event.phase))
        texts = (event.name, event.group, event.site.replace("\t", " "), event.detail.replace("\t", " "))
        before_s = (events[-1].t_ns - event.t_ns) / 1e9
        lines.append(" ".join([f"-{before_s:.6f} s, step {event.step}:", kind, phase, *filter(None, texts)]))
    return "\n".join(lines)


def _lines(path: Path, place: str) -> str:
    """The line of a source or log, marked, and those around it."""
    try:
        lines = read_text(path).splitlines()
    except OSError:
        return ""
    number = int(place.split()[1])
    first = max(number - AROUND, 1)
    return "\n".join(
        f"{'>' if at == number else ' '} {at:>5} {line}"
        for at, line in enumerate(lines[first - 1 : number + AROUND], start=first)
    )


def _record(document: Any, place: str) -> str:
    """The value at `entries[9]`, empty where the place is a reader's hint."""
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
    return _laid_out(value)


def _laid_out(value: Any, indent: str = "") -> str:
    """JSON with what fits on one line on one line: a frame of a stack, say."""
    flat = json.dumps(value, default=str, ensure_ascii=False)
    if not isinstance(value, dict | list) or len(indent) + len(flat) <= RECORD_WIDTH or len(indent) > DEEPEST:
        return flat
    inner = f"{indent} "
    if isinstance(value, dict):
        start, end = "{", "}"
        parts = [
            f"{json.dumps(str(key), ensure_ascii=False)}: {_laid_out(each, inner)}"
            for key, each in value.items()
        ]
    else:
        start, end = "[", "]"
        parts = [_laid_out(each, inner) for each in value]
    return f"{start}\n" + ",\n".join(f"{inner}{part}" for part in parts) + f"\n{indent}{end}"


def logs_of(run: RunReport) -> list[Log]:
    """The ends of stderr and stdout, those of guilty ranks first; nothing of a job that went well."""
    verdict: Verdict | None = run.verdict
    if verdict is None or verdict.outcome == "healthy":
        return []
    order = sorted(run.ranks, key=lambda rank: rank.rank not in verdict.guilty)
    found: list[Log] = []
    for rank in order[:LOGS]:
        directory = RunDir(path=run.directory).rank(rank.rank)
        for path in (directory.stderr, directory.stdout):
            text = mask_likely(mask_text(_tail(path, LOG_LINES)))
            if text and len(found) < LOGS:
                found.append(Log(name=path.relative_to(run.directory).as_posix(), text=text))
    return found


def _tail(path: Path, most: int) -> str:
    """The last lines, whole ones only."""
    try:
        raw = read_tail(path, LOG_BYTES + 1)
    except OSError:
        return ""
    lines = raw[-LOG_BYTES:].decode("utf-8", "replace").splitlines()
    whole = lines[1:] if len(raw) > LOG_BYTES else lines
    return "\n".join(whole[-most:]).strip("\n")
