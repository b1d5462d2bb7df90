"""Source around the lines that a verdict names: where each side was, and the condition on which they diverged."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from nsadiag.analysis.records import CellEvidence
from nsadiag.evidence.layout import RunDir, read_json
from nsadiag.evidence.records import Verdict
from nsadiag.evidence.secrets.published import mask_likely
from nsadiag.reports.pictures.colours import Pieces, coloured, cut

AROUND = 5  # lines before and after
LONGEST = 240  # characters of a line
MOST = 4  # snippets
CITED = re.compile(r"^sources/(?P<name>[^/#]+)#line (?P<line>\d{1,7})$")


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of source, and who is at it."""

    number: int
    text: str
    marks: tuple[str, ...] = ()
    pieces: tuple[tuple[str, str], ...] = ()  # of the text, each with its colour's class


@dataclass(frozen=True, kw_only=True)
class Snippet:
    """Consecutive lines of one file."""

    file: str
    lines: tuple[Line, ...]


def snippets_of(cell: CellEvidence, verdict: Verdict | None) -> list[Snippet]:
    """The guilty line first; lines of one file that are near each other in one piece."""
    if verdict is None:
        return []
    wanted: dict[str, dict[int, list[str]]] = {}
    for file, line, mark in _places(cell, verdict):
        known = _file_in(cell.sources, file)
        if known is not None and line:
            marks = wanted.setdefault(known, {}).setdefault(line, [])
            if mark and mark not in marks:
                marks.append(mark)
    found = []
    for file, lines in wanted.items():
        found += [snippet_of(cell.sources[file], file, piece) for piece in _pieces(lines)]
    return [snippet for snippet in found if snippet.lines][:MOST]


@functools.lru_cache(maxsize=16)
def _coloured(text: str) -> tuple[list[str], list[Pieces]]:
    """The lines of a file as they are shown, and their pieces; a page shows several parts of the same."""
    lines = [line.expandtabs(4) for line in mask_likely(text).splitlines()]
    return lines, coloured(lines)


def snippet_of(text: str, file: str, marks: Mapping[int, Iterable[str]], around: int = AROUND) -> Snippet:
    """The lines from before the first mark until after the last."""
    lines, colours = _coloured(text)
    first, last = max(min(marks) - around, 1), min(max(marks) + around, len(lines))
    while last > max(marks) and not lines[last - 1].strip():
        last -= 1
    while first < min(marks) and not lines[first - 1].strip():
        first += 1
    shown = tuple(
        Line(
            number=n,
            text=lines[n - 1][:LONGEST],
            marks=tuple(marks.get(n, ())),
            pieces=tuple(cut(colours[n - 1], LONGEST)),
        )
        for n in range(first, last + 1)
    )
    return Snippet(file=file, lines=shown)


def _places(cell: CellEvidence, verdict: Verdict) -> Iterable[tuple[str, int, str]]:
    """File, line, and what is there."""
    where, peers = verdict.where, verdict.peers_at
    if where and where.file and where.line:
        ranks = "ranks" if len(verdict.guilty_ranks) > 1 else "rank"
        guilty = f"{ranks} {cell.names(verdict.guilty_ranks)}" if verdict.guilty_ranks else "here"
        yield where.file, where.line, guilty
    if peers:
        yield peers.file, peers.line, "peers"
    index = read_json(RunDir(path=cell.path).sources_index, {})
    names = {str(name): file for file, name in index.items()}
    for item in verdict.evidence:
        cited = CITED.match(item.source)
        if cited and cited["name"] in names:
            # A claim about a condition begins with its code.
            yield (
                names[cited["name"]],
                int(cited["line"]),
                "branch" if item.claim.startswith("`") else "evidence",
            )


def _file_in(sources: Mapping[str, str], file: str) -> str | None:
    """The kept file: by its path, or the only one that ends so."""
    if file in sources:
        return file
    ending = [path for path in sources if path.endswith(f"/{file.lstrip('/')}") or file.endswith(f"/{path}")]
    return ending[0] if len(ending) == 1 else None


def _pieces(lines: Mapping[int, list[str]]) -> list[dict[int, list[str]]]:
    """Marked lines in pieces that would overlap or nearly do."""
    pieces: list[dict[int, list[str]]] = []
    for number in sorted(lines):
        if pieces and number - max(pieces[-1]) <= 2 * AROUND + 2:
            pieces[-1][number] = lines[number]
        else:
            pieces.append({number: lines[number]})
    # The piece with the guilty line, which was asked for first, comes first.
    first = next(iter(lines))
    return sorted(pieces, key=lambda piece: first not in piece)
