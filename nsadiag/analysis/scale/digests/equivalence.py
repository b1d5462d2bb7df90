"""The digests of all nodes, and the kinds of ranks in them: ranks of one kind are interchangeable."""

from __future__ import annotations

import json
import math
import re
import statistics
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from nsadiag.analysis.ingest.dumps.columns import Group, GroupColumn
from nsadiag.analysis.scale.digests.calls import columns_of_row, rank_columns
from nsadiag.analysis.scale.digests.shape import Digest, DigestRefused, Ranks
from nsadiag.analysis.scale.digests.traits import TRAITS
from nsadiag.analysis.scale.dumps.dump_set import DumpSet

# With more kinds than this, what told them apart last is left out.
MOST_KINDS = 48
# A rank whose numbers are so far from the median of all is of another kind: by factor, and at least by so much.
FAR = 1.5
RHYTHM = {
    "step_s": 0.02, "step_cpu_s": 0.02, "work_s": 0.02, "rss_mib": 512.0,
    "cpu_share": 0.3, "main_cpu_share": 0.3, "gpu_pct": 30.0,
}  # fmt: skip
DIGITS = re.compile(r"\d+")


@dataclass(frozen=True)
class JobDigests:
    """The newest digest of each node."""

    digests: tuple[Digest, ...]

    @cached_property
    def ranks(self) -> Ranks:
        return tuple(sorted(rank for digest in self.digests for rank in digest.ranks))

    @cached_property
    def world_size(self) -> int:
        return max((d.world_size for d in self.digests), default=0)

    @cached_property
    def _place(self) -> dict[int, int]:
        return {rank: place for place, rank in enumerate(self.ranks)}

    @cached_property
    def dumps(self) -> DumpSet:
        """Calls that all ranks issued, as of flight-recorder dumps of very many ranks. Raises DigestRefused."""
        groups = {
            key: Group(key=key, name=members.name, members=members.ranks)
            for digest in self.digests
            for key, members in digest.groups.items()
        }
        found: dict[int, tuple[GroupColumn, ...]] = {}
        for digest in self.digests:
            for shown in digest.calls:
                try:
                    columns = columns_of_row(shown.value, groups)
                except (TypeError, ValueError, KeyError, IndexError, OverflowError) as error:
                    raise DigestRefused(
                        f"the calls in the digest of {digest.host} cannot be read: {error!r}"
                    ) from None
                found.update(dict.fromkeys(shown.ranks, columns))
        return DumpSet(ranks={rank: rank_columns(rank, found[rank]) for rank in sorted(found)})

    @cached_property
    def kinds(self) -> tuple[Ranks, ...]:
        """Ranks that agree in all traits, as far as there are not too many kinds; the largest first."""
        kinds = [0] * len(self.ranks)
        for column in (*(self._trait(name) for name in TRAITS), *(self._far(name) for name in RHYTHM)):
            numbers: dict[tuple[int, int], int] = {}
            finer = [numbers.setdefault(pair, len(numbers)) for pair in zip(kinds, column, strict=True)]
            if len(numbers) <= MOST_KINDS:
                kinds = finer
        found: dict[int, list[int]] = defaultdict(list)
        for rank, kind in zip(self.ranks, kinds, strict=True):
            found[kind].append(rank)
        return tuple(sorted(map(tuple, found.values()), key=lambda kind: (-len(kind), kind)))

    def column(self, name: str) -> list[float]:
        """A counter of all ranks, in order; NaN where nobody could say."""
        found = [math.nan] * len(self.ranks)
        for digest in self.digests:
            values = digest.counters.get(name)
            if values:
                for rank, value in zip(digest.ranks, values, strict=True):
                    found[self._place[rank]] = math.nan if value is None else value
        return found

    def _trait(self, name: str) -> list[int]:
        """The values' numbers by rank; 0 where a rank shows nothing."""
        found = [0] * len(self.ranks)
        numbers: dict[str, int] = {}
        for digest in self.digests:
            for shown in digest.calls if name == "calls" else digest.traits.get(name, ()):
                value = _roles(shown.value, digest) if name == "calls" else shown.value
                number = numbers.setdefault(json.dumps(value, sort_keys=True), len(numbers) + 1)
                for rank in shown.ranks:
                    found[self._place[rank]] = number
        return found

    def _far(self, name: str) -> list[int]:
        """Ranks whose number is far above (1), or below (-1), that of most."""
        values = self.column(name)
        known = [value for value in values if not math.isnan(value)]
        middle = statistics.median(known) if known else math.nan
        above = max(FAR * middle, middle + RHYTHM[name])
        below = min(middle / FAR, middle - RHYTHM[name])
        return [(value > above) - (value < below) for value in values]


def _roles(row: Any, digest: Digest) -> Any:
    """Ranks of different tensor-parallel groups are alike: a group is what it is to its members, not which it is."""
    told = [
        [DIGITS.sub("#", digest.groups[key].name), len(digest.groups[key].ranks), *rest]
        for key, _, *rest in row
    ]
    return sorted(told, key=json.dumps)


def newest(digests: Iterable[Digest]) -> JobDigests:
    """The last digest of each node. Raises DigestRefused where two nodes have the same rank."""
    by_host: dict[str, Digest] = {}
    for digest in sorted(digests, key=lambda d: (d.host, d.look)):
        by_host[digest.host] = digest
    seen: dict[int, str] = {}
    for host, digest in by_host.items():
        for rank in digest.ranks:
            if seen.setdefault(rank, host) != host:
                raise DigestRefused(f"rank {rank} is on {seen[rank]} and on {host}")
    return JobDigests(tuple(by_host.values()))
