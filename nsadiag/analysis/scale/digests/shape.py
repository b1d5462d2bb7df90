"""The digest of one snapshot of one node: distinct values once, with the ranks that show them, and counters in columns.

It comes from other machines: whatever is not of this shape is refused.
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from dataclasses import dataclass
from typing import Any

from nsadiag.evidence.layout import SCHEMA_VERSION
from nsadiag.evidence.secrets.masking import mask_text
from nsadiag.evidence.spans import MOST_RANKS, ranks_in, spelled

MOST_BYTES = 16 * 1024 * 1024  # of JSON

Ranks = tuple[int, ...]


class DigestRefused(Exception):
    """Refusal of bytes that are no digest."""


@dataclass(frozen=True, kw_only=True)
class SharedValue:
    """One value, and the ranks of the node that show it."""

    value: Any
    ranks: Ranks


@dataclass(frozen=True, kw_only=True)
class Members:
    """A process group by its name and all its ranks, on whatever node; empty where nobody says."""

    name: str
    ranks: Ranks


@dataclass(frozen=True, kw_only=True)
class Digest:
    """One snapshot of one node; its second capture has the number `look`, and 0 stands for a job that nobody looked at."""

    host: str
    look: int
    world_size: int
    ranks: Ranks
    groups: dict[str, Members]  # by the key that `calls` use
    # rows of digests.calls: what was asked for in each group, and what is not over
    calls: tuple[SharedValue, ...]
    traits: dict[str, tuple[SharedValue, ...]]  # digests.traits
    counters: dict[str, tuple[float | None, ...]]  # digests.counters; each column in the order of `ranks`


def packed(digest: Digest) -> bytes:
    """Compressed JSON, the same bytes for the same digest; secrets are masked."""
    body = {
        "schema_version": SCHEMA_VERSION,
        "host": digest.host,
        "look": digest.look,
        "world_size": digest.world_size,
        "ranks": spelled(digest.ranks),
        "groups": {k: {"name": g.name, "ranks": spelled(g.ranks)} for k, g in digest.groups.items()},
        "calls": _shown(digest.calls),
        "traits": {name: _shown(values) for name, values in digest.traits.items()},
        "counters": {name: list(column) for name, column in digest.counters.items()},
    }
    return gzip.compress(mask_text(json.dumps(body, separators=(",", ":"))).encode(), mtime=0)


def unpacked(data: bytes) -> Digest:
    """Raises DigestRefused, and nothing else."""
    try:
        return _digest(json.loads(_inflated(data)))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, zlib.error) as error:
        raise DigestRefused(f"not a digest of a node ({type(error).__name__}: {error})"[:200]) from None


def _shown(values: tuple[SharedValue, ...]) -> list[dict[str, object]]:
    return [{"value": shown.value, "ranks": spelled(shown.ranks)} for shown in values]


def _inflated(data: bytes) -> bytes:
    """A few bytes can ask for gigabytes: no more than a digest needs."""
    reader = zlib.decompressobj(wbits=31)
    text = reader.decompress(data, MOST_BYTES)
    if reader.unconsumed_tail or not reader.eof:
        raise ValueError("cut short, or larger than any digest")
    return text


def _digest(body: Any) -> Digest:
    ranks, world_size = ranks_in(body["ranks"]), int(body["world_size"])
    own = set(ranks)
    if not 0 <= world_size <= MOST_RANKS or len(own) != len(ranks):
        raise ValueError(f"{len(ranks)} ranks of {world_size}")
    return Digest(
        host=str(body["host"]),
        look=int(body["look"]),
        world_size=world_size,
        ranks=ranks,
        groups={
            str(key): Members(name=str(row["name"]), ranks=ranks_in(row["ranks"]))
            for key, row in body["groups"].items()
        },
        calls=_values(body["calls"], own),
        traits={str(name): _values(rows, own) for name, rows in body["traits"].items()},
        counters={str(name): _column(column, len(ranks)) for name, column in body["counters"].items()},
    )


def _values(rows: list[Any], own: set[int]) -> tuple[SharedValue, ...]:
    values = tuple(SharedValue(value=row["value"], ranks=ranks_in(row["ranks"])) for row in rows)
    seen = [rank for shown in values for rank in shown.ranks]
    if len(seen) != len(set(seen)) or not own.issuperset(seen):
        raise ValueError("values for ranks of another node, or two for one rank")
    return values


def _column(column: list[Any], count: int) -> tuple[float | None, ...]:
    numbers = tuple(None if value is None else float(value) for value in column)
    if len(numbers) != count or any(n is not None and not math.isfinite(n) for n in numbers):
        raise ValueError("a column that is not one number a rank")
    return numbers
