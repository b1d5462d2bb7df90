"""A checkpoint file that several ranks of one host wrote at overlapping times."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePath

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.facts.exceptions import first_of, headline, place_of
from nsadiag.analysis.facts.exits import first_break
from nsadiag.analysis.facts.spans import Span
from nsadiag.analysis.records import Declined, RankEvidence
from nsadiag.analysis.relations.pending import ran_together
from nsadiag.analysis.rules.drafts import at_line, named, recorder_of
from nsadiag.analysis.rules.reasons import other_break
from nsadiag.analysis.rules.rule import Claims, Draft, Rule
from nsadiag.evidence.documents.exceptions import Cause, Raised
from nsadiag.evidence.phrases import capitalized, count, these
from nsadiag.evidence.records import Strength
from nsadiag.evidence.ring.blackbox import Kind
from nsadiag.evidence.secrets.published import MASK

SAVE = "torch.save "
# Python names two files where one was to become the other.
RENAME = re.compile(r"\[Errno (?:2|17|39)\] [^'\"]*: '(?P<source>[^']+)' -> '(?P<target>[^']+)'")
MOST_CITED = 4
DEVICES = "/dev/"  # where nothing is kept


@dataclass(frozen=True, kw_only=True)
class SharedFile:
    """A file that several ranks wrote."""

    path: str
    writers: tuple[int, ...]
    overlap: tuple[Span, Span] | None  # the first two writes of which the second began within the first


def checkpoint_write_race(case: Case) -> Iterator[Draft | Declined]:
    cell, first = case.cell, first_break(case.cell)
    shared = list(_shared_files(case))
    for file in shared:
        if file.overlap is None:
            ranks = these(file.writers)
            yield Declined(f"{ranks} wrote {file.path} one after another", recorder_of(cell, file.writers[0]))
        elif ran_together(cell):
            yield _draft(case, file, file.overlap, "it may hold parts of each", {}, Strength.LIKELY)
        elif first and (failed := _failed_by(first.rank, file)):
            shown = {failed: f"{first.rank.source}/exception.json"}
            yield _draft(case, file, file.overlap, failed, shown, Strength.STRONG)
    if cell.collected is not None:
        yield from _renamed(case)
    if shared:
        yield from other_break(cell)
    elif writers := {rank.rank: written for rank in cell.ranks if (written := _written(case, rank))}:
        files = {name for spans in writers.values() for name, _ in spans}
        yield Declined(
            f"{these(writers)} wrote {count(len(files), 'checkpoint file')}, none from two ranks of one host",
            recorder_of(cell, min(writers)),
        )


def _renamed(case: Case) -> Iterator[Draft]:
    """A rename that found its source gone or its target there, in a job of several processes: another one had made it already."""
    cell = case.cell
    raised = [(r.rank, r.exception) for r in cell.ranks if r.exception] + [(None, e) for e in cell.unnamed]
    found = [(rank, e, told) for rank, e in raised if (told := _of_a_rename(e))]
    if not found or (cell.world_size < 2 and len(raised) < 2):
        return
    ranks = tuple(sorted({rank for rank, *_ in found if rank is not None}))
    _, first, told = found[0]
    yield Draft(
        outcome="crashed",
        strength=Strength.LIKELY,
        summary=f"{capitalized(these(ranks)) if ranks else 'A process'} could not rename {told['source']} to {told['target']}: another process had most likely renamed the same one before.",
        guilty_ranks=ranks,
        at=place_of(first),
        evidence={
            f"{'a process' if rank is None else f'rank {rank}'} raised {headline(first_of(e))}": e.source
            for rank, e, _ in found[:MOST_CITED]
        },
        gaps=("who renamed it first no line tells",),
        fix="Let one rank rename it while the others wait in a barrier; where a library's trainer does it, install a version in which only the main process of a node does.",
        actions=("fix code",),
    )


def _of_a_rename(exception: Raised) -> re.Match[str] | None:
    """The rename that the exception tells of, or one on its way."""
    current: Cause | None = exception
    while current:
        if told := RENAME.search(f"{current.type}: {current.message}"):
            return told
        current = current.cause
    return None


def _shared_files(case: Case) -> Iterator[SharedFile]:
    """By path, those that were written at overlapping times first."""
    written: dict[tuple[str, str], list[Span]] = {}
    for rank in case.cell.ranks:
        for path, span in _written(case, rank):
            written.setdefault((rank.meta.host, path), []).append(span)
    found = [_file(path, spans) for (_, path), spans in written.items() if len({s.rank for s in spans}) > 1]
    yield from sorted(found, key=lambda each: (each.overlap is None, each.path))


def _written(case: Case, rank: RankEvidence) -> list[tuple[str, Span]]:
    """The rank's writes of files, by path. Of a relative one nobody knows which file it was."""
    saves = [s for s in case.spans(rank, Kind.IO) if s.name.startswith(SAVE) and s.end_s is not None]
    named = [(span.name.removeprefix(SAVE), span) for span in saves]
    return [each for each in named if each[0].startswith("/") and _is_kept(each[0])]


