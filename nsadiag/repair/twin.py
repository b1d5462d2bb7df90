"""Two repairs of one job side by side: wherein what they compute, call and write differs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from nsadiag.repair.record import RankRecord, Record


def differences(wanted: Record, found: Record) -> Iterator[str]:
    """One line for each kind of difference on a rank: losses, parameters after steps, calls, files."""
    if wanted.answer != "agreed" or found.answer != "agreed":
        yield f"one is {wanted.answer}, the other {found.answer}"
        return
    for rank in sorted(wanted.ranks):
        one, other = wanted.ranks[rank], found.ranks.get(rank, RankRecord())
        for what in ("loss", "step"):
            own, theirs = _values(one, what), _values(other, what)
            if own != theirs:
                alike = next(
                    (n for n, pair in enumerate(zip(own, theirs, strict=False)) if pair[0] != pair[1]), None
                )
                where = (
                    f"from number {alike + 1} on"
                    if alike is not None
                    else f"{len(own)} and {len(theirs)} of them"
                )
                yield f"rank {rank}: {what}, {where}"
        if calls := _calls(one) - _calls(other):
            yield f"rank {rank}: {min(calls)} is called {calls[min(calls)]} times less"
        if one.files != other.files:
            yield f"rank {rank}: only one of them writes {min(one.files ^ other.files)}"


def _values(rank: RankRecord, what: str) -> list[str]:
    return [seen.value for seen in rank.seen if seen.what == what]


def _calls(rank: RankRecord) -> Counter[str]:
    """By operation: the other repair may agree by another one."""
    return Counter(seen.op for seen in rank.seen if seen.what == "call")
