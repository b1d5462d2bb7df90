"""Stacks side by side: the guilty rank's and a peer's, the user's frames open with their lines, libraries' folded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nsadiag.analysis.case import Case
from nsadiag.analysis.records import RankEvidence
from nsadiag.evidence.records import Verdict
from nsadiag.evidence.secrets.masking import mask_text
from nsadiag.evidence.secrets.published import mask_likely
from nsadiag.evidence.user_code import is_ours, is_user, package_of
from nsadiag.reports.pictures.snippets import Snippet, snippet_of
from nsadiag.reports.pictures.standing import role, standing
from nsadiag.reports.pictures.tracebacks import without_ours

MOST_FRAMES = 60
AROUND = 2
MOST_TRACEBACK = 12_000  # characters


@dataclass(frozen=True, kw_only=True)
class Frame:
    """One function that has not returned."""

    function: str
    file: str
    line: int


@dataclass(frozen=True, kw_only=True)
class Piece:
    """One frame of the user's with its source, or several of libraries."""

    frames: tuple[Frame, ...]
    snippet: Snippet | None = None
    library: str = ""  # whose frames they are; empty: the user's


@dataclass(frozen=True, kw_only=True)
class Side:
    """One rank's main thread, innermost frame first; or its traceback."""

    title: str
    role: str
    says: str
    source: str
    pieces: tuple[Piece, ...] = ()
    traceback: str = ""


def sides_of(case: Case, verdict: Verdict | None) -> list[Side]:
    """A guilty rank and one peer; the first two where nobody is guilty."""
    found = (_side(case, rank, verdict) for rank in _two(case, verdict))
    return [side for side in found if side.pieces or side.traceback]


def _two(case: Case, verdict: Verdict | None) -> Sequence[RankEvidence]:
    ranks = [r for r in case.cell.ranks if r.exception or (r.last_capture and r.last_capture.stacks)]
    if verdict is None or verdict.outcome == "healthy":
        return []
    parts = {part: [r for r in ranks if role(verdict, r.rank) == part] for part in ("guilty", "blocked", "")}
    return [*parts["guilty"][:1], *(parts["blocked"] or parts[""])[:1]] or ranks[:2]


def _side(case: Case, rank: RankEvidence, verdict: Verdict | None) -> Side:
    part = role(verdict, rank.rank)
    traceback, source, frames = "", "", list[Frame]()
    if rank.exception:
        source = f"{rank.source}/exception.json"
        raised = f"{rank.exception.type}: {rank.exception.message}"
        if rank.exception.traceback:
            text = without_ours(rank.exception.traceback)[-MOST_TRACEBACK:]
        else:
            text = raised[:MOST_TRACEBACK]
        frames = [
            Frame(function=f.function, file=f.file, line=f.line) for f in reversed(rank.exception.frames)
        ]
        traceback = mask_likely(mask_text(text))
    elif rank.last_capture and rank.last_capture.stacks:
        source = f"{rank.last_capture.source}/py_spy.json"
        frames = [Frame(function=f.name, file=f.filename, line=f.line) for f in rank.last_capture.main_frames]
    shown = [frame for frame in frames[:MOST_FRAMES] if not is_ours(frame.file)]
    pieces = tuple(_pieces(shown, case.cell.sources))
    return Side(
        title=f"rank {rank.rank}",
        role=part,
        says=standing(case, rank),
        source=source,
        traceback=traceback,
        pieces=pieces,
    )


def _pieces(frames: Sequence[Frame], sources: dict[str, str]) -> Iterable[Piece]:
    """Neighbouring frames of libraries together."""
    folded: list[Frame] = []
    for frame in frames:
        if not is_user(frame.file):
            folded.append(frame)
            continue
        if folded:
            yield _library(folded)
            folded = []
        text = sources.get(frame.file)
        at = (
            snippet_of(text, frame.file, {frame.line: ("here",)}, AROUND) if text and frame.line > 0 else None
        )
        yield Piece(frames=(frame,), snippet=at if at and at.lines else None)
    if folded:
        yield _library(folded)


def _library(frames: Sequence[Frame]) -> Piece:
    names = dict.fromkeys(package_of(frame.file) or "Python" for frame in frames)
    return Piece(frames=tuple(frames), library=", ".join(names))
