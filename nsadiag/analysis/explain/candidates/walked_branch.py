"""A condition at which recorded paths parted, and behind which one side alone came to a collective."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis.explain.candidate import Candidate, Kind, Proximity, shown
from nsadiag.analysis.explain.candidates.branch import guilty_side
from nsadiag.analysis.explain.candidates.first_divergence import DRAWS
from nsadiag.analysis.explain.context import Context
from nsadiag.analysis.facts import locations
from nsadiag.analysis.paths.chain import Chains, Found
from nsadiag.analysis.paths.partings import Alignment, Compared
from nsadiag.analysis.paths.walks import walks_of
from nsadiag.source.control import Condition


def walked_branches(context: Context) -> Iterator[Candidate]:
    """The turn that no stack shows, as the ranks have met in one line since; of ranks whose paths are on record."""
    members = context.members()
    found = {rank: first_parting(context, members[0], rank) for rank in members[1:]}
    parted = {rank: one[0].at for rank, one in found.items() if one and _skips(one[1])}
    if len({*parted.values()}) != 1 or not {*members} <= context.case.once(walks_of).keys():
        return
    condition = branch_at(context, *next(iter(parted.values())))
    if condition is None:
        return
    ones, others = tuple(r for r in members if r not in parted), tuple(parted)
    guilty = guilty_side(context, condition, others, ones)
    blocked = ones if guilty == others else others
    if len(ones) == len(others) and DRAWS.search(condition.test):
        guilty, blocked = members, ()
    yield Candidate(
        kind=Kind.BRANCH,
        proximity=Proximity.PATH,
        condition=condition,
        depends_on="data" if condition.provenance == "uniform" else "",
        guilty=guilty,
        blocked=blocked,
        where=condition.place,
        because=f"diverged from the others at `{shown(condition)}` ({locations.short(condition.place)})",
        evidence=(context.position(ones[0]), context.position(others[0])),
    )


def first_parting(context: Context, one: int, other: int) -> tuple[Found, Compared] | None:
    """The first link of two ranks' chain, where it is one at which they parted."""
    walks = context.case.once(walks_of)
    if one not in walks or other not in walks:
        return None
    code = context.cell.code
    compared = Alignment(code, walks[one], walks[other]).compared()
    first = next(iter(Chains(code, compared).chain()), None)
    return (first, compared) if first is not None and first.parting is not None else None


def _skips(compared: Compared) -> bool:
    """Whether one side alone made calls before the ranks met again."""
    made = compared.decisive.announced if compared.decisive else ([], [])
    return [any(not call.is_transfer for call in side) for side in made].count(True) == 1


def branch_at(context: Context, file: str, line: int) -> Condition | None:
    """The `if` at the line, as a condition on what stands in it."""
    source = context.program.files.get(file)
    statement = source.statement_at(line) if source else None
    body = getattr(statement, "body", None)
    if not body or statement is None or statement.lineno != line:
        return None
    around = context.program.around(file, body[0].lineno)
    return next((each for each in around if each.line == line and each.kind == "if"), None)
