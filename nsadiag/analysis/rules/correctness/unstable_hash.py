"""Work shared out by `hash()` of a text, which Python salts anew in every process."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.records import Declined
from nsadiag.analysis.relations.pending import ran_together
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.records import Strength, Where
from nsadiag.source.patterns.hashes import text_hash_on_rank


def unstable_hash(case: Case) -> Iterator[Draft | Declined]:
    """Only of a job that completes: ranks that wait for one another because of it are told by what they wait in."""
    if not ran_together(case.cell):
        return
    hashes = {r.rank: r.meta.get("text_hash") for r in case.cell.ranks}
    if None in hashes.values() or len(set(hashes.values())) < 2:
        return  # all were forked from one process, or were given one PYTHONHASHSEED
    found = text_hash_on_rank(case.cell.code)
    if found is None:
        return
    yield Draft(
        strength=Strength.LIKELY,
        summary=f"Each rank picks its share by hash() of a text at {locations.short(found)}, which differs from process to process: some of the data goes to several ranks, and some to none.",
        guilty_ranks=tuple(sorted(hashes)),
        where=Where(phase="input").at(found),
        evidence={
            "hash() of one and the same text differs between the ranks: Python salts it in each process, as PYTHONHASHSEED was not set": f"{case.cell.ranks[0].source}/meta.json#text_hash"
        },
    )


RULE = Rule(
    name="unstable_hash",
    concludes=("silently_wrong",),
    family="correctness",
    outcome="wrong",
    detected="each rank picks its share of the data by a `hash()` of a text, which its process salts for itself",
    fix="Take a hash that is the same in all processes (zlib.crc32(name.encode()), hashlib), or the position in a sorted list; PYTHONHASHSEED=0 for all ranks helps for now.",
    check=unstable_hash,
    needs=("sources",),
    explained_by=("evaluation_copies",),
    confused_with=("healthy",),
)
