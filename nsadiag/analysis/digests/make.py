"""Makes the digest of a node's ranks, from the same evidence that a judgement of all ranks would read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nsadiag.analysis.digests.calls import Issued
from nsadiag.analysis.digests.counters import counters_of
from nsadiag.analysis.digests.shape import Digest, Shown, packed
from nsadiag.analysis.digests.traits import traits_of
from nsadiag.analysis.load import RankEvidence, load_ranks
from nsadiag.evidence.layout import RunDir, make_private_dir, replace_private


def digest_of(
    ranks: Sequence[RankEvidence], *, host: str, look: int, motions: Iterable[Mapping[str, Any]] = ()
) -> Digest:
    """`look` is the number of the second capture; `motions` what the look found of each rank (watch.json)."""
    ranks = sorted(ranks, key=lambda rank: rank.rank)
    issued = Issued()
    traits = {rank.rank: traits_of(rank) for rank in ranks}
    calls = {rank.rank: row for rank in ranks if (row := issued.row(rank)) is not None}
    moved = {int(motion["rank"]): dict(motion) for motion in motions}
    counted = [counters_of(rank, moved.get(rank.rank, {})) for rank in ranks]
    names = dict.fromkeys(name for told in traits.values() for name in told)
    return Digest(
        host=host,
        look=look,
        world_size=max((int(rank.meta.get("world_size", 1)) for rank in ranks), default=0),
        ranks=tuple(rank.rank for rank in ranks),
        groups=issued.groups,
        calls=_distinct(calls),
        traits={
            name: _distinct({rank: told[name] for rank, told in traits.items() if name in told})
            for name in names
        },
        counters={name: tuple(row[name] for row in counted) for name in (counted[0] if counted else ())},
    )


def write_digest(
    run: RunDir, *, host: str, ranks: Iterable[int], look: int, motions: Iterable[Mapping[str, Any]] = ()
) -> Path:
    """Of these ranks in the run directory. Raises OSError."""
    path = run.digest(host, look)
    make_private_dir(path.parent)
    replace_private(path, packed(digest_of(load_ranks(run, ranks), host=host, look=look, motions=motions)))
    return path


def _distinct(values: Mapping[int, Any]) -> tuple[Shown, ...]:
    """Each value once."""
    found: dict[str, tuple[Any, list[int]]] = {}
    for rank, value in values.items():
        found.setdefault(json.dumps(value, sort_keys=True, default=str), (value, []))[1].append(rank)
    return tuple(Shown(value=value, ranks=tuple(ranks)) for value, ranks in found.values())
