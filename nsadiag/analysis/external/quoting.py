"""Lines of logs that a verdict cites, read once more for a page."""

from __future__ import annotations

from collections.abc import Iterable

from nsadiag.analysis.external.inputs.files import InputFile
from nsadiag.analysis.external.inputs.text import rows_at
from nsadiag.analysis.records import CellEvidence

Lines = list[tuple[int, str]]


def lines_around(cell: CellEvidence, sources: Iterable[str], around: int) -> dict[str, Lines]:
    """By source (`file#line 7`) that line with so many before and after; nothing of what cannot be read any more."""
    wanted: dict[str, dict[str, int]] = {}
    for source in sources:
        name, _, place = source.partition("#")
        wanted.setdefault(name, {})[source] = int(place.split()[1])
    found: dict[str, Lines] = {}
    files = cell.collected.files if cell.collected else {}
    for name, numbers in wanted.items():
        if name in files:
            found |= _in_file(InputFile(name, *files[name]), numbers, around)
    return found


def _in_file(file: InputFile, numbers: dict[str, int], around: int) -> dict[str, Lines]:
    spans = {source: range(max(at - around, 1), at + around + 1) for source, at in numbers.items()}
    try:
        rows = rows_at(file, {number for span in spans.values() for number in span})
    except OSError:
        return {}
    return {source: [(n, rows[n]) for n in span if n in rows] for source, span in spans.items()}
