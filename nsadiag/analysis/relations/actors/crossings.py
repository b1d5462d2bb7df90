"""Waits that cross from one role to another: for whoever is at the other end of a socket or pipe, who is to write a file, who has not
come to a group; and within a process for its other threads.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from nsadiag.analysis.facts.actors.job import ActorJob
from nsadiag.analysis.facts.actors.peers import End, end_of, port_of
from nsadiag.analysis.facts.actors.stands import Stand, Stands
from nsadiag.evidence.blocking import OF_ITS_PROCESS
from nsadiag.evidence.documents.kernel import Descriptor
from nsadiag.evidence.records import Place
from nsadiag.evidence.user_code import is_user
from nsadiag.source.patterns.file_names import asked_for, loop_asks, names_at, names_from, names_in_file
from nsadiag.source.polling import ASKS_FOR_FILES, ASKS_OUTSIDE

STORE = re.compile(r"pt_tcpstore")  # threads of torch's store
BETWEEN_S = 10.0  # two questions at most; whoever sleeps for longer does nothing else


@dataclass(frozen=True, kw_only=True)
class Crossing:
    """A wait of one stand for another; of several from one stand, any may end it."""

    to: Stand
    kind: Literal["answer", "pipe", "thread", "file", "key"]
    what: str


@dataclass(frozen=True, kw_only=True)
class Forming:
    """A group of which some members have come; `lacking` are stands of whoever may be the others, and may be nobody."""

    size: int
    come: tuple[int, ...]
    lacking: tuple[Stand, ...]


@dataclass(frozen=True)
class Crossings:
    """The stands of a job of several launchers, and what connects them."""

    job: ActorJob
    stands: Stands

    def of(self, stand: Stand) -> list[Crossing]:
        """Everyone who could end its wait, as far as that is known; empty where it waits for the world, or for nobody."""
        if stand.doing == "socket":
            at_store = self._asks_a_store(stand)
            return list(self._setters(stand) if at_store else self._at_the_other_end(stand))
        if stand.doing == "pipe":
            return [Crossing(to=s, kind="pipe", what="a pipe") for s in self._holders(stand)]
        if stand.doing in OF_ITS_PROCESS:
            return [
                Crossing(to=s, kind="thread", what="a thread of its process") for s in self._beside(stand)
            ]
        if stand.doing == "sleep":
            return list(self._writers(stand))
        return []

    def forming(self, stand: Stand) -> Forming | None:
        """The group that it is about to create, and that lacks members: None of any other.

        Candidates are the rest of one launcher's processes, where these are as many as lack; else those of other roles.
        """
        told = self.job.joining(stand.number)
        if stand.doing != "rendezvous" or told is None:
            return None
        come = [n for n in self.job.processes if self.job.joining(n) == told]
        if len(come) >= told[0]:
            return None
        known = self.job.processes
        others = [n for n in known if n not in come]
        roles, parents = {known[n].role for n in come}, {known[n].parent for n in come}
        beside = [n for n in others if known[n].role in roles and known[n].parent in parents]
        elsewhere = [n for n in others if known[n].role not in roles]
        found = beside if len(roles) == 1 and len(beside) == told[0] - len(come) else elsewhere
        return Forming(
            size=told[0], come=tuple(come), lacking=tuple(s for n in found for s in self.stands.of(n))
        )

    def asks(self, stand: Stand) -> bool:
        """Whether it sleeps between two questions to the world, of which nothing shows whom they are for."""
        return bool(self._loop_around(stand, ASKS_OUTSIDE))

    def peers(self, stand: Stand, connected: list[int]) -> list[int]:
        """The processes among those that it is connected with that may be in the group of its collective."""
        waits = self.job.waits.get(stand.number)
        named = waits is not None and stand.thread in waits.named_groups
        role = self.job.processes[stand.number].role
        same = [n for n in connected if self.job.processes[n].role == role]
        return connected if named or not same else same

    # -- sockets and pipes ------------------------------------------------------------------------

    def _at_the_other_end(self, stand: Stand) -> Iterator[Crossing]:
        row = self._descriptor(stand)
        if row is None or row.kind != "tcp" or not row.peer:
            return
        node = self.job.processes[stand.number].node
        local, peer = end_of(row.local, node), end_of(row.peer, node)
        other = self._owners.get((peer, local))
        if other is not None and other != stand.number:
            found = self._answering(other, row.local)
        else:
            # Nobody has taken the connection yet: whoever listens there is to do it.
            found = [s for n in self._listeners(port_of(peer), but=stand.number) for s in self.stands.of(n)]
        yield from (Crossing(to=s, kind="answer", what="its request") for s in found)

    def _asks_a_store(self, stand: Stand) -> bool:
        """Whether its line calls into torch, and a store of torch's is at the other end: that has the key once somebody sets it."""
        row = self._descriptor(stand)
        if stand.inner or row is None or row.kind != "tcp" or not row.peer:
            return False
        node = self.job.processes[stand.number].node
        holder = self._owners.get((end_of(row.peer, node), end_of(row.local, node)))
        captures = self.job.captures(holder) if holder is not None else ()
        return any(STORE.match(thread.name) for c in captures for thread in c.proc.threads)

    def _setters(self, stand: Stand) -> Iterator[Crossing]:
        """Stands from which somebody would come to set the key, by its name in the source."""
        asked = names_at(self.job.cell.code, stand.place) if stand.place else set()
        for s in self._would_write(stand, asked):
            yield Crossing(to=s, kind="key", what=max(asked, key=len))

    def _answering(self, number: int, client: str) -> list[Stand]:
        """The thread that answers this client; where none says so, all of the process."""
        waits = self.job.waits.get(number)
        threads = {s.thread for s in waits.serves if s.client == _plain(client)} if waits else set()
        mine = self.stands.of(number)
        return [s for s in mine if s.thread in threads] or mine

    def _holders(self, stand: Stand) -> list[Stand]:
        row = self._descriptor(stand)
        if row is None or row.kind != "pipe":
            return []
        holders = {
            n
            for n, rows in self._rows.items()
            for r in rows.values()
            if r.kind == "pipe" and r.inode == row.inode
        }
        return [s for n in sorted(holders - {stand.number}) for s in self.stands.of(n)]

    def _descriptor(self, stand: Stand) -> Descriptor | None:
        waits = self.job.waits.get(stand.number)
        fd = next((w.fd for w in waits.sockets if w.thread == stand.thread), None) if waits else None
        return self._rows[stand.number].get(fd) if fd is not None else None

    @cached_property
    def _rows(self) -> dict[int, dict[int, Descriptor]]:
        found: dict[int, dict[int, Descriptor]] = {}
        for number in self.job.processes:
            captures = self.job.captures(number)
            found[number] = {row.fd: row for row in captures[-1].proc.fds.open} if captures else {}
        return found

    @cached_property
    def _owners(self) -> dict[tuple[str, str], int]:
        found: dict[End, int] = {}
        for number, rows in self._rows.items():
            node = self.job.processes[number].node
            for row in rows.values():
                if row.kind == "tcp" and row.peer:
                    found[end_of(row.local, node), end_of(row.peer, node)] = number
        return found

    def _listeners(self, port: int, but: int) -> list[int]:
        return [
            n
            for n, rows in self._rows.items()
            if n != but and any(r.state == "LISTEN" and port_of(r.local) == port for r in rows.values())
        ]

    # -- threads and files ------------------------------------------------------------------------

    def _beside(self, stand: Stand) -> list[Stand]:
        """Threads of the same process that wait for somebody else, or work; a server's loop gives nothing by itself."""
        return [
            s for s in self.stands.of(stand.number)
            if s.thread != stand.thread and s.doing not in (*OF_ITS_PROCESS, "serves")
        ]  # fmt: skip

    def _writers(self, stand: Stand) -> Iterator[Crossing]:
        """Processes that would write a file for which its loop asks: first those that would come to it from where they stand."""
        code = self.job.cell.code
        asked = (
            asked_for(code, stand.frames, stand.place)
            if stand.place and self._loop_around(stand, ASKS_FOR_FILES)
            else set()
        )
        if not asked:
            return
        for s in self._would_write(stand, asked):
            yield Crossing(to=s, kind="file", what=max(asked, key=len))

    def _would_write(self, stand: Stand, asked: set[str]) -> list[Stand]:
        """Stands with such a name before them; without any, those in whose file it is."""
        code = self.job.cell.code
        # Whoever asks at the same place gives nothing.
        others = [s for s in self.stands.rows if s.number != stand.number and s.place != stand.place]
        further = [s for s in others if asked & {n for f in s.frames for n in self._ahead(f)}]
        own = {f.file for f in stand.frames}
        there = {
            s.number for s in others for f in s.frames
            if f.file not in own and is_user(f.file) and asked & names_in_file(code, f.file)
        }  # fmt: skip
        return further or [s for s in others if s.number in there]

    def _ahead(self, place: Place) -> set[str]:
        """Names in what follows there in its function, and in the loops around it, which come again."""
        code = self.job.cell.code
        file = code.file(place.file)
        loops = file.loops_around(place.line) if file else []
        return names_from(code, place.file, min([place.line, *(loop.lineno for loop in loops)]))

    def _loop_around(self, stand: Stand, asks: re.Pattern[str]) -> bool:
        """Whether it naps in a loop that asks for such things: the nearest around the very line."""
        if stand.place is None or stand.doing != "sleep" or stand.sleeps_s > BETWEEN_S:
            return False
        return loop_asks(self.job.cell.code, stand.place, asks)


def _plain(address: str) -> str:
    return address.replace("[::ffff:", "").replace("]", "")
