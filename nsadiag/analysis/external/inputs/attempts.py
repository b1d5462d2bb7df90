"""Attempts of a job that follow each other in one log: restarts by an agent, and retries that append to the same file.

Ranks that fail do not say whether the job starts again. What says so is a start after an end, or that one agent reports the
end of two processes in turn: torchrun ends all of its ranks together.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator

# One ends a process, in a log of torchrun's: with the agent's own pid where its log has that.
FAILED = re.compile(
    r"(?:\d+:\d+:\d+\.\d+ (?P<agent>\d+) \S+ ?|api:?\S* ?)\[?.{0,120}?failed \(exitcode: -?\d+\) local_rank: (?P<local>\d+) \(pid: (?P<pid>\d+)\)"
)
# The job, or a node's part of it, has ended.
ENDED = re.compile(
    r"failed \(exitcode: |ChildFailedError|Root Cause \(first observed failure\)|closing signal SIG|"
    r"Watchdog caught collective operation timeout|taking the entire process down|Fatal Python error: |"
    r"srun: error: .*(?:[Ee]xited with|Killed|Out Of Memory|Terminated|Aborted)|slurmstepd: error: .*CANCELLED|"
    r"exits with return code = -?[1-9]|Killing subprocess \d|Worker group .*FAILED|SignalException"
)
# It begins; of several of these in a row, without an end between them, only the first.
STARTED = re.compile(
    r"Setting OMP_NUM_THREADS environment variable for each process|Starting elastic_operator with launch configs|"
    r"Starting worker group|Rendezvous'ing worker group|Rendezvous complete for workers|"
    r"(?:launch|runner)\.py:\d+:main\] (?:WORLD INFO DICT|nnodes=|cmd = )|initializing torch distributed|"
    r"distributed init \(rank 0|Initializing distributed: GLOBAL_RANK: 0|NCCL version \d|"
    r"All distributed processes registered\. Starting with"
)
# An agent says that it starts anew, or a script of the user's counts its attempts on a line of its own.
RESTARTS = re.compile(
    r"attempts left; will restart worker group|[Rr]estarting worker group|worker group.{0,40}will restart"
)
COUNTED = re.compile(
    r"^\W*(?:(?:re)?start(?:ing)?\W+)?attempt[ #:]*\d+(?: ?(?:of|/) ?\d+)?\W*$", re.IGNORECASE
)
# Each of these lines has one of these in it: most lines have none, and are looked at no closer.
OF_INTEREST = re.compile(
    r"exitcode|ChildFailed|Root Cause|closing signal|Watchdog caught|entire process|Fatal Python|srun: error|slurmstepd|"
    r"return code|Killing sub|orker group|SignalExc|OMP_NUM|elastic_op|endezvous|launch\.py|runner\.py|torch distributed|"
    r"distributed init|nitializing dist|NCCL version|registered\. Start|ttempt|TTEMPT"
)
MOST_HELD = 16 * 2**20  # characters behind an end of which it is open to which attempt they belong

Line = tuple[int, str]


def attempts_in(lines: Iterable[Line]) -> Iterator[Iterator[Line]]:
    """The lines of each attempt, in turn; at least one. Each has to be read before the next is asked for."""
    empty = True
    for _, group in itertools.groupby(_Attempts().numbered(lines), key=lambda row: row[0]):
        empty = False
        yield ((number, text) for _, number, text in group)
    if empty:
        yield iter(())


class _Attempts:
    """State of the attempt that a line is of."""

    def __init__(self) -> None:
        self.attempt = 0
        self.ended = False
        self.pids: dict[str, str] = {}  # of the process whose end was reported, by agent
        self.held: list[Line] | None = None  # behind the last such report
        self.size = 0

    def numbered(self, lines: Iterable[Line]) -> Iterator[tuple[int, int, str]]:
        """Each line behind the number of its attempt."""
        for number, text in lines:
            if OF_INTEREST.search(text):
                yield from self._told(number, text)
            elif self.held is not None:
                self._hold(number, text)
                if self.size > MOST_HELD:
                    self._begin()
                    yield from self._release()
            else:
                yield self.attempt, number, text
        yield from self._release()

    def _told(self, number: int, text: str) -> Iterator[tuple[int, int, str]]:
        failed = FAILED.search(text)
        begins = STARTED.search(text) or COUNTED.match(text)
        if failed:
            key = failed["agent"] or f"local rank {failed['local']}"
            if self.pids.get(key, failed["pid"]) != failed["pid"]:
                self._begin()
            self.pids[key] = failed["pid"]
            yield from self._release()
            yield self.attempt, number, text
            self.held, self.size, self.ended = [], 0, True
        elif begins and self.ended:
            yield from self._release()
            self._begin()
            yield self.attempt, number, text
        elif RESTARTS.search(text):
            yield from self._release()
            yield self.attempt, number, text
            self._begin()
        elif self.held is not None:
            self._hold(number, text)
        else:
            self.ended = self.ended or ENDED.search(text) is not None
            yield self.attempt, number, text

    def _begin(self) -> None:
        self.attempt += 1
        self.ended = False
        self.pids.clear()

    def _hold(self, number: int, text: str) -> None:
        assert self.held is not None
        self.held.append((number, text))
        self.size += len(text)

    def _release(self) -> Iterator[tuple[int, int, str]]:
        for number, text in self.held or ():
            yield self.attempt, number, text
        self.held, self.size = None, 0
