"""Logs: tracebacks, timeouts, ends of ranks and whatever else their messages say, read in one pass."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from nsadiag.analysis.ingest.messages.launchers import Ended, FailureTable
from nsadiag.analysis.ingest.messages.lines import NOBODY, LogLine, Speaker, keep
from nsadiag.analysis.ingest.messages.prefixes import speaker_of
from nsadiag.analysis.ingest.messages.speakers import LinesOfLog, Ranks
from nsadiag.analysis.ingest.messages.starters import launcher_in
from nsadiag.analysis.ingest.messages.table import facts_of
from nsadiag.analysis.ingest.messages.tails import LOG_TAIL_BYTES, Faults, Tails
from nsadiag.analysis.ingest.messages.tools.debuggers import Debuggers
from nsadiag.analysis.ingest.messages.tools.deepspeed import Waits, WaitSummary
from nsadiag.analysis.ingest.messages.tools.ras import RasAnswer
from nsadiag.analysis.ingest.messages.tracebacks import Traceback, Tracebacks
from nsadiag.analysis.ingest.messages.unread import NO_DIGITS, UnreadLines
from nsadiag.analysis.ingest.messages.watchdog import TimedOut, Timeouts
from nsadiag.analysis.ingest.messages.wrapped import unwrapped
from nsadiag.evidence.documents.exceptions import Cause
from nsadiag.evidence.messages import (
    CommunicatorStep,
    Fact,
    ProcessEnd,
    ProcessStart,
    StatedError,
    ToolAnswer,
    Unread,
    WorldSize,
)

BARRIERS = "monitored barrier"
BARRIER = re.compile(r"Ranks? (?P<ranks>[\d, ]+) failed to pass monitoredBarrier in (?P<ms>\d+) ms")
MOST_OF_A_KIND = 4_000
MOST_SHAPES = 50_000  # of lines that say nothing: a job writes the same ones in each step
LONGEST_SHAPE = 400
# What a wrapper's text says of an error that the same rank's traceback tells in full.
SAME_WORDS = 60

AnyFact = TypeVar("AnyFact", bound=Fact)


@dataclass(frozen=True, kw_only=True)
class LogFacts:
    """All of one log."""

    raised: tuple[Traceback, ...] = ()
    timed_out: tuple[TimedOut, ...] = ()
    ended: tuple[Ended, ...] = ()
    never_came: tuple[int, ...] = ()  # to a monitored barrier
    never_came_line: int = 0
    waits: Waits | None = None  # the last summary of DeepSpeed's
    facts: tuple[Fact, ...] = ()  # what single messages say, in the order of their lines
    unread: tuple[
        Unread, ...
    ] = ()  # lines like errors that nothing here understands, the most frequent first
    ranks: Mapping[int, str] = field(default_factory=dict)  # that wrote in it, with their last lines
    tail: str = ""  # the last lines of all, without their prefixes
    # Text of the last stacks that faulthandler wrote, by rank; under None where nothing names one.
    stacks: Mapping[int | None, str] = field(default_factory=dict)
    fatal: Mapping[int | None, str] = field(default_factory=dict)  # what ended an interpreter, likewise
    rank_of_pid: Mapping[int, int] = field(default_factory=dict)  # as lines say it that name both
    started_by: frozenset[str] = frozenset()  # launchers and schedulers that some line shows
    world_size: int = 0  # as some line says
    lines: int = 0

    def of(self, kind: type[AnyFact]) -> list[AnyFact]:
        """The facts of one kind, in the order of their lines."""
        return [each for each in self.facts if isinstance(each, kind)]


def numbered(text: str) -> Iterator[tuple[int, str]]:
    """The lines of a text, as `read_log` takes them."""
    return enumerate(text.splitlines(), 1)


def read_log(lines: Iterable[tuple[int, str]]) -> LogFacts:
    """Read the lines of a log, each with its number and without its end, in one pass and bounded memory.

    Never raises, whatever the text.
    """
    reader = _LogReader()
    for number, text in unwrapped(lines):
        reader.read(number, text)
    return reader.facts()


class _LogReader:
    """Hands each line to the readers of blocks and to the table of messages.

    A line of the same words as one that said nothing says nothing: it is told by its text without digits, and costs no more.
    """

    def __init__(self) -> None:
        self._lines, self._ranks = LinesOfLog(), Ranks()
        self._count = 0
        self._timeouts, self._table, self._tracebacks = Timeouts(), FailureTable(), Tracebacks()
        self._faults, self._waits, self._ras = Faults(), WaitSummary(), RasAnswer()
        self._debuggers = Debuggers()
        self._tails, self._unread = Tails(), UnreadLines()
        self._facts: dict[type[Fact], list[tuple[Fact, Speaker]]] = {}
        # By shape: whether a process is named before it, and as what it is counted among the unread.
        self._quiet: dict[str, tuple[bool, str | None]] = {}
        self._is_busy = False
        self._started_by: set[str] = set()

    def read(self, number: int, text: str) -> None:
        """Take the next line."""
        self._count += 1
        shape = text.translate(NO_DIGITS) if len(text) < LONGEST_SHAPE else ""
        quiet = None if self._is_busy else self._quiet.get(shape)
        if quiet is None:
            self._read(number, text, shape)
            return
        has_speaker, unread = quiet
        if unread:
            self._unread.again(unread)
        if has_speaker:
            for line in self._lines.read(number, text):
                self._ranks.learn(line.speaker)
                self._tails.read(line)
        else:
            self._tails.all.add(text)

    def _read(self, number: int, text: str, shape: str) -> None:
        if starter := launcher_in(text[:LONGEST_SHAPE]):
            self._started_by.add(starter)
        lines = [*self._lines.read(number, text)]
        said = [self._take(line) for line in lines]
        self._is_busy = (
            self._tracebacks.is_busy or self._faults.is_busy or self._timeouts.is_busy
            or self._table.is_busy or self._ras.is_busy or self._debuggers.is_busy
        )  # fmt: skip
        if shape and len(lines) == 1 and not said[0] and not self._is_busy:
            if len(self._quiet) >= MOST_SHAPES:
                self._quiet.clear()
            self._quiet[shape] = lines[0].speaker is not NOBODY, self._unread.read(lines[0])
        else:
            for line, is_read in zip(lines, said, strict=True):
                if not is_read:
                    self._unread.read(line)

    def _take(self, line: LogLine) -> bool:
        """Returns whether some reader understood it."""
        self._ranks.learn(line.speaker)
        self._tails.read(line)
        is_traced = self._tracebacks.read(line, self._table.owner)
        # Each sees it, whoever else understood it.
        understood = [
            each.read(line)
            for each in (self._timeouts, self._table, self._faults, self._waits, self._ras, self._debuggers)
        ]
        found = False
        # Code in a traceback may quote a message.
        if not (is_traced and line.said.startswith(" ")):
            for fact in facts_of(line):
                found = True
                self._keep(fact, line.speaker)
                if isinstance(fact, StatedError) and fact.ends_it and not is_traced:
                    self._tracebacks.state(line, Cause(type=fact.type, message=fact.text))
        return is_traced or found or any(understood)

    def _keep(self, fact: Fact, speaker: Speaker) -> None:
        keep(self._facts.setdefault(type(fact), []), (fact, speaker), MOST_OF_A_KIND)

    def facts(self) -> LogFacts:
        """Name the rank of each process that the lines so far speak of."""
        timed_out, raised = tuple(self._timeouts.found()), self._tracebacks.found()
        self._learn()
        facts = tuple(self._of_ranks())
        never_came = [each for each in facts if isinstance(each, ToolAnswer) and each.tool == BARRIERS]
        named = [replace(each, rank=self._ranks.of(each.speaker)) for each in raised]
        return LogFacts(
            raised=tuple(_without_echoes(sorted(named, key=lambda each: each.line))),
            timed_out=timed_out,
            ended=tuple(self._table.found),
            never_came=tuple(sorted({rank for each in never_came for rank in each.ranks})),
            never_came_line=never_came[0].line if never_came else 0,
            waits=self._waits.last,
            facts=facts,
            unread=self._unread.most(),
            ranks=self._tails_of_ranks(any(each.speaker.is_label for each in named)),
            tail=str(self._tails.all),
            stacks={self._ranks.of(speaker): text for speaker, text in self._faults.texts().items()},
            fatal={self._ranks.of(speaker): what for speaker, what in self._faults.fatal.items()},
            rank_of_pid=self._ranks.by_pid(),
            started_by=frozenset(self._started_by),
            world_size=_world_size(facts),
            lines=self._count,
        )

    def _learn(self) -> None:
        """Take which process has which rank from lines that are no prefixes."""
        starts = [fact for fact, _ in self._facts.get(ProcessStart, []) if isinstance(fact, ProcessStart)]
        for start in starts:
            if (rank := self._ranks.of(speaker_of(None, start.local_rank, None, start.host, ""))) is not None:
                self._ranks.match(start.pid or 0, rank, start.host)
        for ended in self._table.found:
            self._ranks.match(ended.pid, ended.rank)
            self._ranks.has_nodes |= ended.local_rank not in (None, ended.rank)
        sizes = [fact for fact, _ in self._facts.get(WorldSize, []) if isinstance(fact, WorldSize)]
        self._ranks.has_nodes |= any(fact.of == "nodes" and fact.size > 1 for fact in sizes)
        steps = [
            fact for fact, _ in self._facts.get(CommunicatorStep, []) if isinstance(fact, CommunicatorStep)
        ]
        # The first of the largest communicators is that of all ranks.
        whole = max(steps, key=lambda each: (each.size, -each.line), default=None)
        for step in steps:
            if whole and step.communicator == whole.communicator and step.pid is not None:
                self._ranks.match(step.pid, step.member, step.host)

    def _of_ranks(self) -> Iterator[Fact]:
        pairs = [pair for kept in self._facts.values() for pair in kept]
        for speaker, stack in self._timeouts.stacks():
            pairs.append((stack, speaker))
        pairs += [(answer, NOBODY) for answer in (*self._ras.found, *self._debuggers.found())]
        for fact, speaker in sorted(pairs, key=lambda pair: pair[0].line):
            yield fact if fact.rank is not None else replace(fact, rank=self._rank_of(fact, speaker))

    def _rank_of(self, fact: Fact, speaker: Speaker) -> int | None:
        local = fact.local_rank if isinstance(fact, ProcessEnd) else None
        if (fact.pid != speaker.pid and fact.pid is not None) or not fact.is_of_its_speaker:
            return self._ranks.of(speaker_of(None, local, fact.pid, fact.host, ""))
        return self._ranks.of(speaker)

    def _tails_of_ranks(self, labels_count: bool) -> dict[int, str]:
        """The last lines of each rank. A number before a line is a rank where an error stands behind one."""
        tails: dict[int, list[str]] = {}
        for speaker, tail in self._tails.of.items():
            rank = self._ranks.of(speaker)
            if rank is not None and (labels_count or not speaker.is_label):
                tails.setdefault(rank, []).append(str(tail))
        return {rank: "\n".join(texts)[-LOG_TAIL_BYTES:] for rank, texts in tails.items()}


def _without_echoes(raised: Iterable[Traceback]) -> Iterator[Traceback]:
    """Without the words of errors that the same process's traceback, or an earlier line, tells as well."""
    raised = [*raised]
    whole = [each for each in raised if not each.is_stated]
    said: set[tuple[int | None, str]] = set()
    for each in raised:
        words = each.exception.message[:SAME_WORDS]
        if each.is_stated:
            mine = [other for other in whole if other.rank == each.rank or each.rank is None]
            if (each.rank, words) in said or any(words in other.exception.message for other in mine):
                continue
            said.add((each.rank, words))
        yield each


def _world_size(facts: Iterable[Fact]) -> int:
    """As lines say; 0 where none does."""
    sizes = [fact for fact in facts if isinstance(fact, WorldSize)]
    stated = max((fact.size for fact in sizes if fact.of == "world"), default=0)
    node, nodes = (max((f.size for f in sizes if f.of == of), default=1) for of in ("node", "nodes"))
    return max(stated, node * nodes if node > 1 else 0)
