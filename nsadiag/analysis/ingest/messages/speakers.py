"""Lines with their speakers: prefixes that are known, those that a file teaches, and which process has which rank."""

from __future__ import annotations

import re
from collections.abc import Iterator

from nsadiag.analysis.ingest.messages.lines import NO_PREFIX, LogLine, Prefix, Speaker
from nsadiag.analysis.ingest.messages.prefixes import parsed, speaker_of
from nsadiag.analysis.ingest.messages.structured import document_of

# Colours and moves of the cursor, which some loggers write into files too; links of terminals.
ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\))")
# No rank, line or size has so many digits, and of very many Python makes no number.
TOO_LONG_A_NUMBER = re.compile(r"\d{40,}")
MOST_CHARACTERS = 2**17  # of one line: what is longer is no message
BEGINS_A_BLOCK = "Traceback (most recent call last):"
# Whatever stands before the stamp of torch's own: what is not known of it.
BEFORE_A_RANK = re.compile(r"[^\n]{1,300}?(?=\[rank(?:\d{1,9}\]:|=\d{1,9}\] \|\| ))")
# Words of blocks that hold a traceback: torchrun's table, a loader's error, an exception group.
NO_HEAD = re.compile(r"^\s*(?:traceback :|Original|[+| ]*Exception Group)\s*$")
MOST_LEARNED = 32
MOST_HOSTS = 10_000
RANK_IN_WORDS = re.compile(r"rank\W{0,2}(\d{1,9})", re.IGNORECASE)
CLOCK = re.compile(r"\d+[:.,]\d[\d:.,]*")
# A process as its pid is known on a host.
Process = tuple[str, int]


class LinesOfLog:
    """Cuts lines of a log into who speaks and what is said."""

    def __init__(self) -> None:
        self._learned: list[re.Pattern[str]] = []
        self._hosts: set[str] = (
            set()
        )  # that pdsh puts before lines: of some of them alone the rest shows that it is one

    def read(self, number: int, text: str) -> Iterator[LogLine]:
        """One line, or several where a logger put them into one record."""
        text = text[:MOST_CHARACTERS]
        if "\x1b" in text:
            text = ESCAPES.sub("", text)
        text = TOO_LONG_A_NUMBER.sub("0", text).replace("\0", "")
        yield from self._parts(number, text, text, NO_PREFIX, depth=0)

    def _parts(self, number: int, text: str, whole: str, outer: Prefix, depth: int) -> Iterator[LogLine]:
        own, said = self._prefix(text)
        prefix = _both(outer, own)
        document = document_of(said) if said.startswith("{") and depth < 4 else None
        if document is None:
            yield LogLine(number=number, said=said, text=whole, prefix=prefix)
            return
        for line in document.lines:
            yield from self._parts(number, line, line, _both(prefix, document.prefix), depth + 1)

    def _prefix(self, text: str) -> tuple[Prefix, str]:
        host, colon, rest = text.partition(": ")
        if colon and host in self._hosts:
            own, said = self._prefix(rest)
            return _both(Prefix(speaker=speaker_of(None, None, None, host, "")), own), said
        prefix, said = parsed(text)
        if prefix.speaker.rank is None and said[:1] != "{" and (head := BEFORE_A_RANK.match(said)):
            # A name of some collector's, or a progress bar that ended in no newline.
            own, said = parsed(said[head.end() :])
            return _both(_both(prefix, own), _unknown(head[0])), said
        if colon and host == prefix.speaker.host and len(self._hosts) < MOST_HOSTS:
            self._hosts.add(host)
        for pattern in self._learned:
            if head := pattern.match(said):
                return _both(prefix, _unknown(head[0])), said[head.end() :]
        before, found, behind = said.partition(BEGINS_A_BLOCK)
        is_prefix = before.strip() and not NO_HEAD.match(before)
        if found and is_prefix and not behind.strip() and len(self._learned) < MOST_LEARNED:
            self._learned.append(_generalised(before))
            return _both(prefix, _unknown(before)), said[len(before) :]
        return prefix, said


def _generalised(head: str) -> re.Pattern[str]:
    """Matches what stands before the other lines of the block: other numbers, but the same words."""
    words = re.split(r"(\d+)", head)
    pattern = "".join(r"\d+" if w.isdigit() else re.escape(w) for w in words)
    # What is an empty line of the block has lost the blank at its end.
    return re.compile(f"{pattern}|{pattern.rstrip()}$" if head[-1:] == " " else pattern)


def _unknown(head: str) -> Prefix:
    """A prefix that no table knows: its words, without times, tell one process from another."""
    rank = RANK_IN_WORDS.search(head)
    return Prefix(
        speaker=speaker_of(int(rank[1]) if rank else None, None, None, "", CLOCK.sub("", head).strip()[:200])
    )


def _both(outer: Prefix, inner: Prefix) -> Prefix:
    if inner is NO_PREFIX or outer is NO_PREFIX:
        return outer if inner is NO_PREFIX else inner
    first, second = outer.speaker, inner.speaker
    weak = first.is_label and second.rank is not None
    return Prefix(
        speaker=speaker_of(
            second.rank if first.rank is None or weak else first.rank,
            second.local_rank if first.local_rank is None else first.local_rank,
            second.pid if first.pid is None else first.pid,
            first.host or second.host,
            first.worker or second.worker,
            is_label=first.is_label and second.rank is None,
        ),
        level=outer.level or inner.level,
        time=outer.time or inner.time,
        stream=outer.stream or inner.stream,
        device=inner.device if outer.device is None else outer.device,
    )


class Ranks:
    """The rank of each process, by lines that name both."""

    def __init__(self) -> None:
        self._of_process: dict[Process, set[int]] = {}
        self._of_pid: dict[int, set[int]] = {}
        self._of_local: dict[tuple[str, int], set[int]] = {}
        self._said: set[int] = set()  # all ranks that lines name
        self.has_nodes = False  # several hosts: a local rank is not the rank

    def learn(self, speaker: Speaker) -> None:
        """Take what a line's prefix says of its process."""
        if speaker.rank is None or speaker.is_label:
            return
        self._said.add(speaker.rank)
        if speaker.pid is not None:
            self.match(speaker.pid, speaker.rank, speaker.host)
        if speaker.local_rank is not None:
            self._of_local.setdefault((speaker.host, speaker.local_rank), set()).add(speaker.rank)
            self.has_nodes |= speaker.local_rank != speaker.rank

    def match(self, pid: int, rank: int, host: str = "") -> None:
        """Take that a process has a rank."""
        self._of_process.setdefault((host, pid), set()).add(rank)
        self._of_pid.setdefault(pid, set()).add(rank)

    def of(self, speaker: Speaker) -> int | None:
        """The process's rank; None where nothing says it, or two things are said."""
        if speaker.rank is not None:
            return speaker.rank
        if speaker.pid is not None:
            found = self._of_process.get((speaker.host, speaker.pid)) or self._of_pid.get(speaker.pid)
            if found and len(found) == 1:
                return next(iter(found))
        if speaker.local_rank is None:
            return None
        found = self._of_local.get((speaker.host, speaker.local_rank))
        if found:
            return next(iter(found)) if len(found) == 1 else None
        # On the second of two nodes other ranks write.
        is_elsewhere = bool(self._said) and speaker.local_rank not in self._said
        return None if self.has_nodes or is_elsewhere else speaker.local_rank

    def by_pid(self) -> dict[int, int]:
        """The rank of each pid of which nothing says two."""
        return {pid: next(iter(ranks)) for pid, ranks in self._of_pid.items() if len(ranks) == 1}
