"""Where ranks that wait for each other parted, and on what: the facts that five detectors name.

From the outside in: the frames that the ranks share, the first in which they differ, what that line hangs on in
the source, and what each rank had done before, iteration by iteration.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from nsadiag.analysis import places
from nsadiag.analysis.breaks import breaks, first_break, says_mismatch
from nsadiag.analysis.flow.chains import Chain, Chains
from nsadiag.analysis.flow.guards import Guard, Program
from nsadiag.analysis.flow.history import Histories
from nsadiag.analysis.load import CellEvidence
from nsadiag.analysis.shortfall import failed_in_transfer
from nsadiag.analysis.sources import tree_of
from nsadiag.analysis.swallowed import gone_on, in_flight
from nsadiag.analysis.tables import Tables
from nsadiag.analysis.waiting import Wait, is_still, waits
from nsadiag.evidence.records import Collective, Evidence, Finding, Place, Rejected, Where

# What only a peer can end. A transfer waits for one peer, and the store for a key: both have classes of their own.
PEERS = ("collective", "backward", "rendezvous", "leaving", "gone", "failed")


@dataclass(frozen=True, kw_only=True)
class Divergence:
    """Why some ranks will never come to what others wait in."""

    cls: str
    guilty: tuple[int, ...]
    blocked: tuple[int, ...]
    where: Place | None
    peers_at: Place | None
    because: str  # the rest of a sentence that begins with the guilty ranks
    evidence: tuple[Evidence, ...]
    confidence: float
    collective: Collective | None = None
    module: str | None = None
    guard: Guard | None = None


class Situation:
    """What the hypotheses look at, read once."""

    def __init__(self, cell: CellEvidence, tables: Tables) -> None:
        self.cell, self.tables = cell, tables

    @cached_property
    def program(self) -> Program:
        trees: dict[str, ast.Module] = {}
        for file in self._files:
            tree = tree_of(self.cell, file)
            if tree is not None:
                trees[file] = tree
        return Program(trees)

    @property
    def _files(self) -> list[str]:
        named = {f.file for s in self.tables.standings.values() for f in s.frames}
        named |= {p.file for ts in self.histories.tokens.values() for t in ts[-200:] if (p := t.place)}
        return sorted(named | set(self.cell.sources))

    @cached_property
    def histories(self) -> Histories:
        return Histories(self.cell.ranks)

    @cached_property
    def chains(self) -> Chains:
        return Chains(self.cell, self.tables, self.program, self.histories, still=self.still)

    @cached_property
    def still(self) -> bool:
        """Whether the last look is at the ranks as they were in the end: else it is at a job that went on."""
        return is_still(self.cell)

    @cached_property
    def waits(self) -> list[Wait]:
        return waits(self.cell, self.tables) if self.still else []

    def members(self) -> tuple[int, ...]:
        """Ranks among which somebody waits, the smallest such set first; all ranks where no dump tells."""
        sets = [{*w.waiting, *w.missing, *(int(r) for r in w.calls["rank"])} for w in self.waits]
        sets = [s for s in sets if len(s) > 1]
        found = min(sets, key=len) if sets else {r.rank for r in self.cell.ranks}
        return tuple(sorted(found))

    def doing(self, rank: int) -> str:
        """As its standing says; `gone` of a rank that has ended by itself, `failed` where a peer's end ended it."""
        standing = self.tables.standings.get(rank)
        if rank in self.chains.gone:
            return "gone"
        return standing.doing if standing and self.still else "failed"

    def waits_for_peers(self, rank: int) -> bool:
        """Whether nothing of its own keeps it."""
        if any(rank in w.waiting for w in self.waits):
            return True
        return self.doing(rank) in PEERS

    def in_collective(self, rank: int) -> bool:
        """Whether it waits in one, or was in one when its peer's end ended it."""
        return any(rank in w.waiting for w in self.waits) or self.doing(rank) in (
            "collective",
            "backward",
            "failed",
        )

    def collective(self, rank: int) -> Collective | None:
        """What the rank waits in."""
        return next((w.collective(rank) for w in self.waits if rank in w.waiting), None)

    def here(self, rank: int) -> Place | None:
        """The rank's innermost user line: where it issued what does not match, else where it stands."""
        for wait in self.waits:
            if rank in set(wait.calls["rank"]):
                row = wait.calls[wait.calls["rank"] == rank].iloc[-1]
                # Under NCCL a call that does not match may come to its end, and the rank stands further on.
                if not row.pending and (issued := wait.issued_at(self.cell, rank)):
                    return issued
        chain = self.chains.now(rank)
        last = self.histories.last(rank)
        return chain[-1] if chain else last.place if last else None

    def now(self, rank: int) -> Chain:
        """The chain that belongs to `here`."""
        chain, here = self.chains.now(rank), self.here(rank)
        if not chain or here is None or (chain[-1].file, chain[-1].line) == (here.file, here.line):
            return chain
        return self.chains.to(here)

    def source_of(self, rank: int) -> str:
        """The file that shows where the rank stood."""
        evidence = self.cell.rank(rank)
        if evidence.last_capture is not None and self.still and rank not in self.chains.gone:
            return f"{evidence.last_capture.source}/py_spy.json"
        return f"{evidence.source}/{'exception.json' if evidence.exception else 'blackbox.bin'}"

    def anchored_in(self, loop: Guard) -> bool:
        """Whether the training step is in the loop's body."""
        at = places.of_text(self.histories.anchor or "")
        if at is None:
            return False
        return any(p.file == loop.file and loop.line < p.line <= loop.ends for p in self.chains.to(at))

    def in_forward(self, guard: Guard) -> bool:
        """Whether the condition stands in what a module does."""
        at = places.place(guard.file, guard.line, guard.function)
        scopes = [self.program.scope_of(p.file, p.line)[1] for p in self.chains.to(at)]
        return any(scope.endswith(".forward") for scope in scopes)

    def choice_in_forward(self) -> Guard | None:
        """The only condition in any `forward` that can differ between ranks; None where there are several."""
        found = self.program.choices_in("forward")
        return found[0] if len(found) == 1 else None

    def kept_as(self, file: str) -> str:
        """The file's copy in the run directory, where there is one."""
        return f"sources ({file})" if file in self.cell.sources else file

    def stands(self, rank: int) -> Evidence:
        """One sentence on where the rank is."""
        here = self.here(rank)
        if self.doing(rank) == "gone":
            return Evidence(claim=f"rank {rank} had come to its end", source="ends.json")
        collective = self.collective(rank)
        what = f"waits in {collective.op} {collective.seq} of {collective.group}" if collective else "stands"
        at = f" at {places.short(here)}" if here else ""
        return Evidence(claim=f"rank {rank} {what}{at}", source=self.source_of(rank))


