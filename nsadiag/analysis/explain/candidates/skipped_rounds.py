"""Rounds of the training loop in which one rank did no step: its counter went on, and led it away from its peers later.

Nothing is recorded of such a round: an `except` around the step, or a condition before it, let the rank go on
before the model was called. What tells of it is where the rank came to next, fewer steps after the last time than ever.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from nsadiag.analysis.explain.context import Divergence, Situation
from nsadiag.analysis.explain.result import Case, made, shown
from nsadiag.analysis.facts import locations
from nsadiag.analysis.relations.call_paths import apart, held_by, is_in, passed_by
from nsadiag.analysis.relations.timeline import Difference, Histories, Token
from nsadiag.evidence.records import Evidence, Strength
from nsadiag.evidence.ring.blackbox import Kind
from nsadiag.source.control import Condition, Program
from nsadiag.source.handlers import only_raise, swallowing
from nsadiag.source.model import CallPath
from nsadiag.source.trip_counts import counts_from_same_start

CLASSES = {
    "rank": "rank_conditional_collective",
    "input": "uneven_inputs",
    "data": "data_divergent_control_flow",
}


@dataclass(frozen=True, kw_only=True)
class Arrival:
    """A call at which only some have arrived, while the others do a step that these have not done."""

    early: tuple[int, ...]
    late: tuple[int, ...]
    to: Token
    usual: int  # steps between two visits of that line, as it always was; 0 where there was none before
    since: int  # steps since the last visit now
    last_ns: int  # when the first of `early` was there last, 0 where it never was


def arrival(histories: Histories, ranks: tuple[int, ...]) -> Arrival | None:
    """The first at which they came apart; None where visits were not the same on all ranks, or irregular."""
    found = histories.first_difference(ranks)
    if found is None:
        return None
    for early, late, next_, other in (
        (found.guilty, found.others, found.own, found.theirs),
        (found.others, found.guilty, found.theirs, found.own),
    ):
        if next_ is None or next_.kind != Kind.COLLECTIVE or len(early) > len(late):
            continue
        # What they are at instead belongs to the next round.
        behind = other is not None or all(histories.count(r) > found.iteration + 1 for r in late)
        rounds = _rounds_before(histories, ranks, next_, found.iteration) if behind else None
        if rounds is not None:
            usual, since = rounds
            visit = histories.iteration(early[0], found.iteration - since)
            last_ns = max((t.t_ns for t in visit if t.at == next_.at), default=0)
            return Arrival(early=early, late=late, to=next_, usual=usual, since=since, last_ns=last_ns)
    return None


def by_skipped_round(s: Situation) -> Divergence | None:
    """Some came to a call that counters alone lead to, after fewer steps than it takes, while the others do a step more.

    Or some left a round before its end, where the source shows no way but an `except` around what the others did next.
    """
    came = arrival(s.histories, s.members())
    if came and (case := _came_early(s, came)):
        return case
    found = s.histories.first_difference(s.members())
    return _cut_short(s, found, found.theirs) if found and found.theirs and not found.own else None


def skipped_to_the_end(s: Situation, *, stayed: tuple[int, ...], left: tuple[int, ...]) -> Divergence | None:
    """Some went round the training loop to its end as often as the others will, and made fewer steps in it."""
    loop, ranks = _training_loop_left(s, stayed[0], left[0]), (stayed[0], left[0])
    if loop is None or s.anchor is None or len(left) > len(stayed) or not s.histories.are_whole:
        return None
    steps = [s.histories.count(rank) for rank in ranks]
    given = [_given(s, loop, rank) for rank in ranks]
    if steps[0] <= steps[1] or any(g.differs for g in s.program.exits_of_loop(loop)):
        return None
    # A rank in a round has been given its batch, and may not have begun its step.
    lost = given[1] - steps[1] > given[0] - steps[0] if all(given) else not loop.differs
    past = ways_past(s.program, loop, s.chains.to(s.anchor)) if lost else []
    if len(past) != 1:
        return None
    more = f", of {given[1]} batches that it was given" if all(given) else ""
    did = f"came to the end of the loop at {locations.short(loop.place)} after {steps[1]} steps{more}, while rank {stayed[0]} is in number {steps[0]}"
    return _made(s, past[0], left, stayed, did, strength=Strength.STRONG if all(given) else Strength.LIKELY)


def _training_loop_left(s: Situation, stayed: int, left: int) -> Condition | None:
    """The innermost `for` around the training step that the one is in and the other is not."""
    inside, outside = s.now(stayed), s.now(left)
    around = apart(s.program, inside, outside) if outside else held_by(s.program, inside)
    return next((g for g in reversed(around) if g.kind == "for" and g.is_loop and s.anchored_in(g)), None)


def _given(s: Situation, loop: Condition, rank: int) -> int:
    """The number of batches that the loop was given, as far as its loader tells."""
    head = f"{loop.file}:{loop.line}:"
    tokens = s.histories.tokens.get(rank, ())
    return sum(t.kind == Kind.DATA and t.gave and t.at.startswith(head) for t in tokens)


def _cut_short(s: Situation, found: Difference, theirs: Token) -> Divergence | None:
    """A rank that went on to the next round, as only an exception can have led it."""
    if s.anchor is None or theirs.place is None:
        return None
    if s.histories.count(found.guilty[0]) <= found.iteration + 1 or not _was_usual(s, found, theirs):
        return None
    way = s.chains.to(theirs.place)
    loop = _loop_of_both(s, way, s.chains.to(s.anchor))
    past = ways_past(s.program, loop, way) if loop else []
    # Before the step was begun there was another way past all of it.
    if len(past) != 1 or past[0].kind != "except" or not s.chains.is_sure(theirs.place):
        return None
    did = f"went on to the next round in iteration {found.iteration + 1}, without {theirs.name or 'backward'} at {locations.short(theirs.place)}"
    return _made(s, past[0], found.guilty, found.others, did, strength=Strength.LIKELY)


def _was_usual(s: Situation, found: Difference, token: Token) -> bool:
    """Whether all ranks did that in every iteration before."""
    ranks = (*found.guilty, *found.others)
    before = [s.histories.iteration(rank, n) for rank in ranks for n in range(found.iteration)]
    return bool(before) and all(any(t.key == token.key for t in each) for each in before)


def _loop_of_both(s: Situation, way: CallPath, step: CallPath) -> Condition | None:
    """The innermost loop around the step that the other path is in as well."""
    loops = [g for g in held_by(s.program, step) if g.is_loop and is_in(s.program, way, g)]
    return loops[-1] if loops else None


def _came_early(s: Situation, came: Arrival) -> Divergence | None:
    at, usual = came.to.place, came.usual
    if at is None or s.anchor is None:
        return None
    way, step = s.way_to(at, came.early[:1]), s.chains.to(s.anchor)
    loop = _loop_of_both(s, way, step)
    past = ways_past(s.program, loop, step) if loop else []
    if loop is None or len(past) != 1 or (usual and came.since >= usual):
        return None
    behind = apart(s.program, way, step)
    if any(g.differs for g in behind) or not (usual or _counters_lead(s, loop, past[0], way, step)):
        return None
    before = f", where it had taken {usual} before" if usual else ""
    did = f"came to {came.to.name} at {locations.short(at)} after {came.since} steps{before}"
    return _made(s, past[0], came.early, came.late, did, strength=Strength.STRONG if usual else Strength.WEAK)


def _counters_lead(s: Situation, loop: Condition, past: Condition, way: CallPath, step: CallPath) -> bool:
    """Whether counters alone lead to the path, by the source.

    With nothing before, its peers may have counted less, and a loop that began elsewhere have other numbers.
    """
    if s.anchor is None or not s.chains.is_sure(s.anchor) or not counts_from_same_start(loop):
        return False
    exits = [g for g in passed_by(s.program, way, step) if (g.file, g.line) != (past.file, past.line)]
    return not any(g.differs for g in exits) and any(not g.is_loop for g in apart(s.program, way, step))


def _rounds_before(
    histories: Histories, ranks: tuple[int, ...], to: Token, iteration: int
) -> tuple[int, int] | None:
    """The number of steps between two visits of that line as it always was, 0 where it had no visit, and now.

    None where visits were not the same on all ranks, or irregular.
    """
    visits = [
        tuple(n for n in range(iteration) if any(t.at == to.at for t in histories.iteration(rank, n)))
        for rank in ranks
    ]
    if len({*visits}) > 1 or not (visits[0] or histories.are_whole):
        return None
    seen = visits[0]
    if not seen:
        return 0, iteration + 1
    gaps = {b - a for a, b in itertools.pairwise(seen)}
    gaps = gaps or ({seen[0] + 1} if histories.are_whole else set())
    return (gaps.pop(), iteration - seen[-1]) if len(gaps) == 1 else None


def _made(
    s: Situation,
    guard: Condition,
    early: tuple[int, ...],
    late: tuple[int, ...],
    did: str,
    strength: Strength,
) -> Divergence:
    line = guard.place
    return made(
        s,
        Case(
            cls=CLASSES[guard.origin], guilty=early, blocked=late, where=line, guard=guard, strength=strength,
            because=f"{did}: it left a round of the loop without its step, and the one way past that in the source is `{shown(guard)}` ({locations.short(line)})",
            evidence=(
                Evidence(claim=f"rank {early[0]} {did}", source=f"{s.cell.rank(early[0]).source}/blackbox.bin"),
                s.stands(early[0]),
                s.stands(late[0]),
                *_raising(s, guard),
            ),
        ),
    )  # fmt: skip


def ways_past(program: Program, loop: Condition, step: CallPath) -> list[Condition]:
    """Conditions that let a round of the loop go by without coming to the end of that path, and can differ between ranks."""
    found: dict[tuple[str, int], Condition] = {}
    inside = False
    for at in step:
        in_loop = loop.has_in_body(at)
        own = in_loop and not inside
        inside = inside or in_loop
        if not inside:
            continue
        guards = [
            *program.around(at.file, at.line),
            *(g for g in program.jumps_before(at.file, at.line) if _stays(g.leaves, own)),
            *swallowing(program, at, in_loop=own),
        ]
        for guard in guards:
            if guard.differs and not (own and guard.line <= loop.line):
                found[guard.file, guard.line] = guard
    return list(found.values())


def _stays(leaves: str, own: bool) -> bool:
    """Whether such a jump leads on to the loop's next round; `own`: from the loop's own function."""
    return leaves == "continue" if own else leaves in ("continue", "return", "break")


def _raising(s: Situation, guard: Condition) -> tuple[Evidence, ...]:
    """The line that raises what is caught there, if there is but one in the files in which the ranks stand."""
    files = {place.file for rank in s.members() for place in s.now(rank)}
    found = only_raise(s.program, files, guard.test) if guard.kind == "except" else None
    if found is None:
        return ()
    text, file, line = found
    claim = f"`{text}` is the one line there that raises what is caught"
    return (Evidence(claim=claim, source=s.cited(file, line)),)