def _is_kept(path: str) -> bool:
    return not path.startswith(DEVICES) and MASK not in path


def _file(path: str, spans: list[Span]) -> SharedFile:
    writers = sorted({span.rank for span in spans})
    return SharedFile(path=path, writers=tuple(writers), overlap=next(_overlapping(spans), None))


def _overlapping(spans: list[Span]) -> Iterator[tuple[Span, Span]]:
    """Writes of two ranks of which the second began before the first was over."""
    spans = sorted(spans, key=lambda span: span.begin_s)
    for number, span in enumerate(spans):
        ends = math.inf if span.end_s is None else span.end_s
        later = itertools.takewhile(lambda other, ends=ends: other.begin_s < ends, spans[number + 1 :])  # type: ignore[misc]
        yield from ((span, other) for other in later if other.rank != span.rank)


def _failed_by(rank: RankEvidence, file: SharedFile) -> str | None:
    """The exception that the race left a writer with: another one had renamed the file already."""
    if rank.exception is None or rank.rank not in file.writers:
        return None
    root = first_of(rank.exception)
    if PurePath(file.path).name not in root.message:
        return None
    return f"rank {rank.rank} then raised {headline(root)}{at_line(place_of(root))}"


def _draft(
    case: Case, file: SharedFile, overlap: tuple[Span, Span], then: str, more: Claims, strength: Strength
) -> Draft:
    cell = case.cell
    what = {
        f"rank {s.rank} was in torch.save of it from {s.begin_s:.3f} s to {s.end_s:.3f} s": recorder_of(
            cell, s.rank
        )
        for s in overlap
    }
    at = locations.of_text(overlap[1].place)
    return Draft(
        outcome="crashed" if more else "wrong",
        strength=strength,
        summary=f"{named(cell, file.writers).capitalize()} wrote {file.path} at overlapping times{at_line(at)}: {then}.",
        guilty_ranks=file.writers,
        at=at,
        evidence={**what, **more},
    )


RULE = Rule(
    means={
        "checkpoint_write_race": "Several ranks wrote one checkpoint file at overlapping times.",
    },
    family="exit",
    detected="By their recorders, ranks of one host were in `torch.save` of one path at overlapping times. The job ran to its end, or a writer raised an exception that names the file, as where another one had renamed it already. Ranks that write it in turn, or a file each, are no race. In a log of several processes: an error that a rename found its source gone or its target there.",
    fix="Let one rank write the file while the others wait (`if rank == 0: torch.save(...)`, then a barrier of all), or give each rank a file of its own. Write under a temporary name and rename that with os.replace: no reader meets half a file.",
    check=checkpoint_write_race,
    needs=("black_boxes",),
    explains=("rank_exception",),
    confused_with=("rank_exception", "silently_wrong", "healthy"),
)