def is_stuck(cell: CellEvidence) -> bool:
    """Whether ranks wait for each other for ever, or did until one of them ended, or the backend saw that they disagree."""
    first = first_break(cell)
    if first is None:
        # Where all that broke only lost a peer, or gave up waiting for one, nothing but their parting is left.
        return is_still(cell) or any(b.kind != "exited" for b in breaks(cell))
    return first.kind == "exited" or says_mismatch(first.rank)


def divergence_of(cell: CellEvidence, tables: Tables) -> Divergence | None:
    """The first hypothesis that the evidence bears out; None where nothing shows why the ranks disagree."""
    from nsadiag.analysis.flow.hypotheses import HYPOTHESES

    if cell.world_size < 2 or not is_stuck(cell):
        return None
    if in_flight(cell, tables) or gone_on(cell, tables):
        # It parted from the others by an exception that it swallowed, or holds back.
        return None
    if not any(r.recording.header for r in cell.ranks) and not tables.standings:
        # Dumps that others collected: no stack and no history, of thousands of ranks maybe.
        return None
    if tables.transfers.end_s.isna().any() or any(failed_in_transfer(r) for r in cell.ranks):
        # Stages of a pipeline rightly run different code: who waits for whose message is another question.
        return None
    situation = Situation(cell, tables)
    if len(situation.members()) < 2:
        return None
    return next((found for hypothesis in HYPOTHESES if (found := hypothesis(situation))), None)


def line_of(guard: Guard) -> Place:
    """The condition's own line."""
    return places.place(guard.file, guard.line, guard.function or None)


def finding_of(
    cell: CellEvidence, tables: Tables, cls: str, *, fix: str, rejected: dict[str, str]
) -> Iterator[Finding]:
    """The one finding of a detector whose class the ranks' parting has; `rejected`: classes, and what speaks against them."""
    found = tables.divergence
    if found is None or found.cls != cls:
        return
    word = "Rank" if len(cell.everyone(found.guilty)) == 1 else "Ranks"
    summary = f"{word} {cell.names(found.guilty)} {found.because}."
    if found.collective:
        summary += (
            f" {found.collective.op} {found.collective.seq} of {found.collective.group} waits for ever."
        )
    step = cell.rank(found.guilty[0]).end.get("steps")
    yield Finding(
        detector=cls,
        cls=cls,
        outcome="hung" if is_still(cell) else "crashed",
        confidence=found.confidence,
        summary=summary,
        guilty_ranks=found.guilty,
        blocked_ranks=found.blocked,
        where=Where(collective=found.collective, step=step, module=found.module).at(found.where),
        peers_at=found.peers_at,
        evidence=found.evidence,
        rejected=tuple(Rejected(cls=name, because=because) for name, because in rejected.items()),
        fix=fix,
    )
