"""Makes the digest of a node's ranks, from the same evidence that a judgement of all ranks would read."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nsadiag.analysis.ingest.run_directory import each_rank, read_ends
from nsadiag.analysis.records import RankEvidence
from nsadiag.analysis.scale.digests.calls import Issued
from nsadiag.analysis.scale.digests.counters import counters_of
from nsadiag.analysis.scale.digests.shape import Digest, SharedValue, packed
from nsadiag.analysis.scale.digests.traits import traits_of
from nsadiag.evidence.documents.values import rows_of
from nsadiag.evidence.documents.watch import RankMotion
from nsadiag.evidence.layout import RunDir, make_private_dir, replace_private


def digest_of(
    ranks: Iterable[RankEvidence], *, host: str, look: int, motions: Iterable[RankMotion] = ()
) -> Digest:
    """`look` is the number of the second capture; `motions` what the look found of each rank (watch.json).

    Of `ranks`, in order, no more than one is held at a time.
    """
    moved = {motion.rank: motion for motion in motions}
    issued, world_size = Issued(), 0
    traits: dict[int, dict[str, object]] = {}
    calls: dict[int, Any] = {}
    counted = []
    for rank in ranks:
        traits[rank.rank] = traits_of(rank)
        counted.append(counters_of(rank, moved.get(rank.rank)))
        world_size = max(world_size, rank.meta.world_size)
        if (row := issued.row(rank)) is not None:
            calls[rank.rank] = row
    names = dict.fromkeys(name for told in traits.values() for name in told)
    return Digest(
        host=host,
        look=look,
        world_size=world_size,
        ranks=tuple(traits),
        groups=issued.groups,
        calls=_distinct(calls),
        traits={n: _distinct({rank: told[n] for rank, told in traits.items() if n in told}) for n in names},
        counters={name: tuple(row[name] for row in counted) for name in (counted[0] if counted else ())},
    )


def write_digest(
    run: RunDir, *, host: str, ranks: Iterable[int], look: int, motions: Iterable[Mapping[str, Any]] = ()
) -> Path:
    """Write the digest of these ranks in the run directory. Raises OSError."""
    # On one of several nodes, how its ranks ended is in its own folder.
    path = run.node(host) / run.ends.name
    found = each_rank(run, ranks, ends=read_ends(path) if path.exists() else None)
    return kept(run, digest_of(found, host=host, look=look, motions=rows_of(RankMotion, motions)))


def kept(run: RunDir, digest: Digest) -> Path:
    """Write a digest to its file, which is returned. Raises OSError."""
    path = run.digest(digest.host, digest.look)
    make_private_dir(path.parent)
    replace_private(path, packed(digest))
    return path


def together(parts: Sequence[Digest]) -> Digest:
    """The digest of one node, made in parts of its ranks, in order."""
    first = parts[0]
    ranks = [rank for part in parts for rank in part.ranks]
    names = dict.fromkeys(name for part in parts for name in part.traits)
    return dataclasses.replace(
        first,
        ranks=tuple(ranks),
        world_size=max(part.world_size for part in parts),
        groups={key: members for part in parts for key, members in part.groups.items()},
        calls=_distinct({r: s.value for part in parts for s in part.calls for r in s.ranks}),
        traits={
            n: _distinct({r: s.value for part in parts for s in part.traits.get(n, ()) for r in s.ranks})
            for n in names
        },
        counters={n: tuple(v for part in parts for v in part.counters[n]) for n in first.counters},
    )


def _distinct(values: Mapping[int, Any]) -> tuple[SharedValue, ...]:
    """Each value once."""
    found: dict[str, tuple[Any, list[int]]] = {}
    for rank, value in values.items():
        found.setdefault(json.dumps(value, sort_keys=True, default=str), (value, []))[1].append(rank)
    return tuple(SharedValue(value=value, ranks=tuple(ranks)) for value, ranks in found.values())
