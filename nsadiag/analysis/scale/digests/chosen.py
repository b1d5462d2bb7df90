"""The choice of ranks of a run directory that are read: all of few, and of many those that their nodes' digests show to matter."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from nsadiag.analysis.ingest.dumps.pool import readers
from nsadiag.analysis.ingest.run_directory import each_rank, read_ends
from nsadiag.analysis.records import Chosen
from nsadiag.analysis.scale.digests.equivalence import newest
from nsadiag.analysis.scale.digests.make import digest_of, kept, together
from nsadiag.analysis.scale.digests.representatives import FEW_RANKS, representatives
from nsadiag.analysis.scale.digests.shape import Digest, DigestRefused, Ranks, unpacked
from nsadiag.evidence.documents.files import read_evidence
from nsadiag.evidence.documents.types import read_value
from nsadiag.evidence.documents.watch import End, RankMotion, Watch
from nsadiag.evidence.layout import RunDir, read_json
from nsadiag.evidence.phrases import these

AT_ONCE = 32  # ranks that one process reduces before it takes the next
FEW_ENOUGH = 256  # ranks to reduce, for which other processes are not worth their start
HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,200}")


def chosen_in(run: RunDir) -> Chosen:
    """Never raises on what is in the directory: a digest that is none becomes a gap."""
    on_disk = tuple(directory.rank for directory in run.ranks())
    digests, gaps = _read(run)
    try:
        job = newest(digests)
        known = {*on_disk, *job.ranks}
        if len(known) <= FEW_RANKS:
            return Chosen(ranks=on_disk, world_size=job.world_size, gaps=tuple(gaps))
        without = sorted(set(on_disk) - {*job.ranks})
        job = newest([*digests, *_made(run, without)])
        ranks = representatives(job)
    except DigestRefused as refused:
        return Chosen(ranks=on_disk, gaps=(*gaps, f"the nodes' digests contradict each other: {refused}"))
    missed = sorted(set(ranks) - set(on_disk))
    if missed:
        gaps.append(f"{these(missed)}: only the digest of the node is there")
    return Chosen(ranks=ranks, kinds=job.kinds, world_size=job.world_size, gaps=tuple(gaps))


def representatives_in(run: RunDir) -> Ranks:
    """By the digests that lie there, whose evidence is worth having; never raises on what is in them."""
    try:
        return representatives(newest(_read(run)[0]))
    except DigestRefused:
        return ()


def _read(run: RunDir) -> tuple[list[Digest], list[str]]:
    digests, gaps = [], []
    for path in run.digests():
        try:
            digests.append(unpacked(read_evidence(path)))
        except (OSError, DigestRefused) as error:
            gaps.append(f"{path.relative_to(run.path)}: {error}")
    return digests, gaps


def reduce_many(run: RunDir) -> None:
    """Keep the digests of very many ranks that no node has made, so that they are read once. Raises OSError."""
    on_disk = {directory.rank for directory in run.ranks()}
    if len(on_disk) > FEW_RANKS:
        digests, _ = _read(run)
        for digest in _made(run, sorted(on_disk - {r for d in digests for r in d.ranks})):
            kept(run, digest)


def _made(run: RunDir, ranks: list[int]) -> Iterator[Digest]:
    """Digests of what nobody has reduced yet: one a host, as its own agent would have made it."""
    hosts: dict[str, list[int]] = {}
    for rank in ranks:
        host = read_json(run.rank(rank).meta, {}).get("host")
        hosts.setdefault(host if isinstance(host, str) and HOST.fullmatch(host) else "unknown", []).append(
            rank
        )
    parts = list(_parts(run, hosts))
    if len(ranks) <= FEW_ENOUGH:
        yield from _by_host(map(_reduced, parts))
        return
    with readers() as pool:
        yield from _by_host(pool.map(_reduced, parts))


@dataclass(frozen=True, kw_only=True)
class _Part:
    """Ranks of one host, no more than one process should have to wait for, and what files of the whole job say of them."""

    run: RunDir
    host: str
    ranks: Ranks
    look: int
    motions: list[RankMotion]
    ends: dict[str, End]


def _parts(run: RunDir, hosts: dict[str, list[int]]) -> Iterator[_Part]:
    ends, watch = read_ends(run.ends), read_value(Watch, run.watch) or Watch()
    last = watch.last_look
    motions = {motion.rank: motion for motion in last.motions} if last else {}
    for host, own in sorted(hosts.items()):
        for first in range(0, len(own), AT_ONCE):
            ranks = tuple(own[first : first + AT_ONCE])
            yield _Part(
                run=run,
                host=host,
                ranks=ranks,
                look=last.second if last else 0,
                motions=[motions[rank] for rank in ranks if rank in motions],
                ends={str(rank): ends[str(rank)] for rank in ranks if str(rank) in ends},
            )


def _reduced(part: _Part) -> Digest:
    found = each_rank(part.run, part.ranks, ends=part.ends)
    return digest_of(found, host=part.host, look=part.look, motions=part.motions)


def _by_host(digests: Iterable[Digest]) -> Iterator[Digest]:
    for _, parts in itertools.groupby(digests, key=lambda digest: digest.host):
        yield together(list(parts))
