"""The rank that raised an exception, where its own message names it."""

from __future__ import annotations

import re

from nsadiag.analysis.facts.texts.fingerprints import fingerprints
from nsadiag.analysis.facts.texts.unique_ids import unique_id_wait

# DDP's checks of the model: each rank speaks of itself, with its number before or within the sentence.
OF_DDP = re.compile(
    r"\[(?P<rank>\d{1,9})\]: params\[\d+\] in this process|same model across all ranks, but Rank (?P<counts>\d{1,9}) has \d+ params"
)


def speaker_of(message: str) -> int | None:
    """None where the message does not say it."""
    if of_ddp := OF_DDP.search(message):
        return int(of_ddp["rank"] or of_ddp["counts"])
    if own := next(fingerprints(message), None):
        return own.rank
    wait = unique_id_wait(message)
    # In a group of its own, ranks have other numbers: of the first one alone the key has no name of a group before it.
    return wait.rank if wait and wait.key.isdigit() else None
