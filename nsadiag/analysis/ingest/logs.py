"""Tracebacks, ends that torchrun saw, timeouts and other messages of logs, read in one pass."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from nsadiag.analysis.ingest.messages.deepspeed import Waits, WaitSummary
from nsadiag.analysis.ingest.messages.launchers import Ended, FailureTable
from nsadiag.analysis.ingest.messages.lines import MOST_FACTS, LogLine
from nsadiag.analysis.ingest.messages.nccl import InitLine, InitLines
from nsadiag.analysis.ingest.messages.tails import Faults, Tails
from nsadiag.analysis.ingest.messages.tracebacks import Traceback, Tracebacks
from nsadiag.analysis.ingest.messages.watchdog import TimedOut, Timeouts
from nsadiag.evidence.documents.exceptions import Cause

# torchrun, torch.distributed and NCCL put these before lines of several ranks in one log.
PREFIX = re.compile(r"^(?:\[(?:rank|default)(?P<rank>\d{1,9})\]:? ?)+")
# Colours and moves of the cursor, which some loggers write into files too.
ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
# No rank, line or size has so many digits, and of very many Python makes no number.
TOO_LONG_A_NUMBER = re.compile(r"\d{40,}")
MOST_CHARACTERS = 2**20  # of one line: what is longer is no message
BARRIER = re.compile(r"Ranks? (?P<ranks>[\d, ]+) failed to pass monitoredBarrier in (?P<ms>\d+) ms")
# NCCL's watchdog, where a CUDA error ends the process: its own words, before "Aborted".
ENDED_BY = re.compile(r"Process group watchdog thread terminated with exception: (?P<message>.+)")
WORLD_SIZE = re.compile(r"\bworld[ _]size\b[\s\"'=:(]{1,4}(?P<size>\d{1,6})\b", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class LogFacts:
    """All of one log."""

    raised: tuple[Traceback, ...] = ()
    timed_out: tuple[TimedOut, ...] = ()
    ended: tuple[Ended, ...] = ()
    never_came: tuple[int, ...] = ()  # to a monitored barrier
    never_came_line: int = 0
    inits: tuple[InitLine, ...] = ()  # of communicators
    waits: Waits | None = None  # the last summary of DeepSpeed's
    ranks: Mapping[int, str] = field(default_factory=dict)  # that wrote in it, with their last lines
    tail: str = ""  # the last lines of all
    # Text of the last stacks that faulthandler wrote, by rank; under None where no prefix names one.
    stacks: Mapping[int | None, str] = field(default_factory=dict)
    fatal: frozenset[int | None] = frozenset()  # ranks whose interpreter ended with a fatal error
    world_size: int = 0  # as some line says
    lines: int = 0

    @property
    def is_empty(self) -> bool:
        return not (self.raised or self.timed_out or self.ended or self.never_came)


def numbered(text: str) -> Iterator[tuple[int, str]]:
    """The lines of a text, as `read_log` takes them."""
    return enumerate(text.splitlines(), 1)


def read_log(lines: Iterable[tuple[int, str]]) -> LogFacts:
    """Read the lines of a log, each with its number and without its end, in one pass and bounded memory.

    Never raises, whatever the text.
    """
    reader = _LogReader()
    for number, text in lines:
        reader.read(_line(number, text))
    return reader.facts()


def _line(number: int, text: str) -> LogLine:
    text = text[:MOST_CHARACTERS]
    if "\x1b" in text:
        text = ESCAPES.sub("", text)
    text = TOO_LONG_A_NUMBER.sub("0", text)
    prefix = PREFIX.match(text)
    if not prefix:
        return LogLine(number=number, rank=None, said=text, text=text)
    return LogLine(number=number, rank=int(prefix["rank"]), said=text[prefix.end() :], text=text)


class _LogReader:
    """The readers of blocks and of single lines, each of which sees every line."""

    def __init__(self) -> None:
        self.lines = self.world_size = 0
        self.timeouts, self.table, self.inits = Timeouts(), FailureTable(), InitLines()
        self.tails, self.faults, self.waits = Tails(), Faults(), WaitSummary()
        self.tracebacks = Tracebacks()
        self.device_errors: list[Traceback] = []
        self.never_came: set[int] = set()
        self.never_came_line = 0

    def read(self, line: LogLine) -> None:
        self.lines += 1
        for reader in (
            self.tracebacks, self.timeouts, self.table, self.inits, self.tails, self.faults, self.waits
        ):  # fmt: skip
            reader.read(line)
        if size := WORLD_SIZE.search(line.text):
            self.world_size = max(self.world_size, int(size["size"]))
        if absent := BARRIER.search(line.text):
            self.never_came |= {int(r) for r in re.findall(r"\d+", absent["ranks"])}
            self.never_came_line = self.never_came_line or line.number
        if (error := ENDED_BY.search(line.said)) and "timeout" not in error["message"].lower():
            self._device_error(line, error["message"].strip())

    def _device_error(self, line: LogLine, message: str) -> None:
        """An error of a device that NCCL's watchdog met: it ends the rank, without a traceback."""
        if len(self.device_errors) < MOST_FACTS:
            exception = Cause(type="RuntimeError", message=message)
            self.device_errors.append(Traceback(rank=line.rank, line=line.number, exception=exception))

    def facts(self) -> LogFacts:
        return LogFacts(
            raised=(*self.device_errors, *self.tracebacks.found),
            timed_out=tuple(self.timeouts.found()),
            ended=tuple(self.table.found),
            never_came=tuple(sorted(self.never_came)),
            never_came_line=self.never_came_line,
            inits=tuple(self.inits.found),
            waits=self.waits.last,
            ranks={rank: str(tail) for rank, tail in self.tails.of.items()},
            tail=str(self.tails.all),
            stacks=self.faults.texts(),
            fatal=frozenset(self.faults.fatal),
            world_size=self.world_size,
            lines=self.lines,
        )
