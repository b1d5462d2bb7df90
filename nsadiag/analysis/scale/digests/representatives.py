"""Ranks whose evidence is worth having whole: all that are waited for, and some of each kind."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable

from nsadiag.analysis.scale.digests.equivalence import JobDigests
from nsadiag.analysis.scale.digests.shape import Ranks
from nsadiag.analysis.scale.dumps.details import SHOWN_OF_EACH, that_matter

# Below this many ranks all of them are looked at.
FEW_RANKS = 32
MOST_WANTED = 128


def representatives(job: JobDigests) -> Ranks:
    """Ranks whose raw evidence the verdict needs, in order."""
    if len(job.ranks) <= FEW_RANKS:
        return job.ranks
    first = dict.fromkeys([*_of_pending(job), *_of_kinds(job)])
    followed = itertools.chain(first, _of_transfers(job, tuple(first)))
    return tuple(sorted(itertools.islice(dict.fromkeys(followed), MOST_WANTED)))


def _of_pending(job: JobDigests) -> Iterable[int]:
    """Ranks that keep others waiting in a call."""
    for pending in that_matter(job.dumps):
        yield from pending.deviating[:SHOWN_OF_EACH]
        yield from pending.conforming[:2]


def _of_kinds(job: JobDigests) -> Iterable[int]:
    """Rank 0 is many programs' own case. Of a kind with many ranks more are taken: what most do counts."""
    yield job.ranks[0]
    for kind in sorted(job.kinds, key=len):
        yield from kind[: 1 + math.ceil(math.log10(len(kind)))]


def _of_transfers(job: JobDigests, chosen: Ranks) -> Iterable[int]:
    """Whoever waits for one peer's send or receive: that peer, and whom it waits for itself."""
    peers = job.column("peer")
    next_of = {r: int(p) for r, p in zip(job.ranks, peers, strict=True) if not math.isnan(p)}
    known, seen = {*job.ranks}, set(chosen)
    for rank in chosen:
        peer = next_of.get(rank)
        while peer in known and peer not in seen:
            seen.add(peer)
            yield peer
            peer = next_of.get(peer)
