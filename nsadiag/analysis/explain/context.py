"""The context of a divergence: stacks, source, timelines and waits of ranks that wait for each other, read once for every candidate."""

from __future__ import annotations

from functools import cached_property

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.ingest import sources
from nsadiag.analysis.relations import call_paths
from nsadiag.analysis.relations.call_paths import CallPaths
from nsadiag.analysis.relations.pending import PendingCall, is_still, waiting_group, waits
from nsadiag.analysis.relations.timeline import Divergence, Timelines
from nsadiag.evidence.phrases import call_name
from nsadiag.evidence.records import Collective, Evidence, Place
from nsadiag.source.control import Condition, Program
from nsadiag.source.model import CallPath
from nsadiag.source.patterns.statements import joins_around

# What only a peer can end. A transfer waits for one peer, and the store for a key: both have classes of their own.
PEERS = ("collective", "backward", "rendezvous", "leaving", "gone", "failed")


class Context:
    """A divergence to be explained, besides the case: its program, timelines, call paths and waits.

    A class of its own: a case knows the facts of its ranks, and these are relations between them and to the source.
    """

    def __init__(self, case: Case) -> None:
        self.case, self.cell = case, case.cell

    @cached_property
    def program(self) -> Program:
        return Program({path: file for path in self._files if (file := self.cell.code.file(path))})

    @property
    def _files(self) -> list[str]:
        named = {f.file for s in self.case.thread_states.values() for f in s.frames}
        named |= {p.file for ts in self.timelines.events.values() for t in ts[-200:] if (p := t.place)}
        return sorted(named | set(self.cell.sources))

    @cached_property
    def timelines(self) -> Timelines:
        groups = self.case.groups
        return Timelines(self.cell.ranks, lambda rank, name: groups.members(groups.label(rank, name)))

    @cached_property
    def call_paths(self) -> CallPaths:
        return CallPaths(self.case, self.program, self.timelines, still=self.still)

    @cached_property
    def still(self) -> bool:
        """Whether the last snapshot shows the ranks as they were in the end; otherwise the job went on after it."""
        return is_still(self.cell)

    @cached_property
    def waits(self) -> list[PendingCall]:
        return waits(self.case) if self.still else []

    def members(self) -> tuple[int, ...]:
        """Ranks among which somebody waits."""
        return tuple(sorted(self.case.once(waiting_group)))

    @cached_property
    def divergence(self) -> Divergence | None:
        """The first iteration in which the members did not do the same."""
        return self.timelines.first_divergence(self.members())

    def pairs(self) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        """Every two sets of ranks that stand at different lines, the largest first, the first of which waits in a collective."""
        found: dict[tuple[str, int], list[int]] = {}
        for rank in self.members():
            here = self.place_of(rank)
            at = (here.file, here.line) if here and self.path_of(rank) else ("", 0)
            found.setdefault(at, []).append(rank)
        sets = [tuple(ranks) for ranks in sorted(found.values(), key=lambda ranks: (-len(ranks), ranks))]
        return [(a, b) for a in sets for b in sets if a != b and self.in_collective(a[0])]

    def doing(self, rank: int) -> str:
        """As its thread's state says; `gone` of a rank that has ended by itself, `failed` where a peer's end ended it."""
        state = self.case.thread_states.get(rank)
        if rank in self.call_paths.gone:
            return "gone"
        return state.doing if state and self.still else "failed"

    def waits_for_peers(self, rank: int) -> bool:
        """Whether nothing of its own keeps it."""
        if any(rank in w.waiting for w in self.waits):
            return True
        return self.doing(rank) in PEERS

    def exited_within(self, loop: Condition, rank: int) -> bool:
        """Whether the rank's process called exit inside the loop: neither its end nor a condition of it led out."""
        left = self.cell.rank(rank).leaving
        at = locations.of_text(left.place) if left else None
        return at is not None and any(loop.has_in_body(p) for p in (at, *self.call_paths.to(at)))

    def is_joined(self, loop: Condition, rank: int) -> bool:
        """Whether the loop is in a `with Join(...)`, or `with model.join()`, at which the rank stands now."""
        here = self.place_of(rank)
        joins = joins_around(self.program.files.get(loop.file), loop.line)
        return here is not None and here.file == loop.file and here.line in joins

    def in_collective(self, rank: int) -> bool:
        """Whether it waits in one, or was in one when its peer's end ended it."""
        return any(rank in w.waiting for w in self.waits) or self.doing(rank) in (
            "collective",
            "backward",
            "failed",
        )

    def collective(self, rank: int) -> Collective | None:
        """The collective that the rank waits in."""
        return next((w.collective(rank) for w in self.waits if rank in w.waiting), None)

    def place_of(self, rank: int) -> Place | None:
        """The rank's innermost user line: where it issued what does not match, else where it stands."""
        for wait in (each for each in self.waits if rank in set(each.calls["rank"])):
            # Under NCCL the rank goes on, and may stand far behind it, whether or not the call comes to its end.
            if issued := wait.issued_at(self.cell, rank):
                return issued
        path = self.call_paths.now(rank)
        last = self.timelines.last(rank)
        return path[-1] if path else last.place if last else None

    def may_have_gone_on(self, rank: int) -> bool:
        """Whether nothing shows that its line issued what it waits in: under NCCL the rank may have gone on from there."""
        wait = next((w for w in self.waits if rank in w.waiting), None)
        if wait is None or wait.issued_at(self.cell, rank):
            return False
        last = self.cell.rank(rank).last_capture
        return last is not None and not any("torch/distributed/" in f.filename for f in last.main_frames)

    def path_of(self, rank: int) -> CallPath:
        """The call path that belongs to `place_of`."""
        path, here = self.call_paths.now(rank), self.place_of(rank)
        if not path or here is None or path[-1].is_at(here):
            return path
        return self.call_paths.to(here)

    def source_of(self, rank: int) -> str:
        """The file that shows where the rank stood."""
        evidence = self.cell.rank(rank)
        if evidence.last_capture is not None and self.still and rank not in self.call_paths.gone:
            return f"{evidence.last_capture.source}/py_spy.json"
        return f"{evidence.source}/{'exception.json' if evidence.exception else 'blackbox.bin'}"

    @cached_property
    def anchor(self) -> Place | None:
        """The line that begins a training step."""
        return locations.of_text(self.timelines.anchor or "")

    def around(self, path: CallPath) -> list[Condition]:
        """Branches and loops around the path's lines, outermost first."""
        return call_paths.conditions_around(self.program, path)

    def differing(self, path: CallPath, other: CallPath) -> list[Condition]:
        """Branches and loops that the path is in and the other is not, outermost first."""
        return call_paths.differing_conditions(self.program, path, other)

    def early_exits(self, path: CallPath, other: CallPath) -> list[Condition]:
        """Early exits before the path's lines by which the other may have gone where it is, innermost first."""
        return call_paths.early_exits(self.program, path, other)

    def is_in(self, path: CallPath, guard: Condition) -> bool:
        """Whether the path runs through that branch."""
        return call_paths.is_in(self.program, path, guard)

    def path_to(self, at: Place, ranks: tuple[int, ...]) -> CallPath:
        """The stack of the first of these ranks that still is at the line; else the path that the source has."""
        paths = (self.path_of(rank) for rank in ranks)
        here = (path for path in paths if path and path[-1].is_at(at))
        return next(here, ()) or self.call_paths.to(at)

    def anchored_in(self, loop: Condition) -> bool:
        """Whether the training step is in the loop's body."""
        return self.anchor is not None and any(map(loop.has_in_body, self.call_paths.to(self.anchor)))

    def in_forward(self, guard: Condition) -> bool:
        """Whether the condition stands in what a module does."""
        scopes = [self.program.scope_of(p.file, p.line) for p in self.call_paths.to(guard.place)]
        return any(scope.path.endswith(".forward") for scope in scopes)

    def cited(self, at: Place) -> str:
        """The line in the file's copy in the run directory, where there is one."""
        return sources.cited(self.cell, at.file, at.line)

    def recorded(self, rank: int, did: str) -> Evidence:
        """Evidence from the rank's events of what it did."""
        return Evidence(claim=f"rank {rank} {did}", source=f"{self.cell.rank(rank).source}/blackbox.bin")

    def position(self, rank: int) -> Evidence:
        """One sentence on where the rank is."""
        here = self.place_of(rank)
        if self.doing(rank) == "gone":
            return Evidence(claim=f"rank {rank} had ended", source="ends.json")
        collective = self.collective(rank)
        call = collective and call_name(collective.op, collective.seq, collective.group)
        what = f"waits in {call}" if call else "is"
        at = f" at {locations.short(here)}" if here else ""
        return Evidence(claim=f"rank {rank} {what}{at}", source=self.source_of(rank))
