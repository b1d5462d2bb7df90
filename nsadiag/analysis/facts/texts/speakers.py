"""The rank that raised an exception, where its own message names it."""

from __future__ import annotations

import re

from nsadiag.analysis.facts.texts.fingerprints import fingerprints
from nsadiag.analysis.facts.texts.unique_ids import unique_id_wait

# Each rank speaks of itself, with its number before or within the sentence: DDP's checks, the monitored barrier, NCCL's abort.
OF_ITSELF = re.compile(
    r"\[(\d{1,9})\]: params\[\d+\] in this process|same model across all ranks, but Rank (\d{1,9}) has \d+ params"
    r"|did not receive grad for rank (\d{1,9})\b|\bRank (\d{1,9}) successfully reached monitoredBarrier, but received errors"
    r"|NCCL communicator was aborted on rank (\d{1,9})\b"
)


def speaker_of(message: str) -> int | None:
    """None where the message does not say it."""
    if of_itself := OF_ITSELF.search(message):
        return int(next(filter(None, of_itself.groups())))
    if own := next(fingerprints(message), None):
        return own.rank
    wait = unique_id_wait(message)
    # In a group of its own, ranks have other numbers: of the first one alone the key has no name of a group before it.
    return wait.rank if wait and wait.key.isdigit() else None
