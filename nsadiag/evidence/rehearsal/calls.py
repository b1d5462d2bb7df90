"""The rehearsal of a job: what its ranks and their coordinator say to each other, and what is left of it on disk.

Messages are lines of JSON over one Unix socket a rank. Values travel as files beside the socket: whoever needs a peer's
input reads it there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from nsadiag.evidence.documents.values import Whole
from nsadiag.evidence.phrases import count
from nsadiag.evidence.rehearsal.isolation import Isolation

# CREATION is the meeting of a group's members when they create it.
CREATION, SEND, RECEIVE, BARRIER = "new_group", "send", "recv", "barrier"
ALL_TO_ALL = "all_to_all"
ANY_SOURCE = -1
MOST_CALLS = 8  # in a text

Answer = Literal["differs", "raised", "agreed", "undecided", "can't"]


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call of one rank, before it is made.

    `tensors`: elements and dtype of each. `root` and `peer` are ranks within the group; `peer` is ANY_SOURCE where any will do.
    `detail`: what else has to be the same, as a person reads it. `sent` and `received`: elements for and from each member of an all_to_all.
    """

    rank: int
    number: int  # among the rank's calls, from 1
    op: str
    group: str
    members: tuple[int, ...]
    description: str = ""  # of the group, as torch describes it
    tensors: tuple[tuple[int, str], ...] = ()
    reduction: str = ""
    detail: str = ""
    root: Whole | None = None
    peer: Whole | None = None
    tag: Whole = 0
    sent: tuple[int, ...] = ()
    received: tuple[int, ...] = ()
    place: str = ""  # file:line of the user's that makes it
    ahead_s: float = 0.0  # by how much the rank's clock has been put forward

    @property
    def is_transfer(self) -> bool:
        return self.op in (SEND, RECEIVE)

    @property
    def signature(self) -> tuple[Any, ...]:
        """Whatever has to be the same in the calls of all members."""
        return self.op, self.reduction, self.detail, self.root, () if self.op == ALL_TO_ALL else self.tensors

    @property
    def words(self) -> str:
        """The call, as a person reads it."""
        sizes = ", ".join(f"{dtype}[{count:,}]" for count, dtype in self.tensors[:3])
        more = f" and {len(self.tensors) - 3} more" if len(self.tensors) > 3 else ""
        to = "to" if self.op == SEND else "from"
        peer = (
            ""
            if self.peer is None
            else f" {to} any rank"
            if self.peer < 0
            else f" {to} {self._rank(self.peer)}"
        )
        root = "" if self.root is None else f" of {self._rank(self.root)}"
        named = "".join(f" {name}" for name in (self.reduction, self.detail) if name)
        return f"{self.op}{root}{peer}{named} {sizes}{more}".rstrip()

    def _rank(self, within: int) -> str:
        return f"rank {self.members[within]}" if 0 <= within < len(self.members) else f"no member ({within})"


@dataclass(frozen=True, kw_only=True)
class Rehearsal:
    """rehearsal.json: what the comparison of all calls came to."""

    answer: Answer
    why: str
    matched: int = 0  # meetings of all members of a group, and transfers
    world_size: int = 0
    calls: tuple[Call, ...] = ()  # those that cannot be matched, or that were open at the end
    ended: dict[str, str] = field(default_factory=dict)  # how each rank ended, by number
    isolation: Isolation = field(default_factory=Isolation)
    on_cpu: bool = False  # which stood in for the GPUs that the script names
    order: str = ""  # of accesses to files, which no call gives: the one that was made for this answer

    @property
    def headline(self) -> str:
        """The answer, and how many calls were matched."""
        ranks = f" on {count(self.world_size, 'rank')}" if self.world_size else ""
        before = "" if self.answer == "agreed" else " before"
        return f"{self.answer}: {self.why}; {count(self.matched, 'call')} matched{ranks}{before}"

    def call_lines(self) -> Iterator[str]:
        """The calls behind the answer."""
        for call in self.calls[:MOST_CALLS]:
            yield f"  rank {call.rank}  {call.words}  {call.place}"

    def notes(self) -> Iterator[str]:
        """Remarks on what was not rehearsed, and on what the script could not reach."""
        if self.on_cpu:
            yield "cuda: the CPU stood in for GPUs; the order of streams, kernels and NCCL were not rehearsed"
        if self.order:
            yield f"order: {self.order}; no call orders the two, and the other way round all calls agreed"
        yield from self.isolation.lines()

    def lines(self) -> Iterator[str]:
        """All of it, as a terminal shows it."""
        yield self.headline
        yield from self.call_lines()
        yield from self.notes()

    def to_json(self) -> dict[str, Any]:
        """The document, each call with its words."""
        calls = [{**asdict(call), "words": call.words} for call in self.calls]
        return {**asdict(self), "calls": calls}


def in_short(about: Mapping[str, Any]) -> str:
    """A call as the path of a rank names it: operation, group, members, and whatever else has to be the same."""
    members = ",".join(map(str, about["members"]))
    said = (about.get(name) for name in ("reduction", "root", "peer", "tag"))
    about_it = str(about.get("detail") or "").replace(",", " ")
    rest = ",".join("" if each is None else str(each) for each in said)
    sizes = " ".join(f"{dtype}[{size}]" for size, dtype in about["tensors"][:8])
    return "\t".join((str(about["op"]), str(about["group"]), members, rest, f"{about_it}{sizes}"))


def data_file(socket: Path, rank: int, number: int) -> Path:
    """The input of a call."""
    return socket.with_name(f"{rank}-{number}.data")


@dataclass(frozen=True, kw_only=True)
class Hello:
    """A rank's first message."""

    rank: int


@dataclass(frozen=True, kw_only=True)
class Done:
    """A rank has read the inputs of a call, which may go."""

    number: int


Message = Hello | Call | Done


def read_message(line: bytes, rank: int) -> Message:
    """One line from a rank; `rank` is its number, once it has said it. Raises ValueError for what is no message."""
    try:
        said = json.loads(line)
        what = said.pop("do")
        if what == "hello":
            return Hello(rank=int(said["rank"]))
        if what == "done":
            return Done(number=int(said["number"]))
        lists = {name: tuple(int(n) for n in said.get(name, ())) for name in ("members", "sent", "received")}
        tensors = tuple((int(count), str(dtype)) for count, dtype in said.get("tensors", ()))
        return Call(**{**said, **lists, "tensors": tensors, "rank": rank})
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"no message of a rank: {error!r}") from None
