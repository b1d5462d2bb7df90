"""The files below the working directory that ranks look for, read and write in a rehearsal, and one rank that is held before such an access.

Each rank leaves its accesses as lines of JSON beside the coordinator's socket. Two of which neither came before the other by
calls that their ranks made may come in either order: a second rehearsal holds one of the ranks, to have the other order.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

# `look`: whether it is there, how old or how large; `list`: a directory; `write`: also the target of a rename.
What = Literal["look", "list", "read", "write", "remove"]
CLOSE_NS = 50_000_000
READS, WRITES = ("look", "list", "read"), ("write", "remove")


@dataclass(frozen=True, kw_only=True)
class Access:
    """One access, as its rank names it in every rehearsal: the nth of its kind to this path at this line."""

    rank: int
    what: What
    path: str
    place: str  # file:line:function of the user's
    nth: int = 1


@dataclass(frozen=True, kw_only=True)
class Touch:
    """An access, and when it was."""

    access: Access
    calls: int  # that the rank had announced before
    known: dict[int, int] = field(default_factory=dict)  # calls of each rank that were before it
    at_ns: int = 0
    slept: bool = False  # since the rank's last call: it gives others time on purpose
    found: bool = True  # there was such a file then


@dataclass(frozen=True, kw_only=True)
class Hold:
    """A rank that is held before an access until another one's has happened.

    `early` is what comes first then. A write is over when its file is another and is written to no more; of a read its
    rank leaves a mark.
    """

    late: Access
    early: Access

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @property
    def read(self) -> Access:
        """The one of the two that does not change the file."""
        return self.late if self.late.what in READS else self.early

    def words(self) -> str:
        """The order that it makes, as a person reads it."""
        first, then = _said(self.early), _said(self.late)
        return f"{first[0]} had {first[1]} before {then[0]} {then[2]}"


PAST = {"look": "looked for", "list": "listed", "read": "opened", "write": "written", "remove": "removed"}
SIMPLE = PAST | {"write": "wrote"}


def _said(access: Access) -> tuple[str, str, str]:
    """The rank, and what it did, in two tenses."""
    file, line, _ = access.place.rsplit(":", 2)
    about = f"{Path(access.path).name} ({Path(file).name}:{line})"
    return f"rank {access.rank}", f"{PAST[access.what]} {about}", f"{SIMPLE[access.what]} {about}"


def hold_of(text: str) -> Hold:
    """The setting, from the environment."""
    given = json.loads(text)
    return Hold(late=Access(**given["late"]), early=Access(**given["early"]))


def touches_file(socket: Path, rank: int) -> Path:
    """The accesses of one rank."""
    return socket.with_name(f"touched-{rank}.jsonl")


def held_file(socket: Path) -> Path:
    """It is there while a rank is held; "done" in it: the other access came first."""
    return socket.with_name("held")


def came_about(socket: Path) -> bool:
    """Whether the rank was held until the other access had happened."""
    file = held_file(socket)
    return file.exists() and file.read_text() == "done"


def mark_file(socket: Path) -> Path:
    """It is there when the read that is waited for has happened."""
    return socket.with_name("happened")


def release_file(socket: Path) -> Path:
    """It is there when the held rank is waited for: the other order cannot be."""
    return socket.with_name("release")


def read_touches(directory: Path) -> Iterator[Touch]:
    """Those of all ranks; a line that a dying rank cut is left out."""
    for file in sorted(directory.glob("touched-*.jsonl")):
        for line in file.read_text(errors="replace").splitlines():
            try:
                given = json.loads(line)
                known = {int(rank): int(calls) for rank, calls in given.pop("known").items()}
                numbers = {name: int(given.pop(name)) for name in ("calls", "at_ns")}
                yield Touch(**given | numbers | {"access": Access(**given["access"]), "known": known})
            except (ValueError, TypeError, KeyError):
                continue


def gave_time(touches: list[Touch]) -> bool:
    """Whether a rank slept before it looked for a file, and never found it: sleeps that take no time may be the reason."""
    found = {(touch.access.rank, touch.access.path) for touch in touches if touch.found}
    return any(
        touch.slept and touch.access.what in READS and (touch.access.rank, touch.access.path) not in found
        for touch in touches
    )


def orders(touches: list[Touch]) -> list[Hold]:
    """Holds that turn the order of an access that reads and another rank's that writes; of either kind the first.

    None where calls give the order, and none that takes from a rank the time that it gives others by sleeping.
    """
    writes = [touch for touch in touches if touch.access.what in WRITES]
    # Who looks for a file will do one thing or the other; a rank behind others is as likely as any.
    reads = sorted(
        (touch for touch in touches if touch.access.what in READS),
        key=lambda touch: (touch.access.what != "look", -touch.access.rank, touch.at_ns),
    )
    found: dict[bool, Hold] = {}
    for read in reads:
        for write in writes:
            if not _concern(read.access, write.access) or _is_ordered(read, write):
                continue
            if _may_be_before(read, write):
                found.setdefault(False, Hold(late=read.access, early=write.access))
            if _may_be_after(read, write) and not read.slept:
                found.setdefault(True, Hold(late=write.access, early=read.access))
    return [found[key] for key in sorted(found)]


def _may_be_before(read: Touch, write: Touch) -> bool:
    """Whether the file may have been as it was before the write. A write is noted before it is made."""
    if read.access.what != "list" and not read.found:
        return write.access.what == "write"
    return read.at_ns < write.at_ns + CLOSE_NS


def _may_be_after(read: Touch, write: Touch) -> bool:
    if read.access.what != "list" and not read.found:
        return write.access.what == "remove"
    return read.at_ns > write.at_ns


def _concern(read: Access, write: Access) -> bool:
    if read.rank == write.rank:
        return False
    if read.what == "list":
        return str(Path(write.path).parent) == read.path
    return read.path == write.path


def _is_ordered(one: Touch, other: Touch) -> bool:
    """Whether one of the two ranks had been in a call with the other after the other's access, and before its own."""
    return _knows(one, other) or _knows(other, one)


def _knows(later: Touch, earlier: Touch) -> bool:
    return later.known.get(earlier.access.rank, 0) > earlier.calls
