"""Data split by `hash()` of a string, which Python salts differently in every process."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.records import Declined
from nsadiag.analysis.relations.pending import ran_together
from nsadiag.analysis.rules.correctness.silent_error import silent_error
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.records import Strength, Where
from nsadiag.source.patterns.hashes import text_hash_on_rank


def unstable_hash(case: Case) -> Iterator[Draft | Declined]:
    """Only for a job that completes: ranks that wait for each other because of it get another verdict."""
    hashes = {r.meta.text_hash for r in case.cell.ranks}
    if not ran_together(case.cell) or None in hashes or len(hashes) < 2:
        return  # all were forked from one process, or share a PYTHONHASHSEED
    found = text_hash_on_rank(case.cell.code)
    if found is None:
        return
    claim = "hash() of the same string differs between the ranks: Python salts it in each process, since PYTHONHASHSEED is not set"
    yield silent_error(
        case,
        f"Each rank selects its share by hash() of a string at {locations.short(found)}, which differs between processes: some of the data goes to several ranks, and some to none.",
        {claim: f"{case.cell.ranks[0].source}/meta.json#text_hash"},
        found,
        Where(phase="input"),
        strength=Strength.LIKELY,
    )


RULE = Rule(
    family="correctness",
    detected="Each rank selects its share of the data by `hash()` of a string, which Python salts differently in each process",
    fix="Use a hash that is the same in all processes (zlib.crc32(name.encode()), hashlib), or the position in a sorted list; PYTHONHASHSEED=0 for all ranks is a workaround.",
    check=unstable_hash,
    keeps="samples",
    needs=("sources",),
    explained_by=("evaluation_copies",),
)
