"""Logs, each read once: what their attempts say, in turn."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from nsadiag.analysis.external.inputs.attempts import attempts_in
from nsadiag.analysis.external.inputs.files import InputFile
from nsadiag.analysis.external.inputs.text import Lines
from nsadiag.analysis.external.recognise import TORCHRUN_LOG, Gathered
from nsadiag.analysis.ingest import logs

MOST_PIDS = 100_000
RANK = r"(?<!local_)(?<!local )(?<!local-)(?:\b|world_|global_)rank[\"' =:]{0,3}(?P<rank>\d{1,7})\b"
PID = r"\bpid[\"' =:]{0,3}(?P<pid>\d{1,9})\b"
BOTH = tuple(re.compile(f"(?i:{first}.{{0,40}}?{second})") for first, second in ((RANK, PID), (PID, RANK)))


class Pids(dict[int, int]):
    """The rank of each pid, as lines of users' own that name both say: `rank 3 has pid 4711`."""

    def seen(self, lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
        """The same lines."""
        for number, text in lines:
            if "pid" in text or "PID" in text:
                self._read(text)
            yield number, text

    def _read(self, text: str) -> None:
        found = BOTH[0].search(text) or BOTH[1].search(text)
        if found and len(self) < MOST_PIDS:
            self[int(found["pid"])] = int(found["rank"])


class LogRead(NamedTuple):
    """Statements of one log on one attempt."""

    file: InputFile
    facts: logs.LogFacts
    pids: Mapping[int, int]  # the rank of each process that a line names with it
    later: int  # attempts that follow it: the last one of each log has none


def read_log_files(gathered: Gathered) -> list[LogRead]:
    """All logs, in the order of their names; those that cannot be opened, or end early, are among the refusals."""
    found: list[LogRead] = []
    for file in sorted(gathered.logs):
        lines = Lines(file)
        parts: list[tuple[logs.LogFacts, Pids]] = []
        try:
            for part in attempts_in(lines):
                pids = Pids()
                parts.append((logs.read_log(pids.seen(part)), pids))
        except OSError as error:
            gathered.refusals.add(file.name, f"could not be read: {error.strerror}")
            continue
        if lines.why:
            gathered.refusals.add(file.name, lines.why)
            gathered.cut.add(file.name)
        found += (LogRead(file, facts, pids, len(parts) - at) for at, (facts, pids) in enumerate(parts, 1))
    return list(_by_folder(found))


def attempt_of(file: InputFile) -> int | None:
    """The attempt whose folder of `torchrun --log-dir` it lies in."""
    folder = TORCHRUN_LOG.search(file.name) or TORCHRUN_LOG.search(file.path)
    return int(folder["attempt"]) if folder else None


def _by_folder(read: Sequence[LogRead]) -> Iterator[LogRead]:
    """torchrun makes a folder for each attempt: a log in an earlier one is not of the last."""
    last = max((number for each in read if (number := attempt_of(each.file)) is not None), default=0)
    for each in read:
        number = attempt_of(each.file)
        yield each if number is None else each._replace(later=last - number)
