"""The two lines of a divergence: where the guilty rank stands, by its stack, and why, by recorded paths or by the source."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from nsadiag.analysis.case import Case
from nsadiag.analysis.explain.context import Context
from nsadiag.analysis.explain.inferred import UNLIKE, inferred
from nsadiag.analysis.paths.chain import Chains
from nsadiag.analysis.paths.endless import endless_of_case
from nsadiag.analysis.paths.partings import Alignment
from nsadiag.analysis.paths.rounds import own_rounds
from nsadiag.analysis.paths.telling import because_of, of_transfer, told
from nsadiag.analysis.paths.untold import untold
from nsadiag.analysis.paths.walk import Walk
from nsadiag.analysis.paths.walks import are_turns, walks_of
from nsadiag.analysis.records import CellEvidence
from nsadiag.analysis.rules.registry import RULES
from nsadiag.evidence.records import Because, Evidence, Finding, Link, Place, ValueOfRanks, Verdict
from nsadiag.evidence.rehearsal.touches import Hold
from nsadiag.source import loops
from nsadiag.source.model import place

MOST_PEERS = 3  # that a guilty rank is compared with, until one comparison tells


@dataclass(frozen=True, kw_only=True)
class BothLines:
    """The two lines of a divergence, which say different things: neither stands in for the other."""

    stands_at: Place | None = None
    because: Because | None = None
    failed: tuple[str, ...] = ()  # a gap, where we tripped over what nobody foresaw


def lines_of(case: Case, cause: Finding) -> BothLines:
    """Both lines of a verdict on a divergence; nothing of any other."""
    family = next((rule.family for rule in RULES if rule.name == cause.mechanism), None)
    parted = family in ("structure", "divergence") or cause.cls in UNLIKE
    # Where paths are recorded, calls that do not match are a divergence, whatever the rules made of a hang.
    order = case.cell.order
    if cause.outcome not in ("hung", "crashed") or not (parted or order or cause.outcome == "hung"):
        return BothLines()
    try:
        found = (
            _of_a_loop(case, cause)
            or _recorded(case, cause, parted=parted)
            or _of_spinning(case, cause)
            or (inferred(case, cause) if parted else None)
        )
        found = _of_order(order, found) if order else found
        return BothLines(stands_at=_stands_at(case, cause) if parted or found else None, because=found)
    except Exception as error:
        return BothLines(failed=(f"the chain of causes failed: {error!r}",))


def confirmed(cell: CellEvidence, verdict: Verdict) -> Verdict:
    """The verdict with the chain that a rehearsal of the same command recorded (`nsadiag confirm`), where one did."""
    found = cell.confirmation
    if found is None or not found.has_recorded or verdict.outcome not in ("hung", "crashed"):
        return verdict
    claim = Evidence(claim=f"confirm: {found.why}", source="confirmation.json#because")
    return dataclasses.replace(verdict, because=found.because, evidence=(*verdict.evidence, claim))


def _of_order(order: Hold, found: Because | None) -> Because:
    """The access that comes out in two ways: that all calls agreed where the two came the other way round is the proof."""
    file, line, function = order.read.place.rsplit(":", 2)
    at = place(file, int(line), None if function == "<module>" else function)
    said = f"{order.words()}, and no call orders the two; the other way round all calls agreed"
    link = Link(at=at, because=said, how="recorded", ranks=(order.read.rank,))
    before = (
        [each for each in found.chain if (each.at.file, each.at.line) != (at.file, at.line)] if found else []
    )
    return because_of((*before, link), len(before), "file system")


def _of_a_loop(case: Case, cause: Finding) -> Because | None:
    """The loop that a rank does not leave."""
    found = case.once(endless_of_case)
    if cause.mechanism != "endless_loop" or not found:
        return None
    at = found[0].place
    values = tuple(
        ValueOfRanks(name=n, by_rank={str(found[0].rank): v[-1]}) for n, v in found[0].values.items()
    )
    link = Link(at=at, because=found[0].words, how="recorded", ranks=(found[0].rank,), values=values)
    return Because(
        file=at.file,
        line=at.line,
        function=at.function,
        code=at.code,
        how="recorded",
        origin="unknown",
        chain=(link,),
    )


def _of_spinning(case: Case, cause: Finding) -> Because | None:
    """The statement of the loop in which a rank spins, by its source: what keeps it in."""
    where = cause.where
    if cause.cls != "livelock_user_code" or where is None or where.file is None or where.line is None:
        return None
    file = case.cell.code.file(where.file)
    nest = file.loops_around(where.line) if file else []
    loop = next((each for each in nest if each.lineno == where.line), None) or next(iter(nest), None)
    if loop is None:
        return None
    at = place(where.file, loop.lineno, where.function, where.code if loop.lineno == where.line else None)
    link = Link(at=at, because=loops.kept_in(loop), how="inferred", ranks=cause.guilty_ranks)
    return Because(
        file=at.file, line=at.line, function=at.function, code=at.code, how="inferred", origin="unknown", chain=(link,)
    )  # fmt: skip


def _recorded(case: Case, cause: Finding, *, parted: bool) -> Because | None:
    walks = case.once(walks_of)
    left_out = (untold(case.cell.code, walks, rank) for rank in (*cause.guilty_ranks, *cause.blocked_ranks))
    if found := next(filter(None, left_out), None):
        return found
    sides = []
    for pair in _pairs(cause, sorted(walks)):
        compared = Alignment(case.cell.code, walks[pair[0]], walks[pair[1]]).compared()
        if cause.cls == "grad_sync_mismatch":  # the same reduction, in different backwards
            compared = dataclasses.replace(compared, decisive=compared.drifted or compared.decisive)
        chains = Chains(case.cell.code, compared)
        if chain := chains.chain():
            # A job's turns come with few values: where they only pass on that ranks differed, the source may tell why.
            ask_source = parted and are_turns(case) and not chains.explains(chain)
            return (inferred(case, cause) if ask_source else None) or told(walks, compared, chains, chain)
        sides.append((compared, chains))
    if found := next(_of_own_rounds(case, cause, walks), None):
        return found
    for compared, chains in sides:
        if chain := chains.of_another_way():
            return told(walks, compared, chains, chain)
    return next(_of_transfers(cause, walks), None)


def _of_own_rounds(case: Case, cause: Finding, walks: Mapping[int, Walk]) -> Iterator[Because]:
    """A guilty rank that transfers, beside its own earlier rounds."""
    for walk in [walks[rank] for rank in cause.guilty_ranks if rank in walks]:
        compared = own_rounds(case.cell.code, walk)
        chains = Chains(case.cell.code, compared) if compared else None
        if compared and chains and (chain := chains.chain()):
            yield told(walks, compared, chains, chain)


def _of_transfers(cause: Finding, walks: Mapping[int, Walk]) -> Iterator[Because]:
    """The transfer in which a guilty rank stands."""
    for walk in [walks[rank] for rank in cause.guilty_ranks if rank in walks]:
        if walk.calls and walk.calls[-1].is_transfer:
            yield of_transfer(walk.calls[-1], walk.rank)


def _pairs(cause: Finding, ranks: list[int]) -> Iterator[tuple[int, int]]:
    """A guilty rank and one that waits for it; where nobody is guilty, any two."""
    guilty = [rank for rank in cause.guilty_ranks if rank in ranks][:1] or ranks[:1]
    others = [rank for rank in ranks if rank not in cause.guilty_ranks] or ranks
    waiting = sorted(others, key=lambda rank: rank not in cause.blocked_ranks)
    yield from [(a, b) for a in guilty for b in waiting if a != b][:MOST_PEERS]


def _stands_at(case: Case, cause: Finding) -> Place | None:
    """The line of the first guilty rank's own stack, or of the last thing that it recorded."""
    if cause.mechanism == "endless_loop" and (loops := case.once(endless_of_case)):
        return loops[0].stands_at
    rank = next(iter(cause.guilty_ranks), None)
    if rank is None or rank not in {each.rank for each in case.cell.ranks}:
        return None
    return case.once(Context).place_of(rank)
