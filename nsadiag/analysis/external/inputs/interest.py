"""Lines of a long log that may tell of a failure: of hundreds of millions, the few that are worth a closer look."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator

from nsadiag.analysis.ingest.messages.table import ROWS

LETTERS = 3  # by which words are told apart
LONG = 9  # letters of a message's mark that is in few other lines
COMMON = " etaoinsrhldcumfpgwybvkxjqz"  # the most common letters first; all others are rare
# Each message of the table has a mark; these are those of tracebacks and of reports of several lines, and of starts and ends.
BLOCKS = (
    "Traceback", "Watchdog", "watchdog", "WorkN", "OpType", "PG ID", "PG GUID", "[PG ", "NCCL WARN", "Init START", "Init COMPLETE",
    'File "', "most recent call", "Fatal", "FATAL", "Aborted", "exitcode", "Root Cause", "ChildFailed", "FAILED", "SignalExc",
    "closing signal", "Killed process", "oom_", "oom-", "OOM", "Out Of Mem", "ut of mem", "OutOfMem", "slurmstepd", "srun: error", "CANCELLED",
    "Xid", "NVRM", "onitoredBarrier", "CollectiveFingerPrint", "Breakdown", "imed out", "TIMEOUT", "memory pressure", "eartbeat",
    "orker group", "OMP_NUM_THREADS", "NCCL version", "endezvous", "clients joined", "No space", "Killing sub", "exited", "DISTRIBUTED",
)  # fmt: skip
OTHERS = (
    "Error", "ERROR", "error", "xception", "Warning: ", "WARN", "fatal", "NCCL", "imeout", "stuck", "Thread x", "thread x",
    "Process ", "assert", "ignal", "SIG", "exit code", "Exit", "ailed", "FAILURE", "kill", "Kill", "emory", "ECC", "CUDA", "cuda",
    "rank ", "Rank ", "ranks ", "Ranks ", "orld", "RANK", "estart", "ttempt", "elastic", "MASTER_", "onnect", "peer", "ocket", "ddress",
    "store", "Store", "esync", "mismatch", "unused", "loo", "arrier", "straggler", "comm_op", "torchrun", "torch.distributed",
    "deepspeed", "Ray", "ray.", "PREEMPT", "EQUEUE", "requeue", "Reason", "died", "dead", "lost", "abort", "ollective", "ALL",
    "ermission", "denied", "orrupt", "nvalid",
)  # fmt: skip


def _marks() -> Iterator[str]:
    """Those of the table, as far as they have no digits: lines are compared without theirs."""
    for row in ROWS:
        yield max(re.split(r"\d+", row.mark), key=len).strip()


def _from_its_rarest(mark: str) -> str:
    """The mark from its rarest letter on: a search stops at fewer places. Enough of it is left to mean the same."""
    starts = range(max(len(mark) - LONG, 0) + 1)
    return mark[
        max(starts, key=lambda at: (COMMON.find(mark[at]), -at) if mark[at] in COMMON else (99, -at)) :
    ]


# The first tell of a failure, and are all read; the others may, and of very many some are.
TELLING = (*BLOCKS, *(mark for mark in _marks() if len(mark) >= LONG))
WORDS = (*TELLING, *OTHERS, *_marks())


def _any_of(words: Iterable[str]) -> re.Pattern[bytes]:
    """Words by their first letters: three times as fast as one after the other."""
    return re.compile(_by_letter([_from_its_rarest(word).encode() for word in words], LETTERS))


def _by_letter(words: list[bytes], letters: int) -> bytes:
    if b"" in words:
        return b""  # one is how another begins
    if not letters or len(words) == 1:
        return b"|".join(map(re.escape, words))
    behind: dict[bytes, list[bytes]] = {}
    for word in words:
        behind.setdefault(word[:1], []).append(word[1:])
    return b"|".join(
        re.escape(first) + b"(?:" + _by_letter(rest, letters - 1) + b")" for first, rest in behind.items()
    )


IS_TELLING, INTEREST = _any_of(TELLING), _any_of(WORDS)
# The first of them in two parts, for a whole block at once: a search stops at each letter with which some word begins, and
# small ones are everywhere in prose, where one plain search a word is faster.
SMALL = tuple(word.encode() for word in map(_from_its_rarest, BLOCKS) if word[0].islower())
IS_LARGE = _any_of(word for word in BLOCKS if not _from_its_rarest(word)[0].islower())
DIGITS = b"0123456789"
# The rank of which a line is: where it wrote last is worth knowing, whatever that was.
RANK = re.compile(rb"\[(?:rank|default)\d+\]")
BEFORE, AFTER = 2, 12  # lines around one that tells of a failure: what it says may take several
MOST_ALIKE = 20_000  # lines that differ in their digits alone
MOST_TELLING = 4_000  # in one block, of which each may have lines around it
MANY = 20_000  # lines that may be of interest: from there on fewer
MOST_OTHERS, MOST_OF_MANY = 400, 20  # in one block
FEW_NEW = 100  # of the same, where very many were looked at
MOST_NEW = 1_000  # lines like no other before, in one block: beyond that they are prose, and searched for blocks alone
MOST_KNOWN = 100_000


class Sieve:
    """Shapes of a log's lines so far: most are like others, but for their digits."""

    def __init__(self) -> None:
        self._known: dict[bytes, int] = {}
        self._times: Counter[bytes] = Counter()
        self._others = self._searched = 0
        self._after = 0  # lines of the next block that belong to the last one of interest

    def wanted(self, block: bytes, rows: list[bytes]) -> list[int]:
        """Indices of rows of the block worth a closer look, in order."""
        text = block.translate(None, DIGITS)
        shapes = text.split(b"\n")
        self._learn(set(shapes), {shapes[row] for row in _rows_of(text, _blocks_in(text))})
        worth = {shape: how for shape in set(shapes) if (how := self._known.get(shape))}
        keep = set(range(min(self._after, len(rows))))
        self._after = 0
        telling, others = MOST_TELLING, MOST_OF_MANY if self._others > MANY else MOST_OTHERS
        for at, shape in enumerate(shapes) if worth else ():
            how = worth.get(shape, 0)
            if not how or self._times[shape] >= MOST_ALIKE:
                continue
            if how == 1 and others:
                others -= 1
                self._others += 1
                keep.add(at)
            elif how == 2 and telling:
                telling -= 1
                keep.update(range(max(at - BEFORE, 0), at + AFTER + 1))
                self._after = max(at + AFTER + 1 - len(rows), 0)
            self._times[shape] += 1
        keep.update(_last_of_each_rank(block))
        return sorted(at for at in keep if at < len(rows))

    def _learn(self, shapes: set[bytes], told: set[bytes]) -> None:
        """Take of new shapes what they are worth: 2 of a line that tells of a failure, 1 of one that may, 0 of any other."""
        if len(self._known) >= MOST_KNOWN:
            self._known.clear()
            self._times.clear()
        self._known |= dict.fromkeys(told, 2)
        most = MOST_NEW if self._searched < MANY else FEW_NEW
        # A difference of sets would go over all that is known.
        for shape in itertools.islice((s for s in shapes if s not in self._known), most):
            self._searched += 1
            worth = 1 if INTEREST.search(shape) else 0
            self._known[shape] = 2 if worth and IS_TELLING.search(shape) else worth


def _blocks_in(text: bytes) -> Iterator[int]:
    """Places of words that begin a block."""
    yield from (found.start() for found in IS_LARGE.finditer(text))
    for word in SMALL:
        place = text.find(word)
        while place >= 0:
            yield place
            place = text.find(word, place + 1)


def _last_of_each_rank(block: bytes) -> Iterator[int]:
    """The row in which each rank wrote last in the block."""
    yield from _rows_of(block, (block.rfind(tag) for tag in set(RANK.findall(block))))


def _rows_of(block: bytes, places: Iterable[int]) -> Iterator[int]:
    row = before = 0
    for place in sorted(places):
        row += block.count(b"\n", before, place)
        before = place
        yield row
