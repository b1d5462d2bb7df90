"""A rank beside itself: the round in which it did not send and receive as in those before.

Roles differ by right in what they transfer, so that two ranks' paths do not tell which of them left something out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from nsadiag.analysis.paths.nesting import Node, Rounds, nested, steps_in
from nsadiag.analysis.paths.partings import Alignment, Compared, announced_in, transfer_of
from nsadiag.analysis.paths.walk import Frame, Walk
from nsadiag.source.model import SourceModel
from nsadiag.source.patterns.statements import loops_of

FEWEST = 3  # rounds: two that say what the rank always does, and the one that differs
DEEPEST = 24  # frames


@dataclass(frozen=True, kw_only=True)
class _Round:
    """One iteration of the outermost loop that transfers, and its transfers."""

    number: int
    nodes: list[Node]
    transfers: tuple[str, ...]


def own_rounds(code: SourceModel, walk: Walk) -> Compared | None:
    """The last round whose transfers no round before had, beside the one before it; None where all had the same."""
    found = next(_loops(code, walk.root, 0), None)
    if found is None:
        return None
    rounds, is_open = found
    # Sizes may differ by right in every round; who sends to whom, less often.
    bare = [replace(one, transfers=tuple(map(_without_sizes, one.transfers))) for one in rounds]
    odd = _odd(bare, is_open=is_open) or _odd(rounds, is_open=is_open)
    if odd is None:
        return None
    other = rounds[odd.number - 1]
    ends = (is_open and odd is rounds[-1], False)
    alignment = Alignment(code, walk, walk, rounds=(odd.number + 1, other.number + 1))
    compared = alignment.of_rounds(odd.nodes, other.nodes, ends)
    return compared if compared.decisive or compared.unlike else None


def _odd(rounds: Sequence[_Round], *, is_open: bool) -> _Round | None:
    """The last round that is new, where the rank had done the same in some rounds before."""
    odd = None
    for number, one in enumerate(rounds):
        before = rounds[:number]
        behind = is_open and one is rounds[-1]
        usual = max(Counter(each.transfers for each in before).values(), default=0)
        if usual >= FEWEST - 1 and not any(_is_like(one, other, behind=behind) for other in before):
            odd = one
    return odd


def _without_sizes(transfer: str) -> str:
    return transfer.rpartition("\t")[0]


def _is_like(one: _Round, other: _Round, *, behind: bool) -> bool:
    own = other.transfers[: len(one.transfers)] if behind else other.transfers
    return one.transfers == own


def _loops(code: SourceModel, frame: Frame, depth: int) -> Iterator[tuple[list[_Round], bool]]:
    """Loops with transfers in enough rounds, the outer ones first; and whether the path ends in it."""
    if frame.folded or depth > DEEPEST:
        return
    nodes: Sequence[Node] = nested(frame.steps, loops_of(code.file(frame.file)))
    for node in nodes:
        if isinstance(node, Rounds):
            rounds = [
                _Round(number=n, nodes=one, transfers=_transfers(one)) for n, one in enumerate(node.each)
            ]
            is_open = frame.is_open and node is nodes[-1]
            if not is_open and not rounds[-1].transfers:
                rounds.pop()  # the head alone, which ends the loop
            if sum(bool(one.transfers) for one in rounds) >= FEWEST - 1 and len(rounds) >= FEWEST:
                yield rounds, is_open
    for step in frame.steps:
        for inner in step.frames:
            yield from _loops(code, inner, depth + 1)


def _transfers(nodes: list[Node]) -> tuple[str, ...]:
    calls = announced_in(list(steps_in(nodes)), ())
    return tuple(transfer_of(call) for call in calls if call.is_transfer)
