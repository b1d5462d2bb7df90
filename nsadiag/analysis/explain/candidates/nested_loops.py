"""Nested loops that a rank has left together: whether the outer one was over, told by how often the training went round in it."""

from __future__ import annotations

from nsadiag.analysis.explain.context import Situation
from nsadiag.evidence.records import Place
from nsadiag.source.control import Condition
from nsadiag.source.trip_counts import trip_count


def left_between_rounds(s: Situation, outer: Condition, *, stayed: int, left: int) -> bool:
    """Whether `left` went out of `outer`, a loop of a known number of rounds, after whole rounds and before the last.

    Then no loop inside it gave out early: each had gone round as often as ever. What a whole round is,
    earlier visits of the loop tell: each was of whole rounds, the longest of all of them.
    """
    rounds = trip_count(s.program, outer)
    mine, theirs = _visits(s, outer, left), _visits(s, outer, stayed)
    if not s.histories.are_whole:
        # Of the first that is left in the ring the beginning may have been written over.
        mine, theirs = mine[1:], theirs[1:]
    if not rounds or rounds < 2 or len(mine) < 3 or len(theirs) < 2:
        return False
    # Behind the last thing outside is what was done since: nothing, of who has left.
    *before, last, since = mine
    *others, now = theirs
    if since or now <= last or not before or not all((last, *before, *others)):
        return False
    whole, rest = divmod(max(*before, *others), rounds)
    if rest or not whole or any(visit % whole for visit in (*before, *others)):
        return False
    return last % whole == 0 and last <= whole * (rounds - 1)


def _visits(s: Situation, loop: Condition, rank: int) -> list[int]:
    """Numbers of training steps that the rank began between things that it did outside the loop; the last is not over."""
    inside: dict[str, bool | None] = {}
    found, outside = [0], True
    for token in s.histories.tokens.get(rank, ()):
        if token.place is None:
            continue
        if token.at not in inside:
            # In a helper that is called from within the loop and from elsewhere, it says nothing.
            way = s.chains.to(token.place)
            knows = len(way) > 1 or not s.program.scope_of(token.place.file, token.place.line).path
            sure = loop.holds(token.place) or (knows and s.chains.is_sure(token.place))
            inside[token.at] = _is_inside(s, loop, token.place) if sure else None
        if inside[token.at] is None:
            continue
        if not inside[token.at]:
            if not outside:
                found.append(0)
            outside = True
            continue
        outside = False
        found[-1] += token.at == s.histories.anchor
    return found


def _is_inside(s: Situation, loop: Condition, at: Place) -> bool:
    return any(map(loop.holds, s.chains.to(at)))
