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
from nsadiag.source.loops import asks_memory, calls_ahead
from nsadiag.source.patterns.file_names import asked_for, loop_asks, names_at, names_from, names_in_file
from nsadiag.source.polling import ASKS_FOR_FILES, ASKS_OUTSIDE

STORE = re.compile(r"pt_tcpstore")  # threads of torch's store
# By a function of asyncio's in which a task waits, calls that end its wait; by none, those of a bare future.
GIVES = {
    "": frozenset({"set_result", "set_exception"}),
    "Event.wait": frozenset({"set"}),
    "Queue.get": frozenset({"put", "put_nowait"}),
    "Queue.put": frozenset({"get", "get_nowait"}),
    "Condition.wait": frozenset({"notify", "notify_all"}),
    "Condition.wait_for": frozenset({"notify", "notify_all"}),
}
BETWEEN_S = 10.0  # two questions at most; whoever sleeps for longer does nothing else


@dataclass(frozen=True, kw_only=True)
class Crossing:
    """A wait of one stand for another; of several from one stand, any may end it."""

    to: Stand
    kind: Literal["answer", "message", "pipe", "thread", "task", "file", "key", "memory"]
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
        if stand.coroutine:
            return self._of_coroutine(stand)
        if stand.doing in ("socket", "pipe"):
            at_store = self._asks_a_store(stand)
            return list(self._setters(stand) if at_store else self._at_the_other_ends(stand))
        if stand.doing in OF_ITS_PROCESS:
            beside = [
                Crossing(to=s, kind="thread", what="a thread of its process") for s in self._beside(stand)
            ]
            if not stand.between:
                return beside
            return [*beside, *self._at_the_other_ends(stand), *self._sharers(stand)]
        if stand.doing == "sleep":
            return list(self._writers(stand))
        return []

    def reaches_outside(self, stand: Stand) -> bool:
        """Whether what a task waits for may come to its event loop from nobody of the job."""
        return bool(
            stand.coroutine
            and not stand.local
            and stand.doing in OF_ITS_PROCESS
            and None in self._ends(stand)
        )

    def forming(self, stand: Stand) -> Forming | None:
        """The group that it is about to create, and that lacks members: None of any other.

        Candidates are the rest of one launcher's processes, where these are as many as lack; else those of other roles. A group that
        goes round torch's own functions is one that reaches beyond its launcher, if there is anybody beyond.
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
        reaches_beyond = self.job.joins_by_user(stand.number) and bool(elsewhere)
        is_own = len(roles) == 1 and len(beside) == told[0] - len(come) and not reaches_beyond
        found = beside if is_own else elsewhere
        # Who asks until something answers does not come before that.
        lacking = tuple(s for n in found for s in self.stands.of(n) if not self.asks(s))
        return Forming(size=told[0], come=tuple(come), lacking=lacking)

    def asks(self, stand: Stand) -> bool:
        """Whether it sleeps between two questions to the world, of which nothing shows whom they are for."""
        return bool(self._loop_around(stand, ASKS_OUTSIDE))

    def peers(self, stand: Stand, connected: list[int]) -> list[int]:
        """The processes among those that it is connected with that may be in the group of its collective."""
        waits = self.job.waits.get(stand.number)
        named = waits is not None and stand.thread in waits.named_groups
        known = self.job.processes
        me = known[stand.number]
        same = [n for n in connected if known[n].role == me.role]
        # Without a name it is its launcher's group, also where connections show none of it.
        same = same or [n for n, p in known.items() if (p.role, p.parent) == (me.role, me.parent) and p != me]
        return connected if named or not same else same

    # -- tasks --------------------------------------------------------------------------------------

    def _of_coroutine(self, stand: Stand) -> list[Crossing]:
        """Tasks and threads that hold what it waits for, and who may send to its event loop; its thread, if that is held up."""
        mine = self.stands.of(stand.number)
        loop = next(
            (s for s in mine if s.thread == stand.thread and not s.coroutine and s.doing != "serves"), None
        )
        if loop is not None:
            return [Crossing(to=loop, kind="thread", what="its event loop")]
        if stand.doing == "sleep":
            return list(self._writers(stand))
        if stand.doing == "socket":
            return list(self._at_the_other_ends(stand))
        if stand.doing not in OF_ITS_PROCESS:
            return []
        givers = [s for s in mine if (s.coroutine or s.thread) in stand.givers and s.doing != "serves"]
        gives = GIVES.get(stand.inner)
        if gives and not stand.joins:
            givers = [s for s in givers if any(gives & calls_ahead(self.job.cell.code, f) for f in s.frames)]
        found = [Crossing(to=s, kind="task", what="a task of its process") for s in givers]
        if not found and stand.inner in ("", "to_thread"):
            beside = (s for s in mine if not s.coroutine and s.thread != stand.thread and s.doing != "serves")
            found = [Crossing(to=s, kind="thread", what="a thread of its process") for s in beside]
        if found or stand.local or self.reaches_outside(stand):
            return found
        return list(self._at_the_other_ends(stand))

    # -- sockets and pipes ------------------------------------------------------------------------

    def _at_the_other_ends(self, stand: Stand) -> Iterator[Crossing]:
        ends = self._ends(stand)
        if None not in ends:
            yield from (each for each in ends if each)

    def _ends(self, stand: Stand) -> list[Crossing | None]:
        """Everyone at the other ends of what the call is about; None for an end that nobody of the job has.

        Of several connections who waits for an answer by it sends none.
        """
        rows, found = self._descriptors(stand), list[Crossing | None]()
        for row in rows:
            holders = self._holders(stand, row)
            if holders is not None:
                # Whoever listens to several may have asked nobody.
                several = len(rows) > 1
                kind: Literal["message", "pipe", "answer"] = (
                    "message" if several or stand.coroutine else "pipe" if row.kind == "pipe" else "answer"
                )
                found += [
                    Crossing(to=s, kind=kind, what="its request")
                    for s in holders
                    if not (several and self._awaits(s, row))
                ] or ([None] if not holders else [])
        return found

    def _holders(self, stand: Stand, row: Descriptor) -> list[Stand] | None:
        """Stands of whoever has the other end of a connection; None where the descriptor is none."""
        inode = row.inode if row.kind == "pipe" else row.peer_inode
        if row.kind in ("pipe", "unix") and inode:
            mine = [r for r in self._rows[stand.number].values() if inode == r.inode]
            others = self._inodes.get(inode, set()) - {stand.number}
            if not others and len(mine) > (row.kind == "pipe"):
                return None  # by which its own threads wake each other
        elif row.kind == "tcp" and row.peer:
            node = self.job.processes[stand.number].node
            local, peer = end_of(row.local, node), end_of(row.peer, node)
            owner = self._owners.get((peer, local))
            if owner is not None and owner != stand.number:
                return self._answering(owner, row.local)
            # Nobody has taken the connection yet: whoever listens there is to do it.
            others = set(self._listeners(stand, port_of(peer)))
        else:
            return None
        return [s for n in sorted(others) for s in self.stands.of(n)]

    def _awaits(self, stand: Stand, row: Descriptor) -> bool:
        """Whether a stand waits for what comes by the other end of that connection, and nothing else."""
        theirs = self._descriptors(stand)
        pair = len(theirs) == 1 and not stand.coroutine
        return pair and (
            theirs[0].peer == row.local if row.kind == "tcp" else theirs[0].peer_inode == row.inode != 0
        )

    def _asks_a_store(self, stand: Stand) -> bool:
        """Whether its line calls into torch, and a store of torch's is at the other end: that has the key once somebody sets it."""
        row = next(iter(self._descriptors(stand)), None)
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

    def _descriptors(self, stand: Stand) -> list[Descriptor]:
        waits, rows = self.job.waits.get(stand.number), self._rows[stand.number]
        fds = [w.fd for w in waits.sockets if w.thread == stand.thread] if waits else []
        return [rows[fd] for fd in fds if fd in rows]

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

    @cached_property
    def _inodes(self) -> dict[int, set[int]]:
        """Processes that have a pipe or a unix socket."""
        found: dict[int, set[int]] = {}
        for number, rows in self._rows.items():
            for row in rows.values():
                if row.inode:
                    found.setdefault(row.inode, set()).add(number)
        return found

    def _listeners(self, stand: Stand, port: int) -> list[int]:
        """Itself, if it holds up the event loop that would take the connection."""
        found = [
            n
            for n, rows in self._rows.items()
            if any(r.state == "LISTEN" and port_of(r.local) == port for r in rows.values())
        ]
        others = [n for n in found if n != stand.number]
        held = any(s.coroutine and s.thread == stand.thread for s in self.stands.of(stand.number))
        return others or (found if held else [])

    # -- threads and files ------------------------------------------------------------------------

    def _beside(self, stand: Stand) -> list[Stand]:
        """Threads of the same process that wait for somebody else, or work; a server's loop gives nothing by itself."""
        return [
            s for s in self.stands.of(stand.number)
            if s.thread != stand.thread and s.doing not in (*OF_ITS_PROCESS, "serves")
        ]  # fmt: skip

    def _writers(self, stand: Stand) -> Iterator[Crossing]:
        """Processes that would write a file for which its loop asks: first those that would come to it from where they stand."""
        if self._naps(stand) and stand.place and asks_memory(self.job.cell.code, stand.place):
            yield from self._sharers(stand)
            return
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

    def _sharers(self, stand: Stand) -> Iterator[Crossing]:
        """Processes that have mapped some memory, or a semaphore, that this one has."""
        known = {number: set(waits.memory) for number, waits in self.job.waits.items()}
        mine = known.get(stand.number, set())
        for s in self.stands.rows:
            if s.number != stand.number and s.place != stand.place and mine & known.get(s.number, set()):
                yield Crossing(to=s, kind="memory", what="memory that they share")

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
        return bool(self._naps(stand) and stand.place and loop_asks(self.job.cell.code, stand.place, asks))

    @staticmethod
    def _naps(stand: Stand) -> bool:
        return stand.doing == "sleep" and stand.sleeps_s <= BETWEEN_S


def _plain(address: str) -> str:
    return address.replace("[::ffff:", "").replace("]", "")
