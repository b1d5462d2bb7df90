"""The record of one rehearsal: what each rank computed, in its order, with files as paths below the job's folder."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
from dataclasses import dataclass, field
from pathlib import Path

from nsadiag.evidence.documents.files import read_text
from nsadiag.evidence.documents.values import value_of
from nsadiag.evidence.layout import RankDir, RunDir, read_json, read_json_lines
from nsadiag.evidence.rehearsal.calls import RECEIVE, SEND
from nsadiag.evidence.rehearsal.paths import Named, Walked, read_path
from nsadiag.evidence.rehearsal.witnessed import Seen, read_seen

TEMPORARY = re.compile(r"\btmp[a-z0-9_]{8}\b")  # as tempfile names them: another in each run
Site = tuple[str, int]  # file and line


@dataclass(frozen=True, kw_only=True)
class RankRecord:
    """One rank: what it computed, and the lines that it printed."""

    seen: tuple[Seen, ...] = ()
    output: tuple[str, ...] = ()
    walked: Walked | None = None  # the path of its code

    @functools.cached_property
    def steps(self) -> int:
        """Steps of its optimizers."""
        return sum(seen.what == "step" for seen in self.seen)

    @property
    def files(self) -> frozenset[str]:
        return frozenset(seen.path for seen in self.seen if seen.what == "file")


@dataclass(frozen=True, kw_only=True)
class Record:
    """All ranks of one rehearsal, and its answer."""

    answer: str
    why: str = ""
    ranks: dict[int, RankRecord] = field(default_factory=dict)

    @functools.cached_property
    def drift(self) -> dict[int, int]:
        """By rank, the place in `seen` up to which its group's members do the same; its end where they always did."""
        found = {rank: len(record.seen) for rank, record in self.ranks.items()}
        for (_, members), calls in self._meetings().items():
            own = {rank: calls.get(rank, []) for rank in members if rank in self.ranks}
            parted = _parted(list(own.values()))
            if parted is None:
                continue
            begin = {
                rank: made[parted - 1][0] + 1 if 0 < parted <= len(made) else 0 for rank, made in own.items()
            }
            alike = _alike([self.ranks[rank].seen[at:] for rank, at in begin.items()])
            found |= {rank: min(found[rank], at + alike) for rank, at in begin.items()}
        return found

    def _meetings(self) -> dict[tuple[str, tuple[int, ...]], dict[int, list[tuple[int, Meeting]]]]:
        """By group and rank, the calls in their order, each with its place in `seen`."""
        found: dict[tuple[str, tuple[int, ...]], dict[int, list[tuple[int, Meeting]]]] = {}
        for rank, record in self.ranks.items():
            steps = 0
            for at, seen in enumerate(record.seen):
                steps += seen.what == "step"
                if seen.what == "call" and seen.op not in (SEND, RECEIVE):
                    own = found.setdefault((seen.group, seen.members), {}).setdefault(rank, [])
                    own.append((at, (seen.op, seen.place, steps)))
        return found


Meeting = tuple[str, str, int]  # operation, line, steps before it


def _parted(calls: list[list[tuple[int, Meeting]]]) -> int | None:
    """The number of the first meeting at which not all members make the same call."""
    for number in range(max(map(len, calls), default=0)):
        if len({own[number][1] if number < len(own) else None for own in calls}) > 1:
            return number
    return None


def _alike(seen: list[tuple[Seen, ...]]) -> int:
    """The number of the first that are of one kind, at one line, on all ranks."""
    rows = zip(*seen, strict=False)
    return sum(
        1 for _ in itertools.takewhile(lambda row: len({(s.what, s.op, s.place) for s in row}) == 1, rows)
    )


def site_of(place: str) -> Site:
    """File and line of `file:line:function`; no line where there is no place."""
    file, _, rest = place.partition(":")
    number = rest.partition(":")[0]
    return file, int(number) if number.isdigit() else 0


def read_record(directory: Path, folder: Path) -> Record:
    """The rehearsal in a run directory; `folder` is where the job's files lay."""
    run = RunDir(path=directory)
    document = read_json(directory / "rehearsal.json", {})
    ranks = {
        rank.rank: RankRecord(
            seen=tuple(_below(seen, folder) for seen in read_seen(rank.witness)),
            output=tuple(_text(rank.stdout).replace(str(folder), ".").splitlines()),
            walked=_walked(rank, folder),
        )
        for rank in run.ranks()
    }
    answer, why = str(document.get("answer")), str(document.get("why", ""))
    verdict = read_json(run.verdict, {})
    if answer == "agreed" and verdict.get("outcome") == "wrong":
        answer, why = "wrong", str(verdict.get("summary", ""))
    return Record(answer=answer, why=why, ranks=ranks)


def _walked(rank: RankDir, folder: Path) -> Walked | None:
    """With files by their paths below the folder."""
    try:
        content = rank.path_words.read_bytes()
    except OSError:
        return None
    rows = [value_of(Named, row) for row in read_json_lines(rank.path_names)]
    return read_path(
        content, tuple(dataclasses.replace(r, file=r.file.removeprefix(f"{folder}/")) for r in rows)
    )


def _below(seen: Seen, folder: Path) -> Seen:
    prefix = f"{folder}/"
    return dataclasses.replace(
        seen,
        place=seen.place.removeprefix(prefix),
        path=TEMPORARY.sub("tmp*", seen.path.removeprefix(prefix)),
    )


def _text(path: Path) -> str:
    try:
        return read_text(path)
    except (OSError, ValueError):
        return ""
