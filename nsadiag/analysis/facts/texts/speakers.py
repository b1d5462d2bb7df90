"""The rank that raised an exception, where its own message names it."""

from __future__ import annotations

from nsadiag.analysis.facts.texts.fingerprints import fingerprints
from nsadiag.analysis.facts.texts.unique_ids import unique_id_wait


def speaker_of(message: str) -> int | None:
    """None where the message does not say it."""
    if own := next(fingerprints(message), None):
        return own.rank
    wait = unique_id_wait(message)
    # In a group of its own, ranks have other numbers: of the first one alone the key has no name of a group before it.
    return wait.rank if wait and wait.key.isdigit() else None
