"""Which ranks of a run directory are read: all of few, and of many those that their nodes' digests show to matter."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nsadiag.analysis.digests.alike import newest
from nsadiag.analysis.digests.make import digest_of
from nsadiag.analysis.digests.shape import Digest, DigestRefused, Ranks, unpacked
from nsadiag.analysis.digests.wanted import FEW_RANKS, wanted
from nsadiag.analysis.load import load_ranks
from nsadiag.evidence.layout import RunDir, read_json
from nsadiag.evidence.spans import spans

AT_ONCE = 16  # ranks whose evidence is in memory while digests are made


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """Ranks to read; where that is not all of them, the kinds that they stand for."""

    ranks: Ranks
    kinds: tuple[Ranks, ...] = ()
    world_size: int = 0
    gaps: tuple[str, ...] = ()


def chosen_in(run: RunDir) -> Chosen:
    """Never raises on what is in the directory: a digest that is none becomes a gap."""
    on_disk = tuple(directory.rank for directory in run.ranks())
    digests, gaps = _read(run)
    try:
        everyone = newest(digests)
        known = {*on_disk, *everyone.ranks}
        if len(known) <= FEW_RANKS:
            return Chosen(ranks=on_disk, world_size=everyone.world_size, gaps=tuple(gaps))
        without = sorted(set(on_disk) - {*everyone.ranks})
        everyone = newest([*digests, *_made(run, without)])
        ranks = wanted(everyone)
    except DigestRefused as refused:
        return Chosen(ranks=on_disk, gaps=(*gaps, f"the nodes' digests do not fit together: {refused}"))
    missed = sorted(set(ranks) - set(on_disk))
    if missed:
        gaps.append(f"of rank {spans(missed)} there is its node's digest alone")
    return Chosen(ranks=ranks, kinds=everyone.kinds, world_size=everyone.world_size, gaps=tuple(gaps))


def _read(run: RunDir) -> tuple[list[Digest], list[str]]:
    digests, gaps = [], []
    for path in run.digests():
        try:
            digests.append(unpacked(path.read_bytes()))
        except (OSError, DigestRefused) as error:
            gaps.append(f"{path.relative_to(run.path)}: {error}")
    return digests, gaps


def _made(run: RunDir, ranks: list[int]) -> Iterator[Digest]:
    """Of what nobody has reduced yet, so that no more than a few ranks are in memory."""
    looks = read_json(run.watch, {}).get("looks", [])
    motions, look = (looks[-1].get("motions", []), looks[-1].get("second", 0)) if looks else ([], 0)
    for first in range(0, len(ranks), AT_ONCE):
        some = load_ranks(run, ranks[first : first + AT_ONCE])
        yield digest_of(some, host=f"ranks {ranks[first]}-", look=look, motions=motions)
