"""The order in which ranks failed, by what launchers, stamps and the lines of a log tell of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from nsadiag.analysis.external.drafts import RankDraft
from nsadiag.evidence.documents.exceptions import Raised
from nsadiag.evidence.documents.watch import NO_END


def put_in_order(drafts: Iterable[RankDraft]) -> int:
    """Give each failure a time: the launcher's, where the log has none; those that nobody told come last. Returns the first."""
    drafts = [*drafts]
    for draft in drafts:
        # NCCL's watchdog ended it, because a peer did not come.
        draft.end = NO_END if draft.timed_out else draft.end
        ended_ns = int((draft.end.t_s or 0) * 10**9)
        draft.exceptions = [replace(e, t_mono_ns=e.t_mono_ns or ended_ns) for e in draft.exceptions]
    known = [e.t_mono_ns for d in drafts for e in d.exceptions if e.t_mono_ns]
    known += [int(d.end.t_s * 10**9) for d in drafts if d.end.t_s]
    began_ns, last_ns = min(known, default=0), max(known, default=0)
    for draft in drafts:
        if draft.end.t_s is not None:
            draft.end = replace(draft.end, t_s=max(draft.end.t_s - began_ns / 1e9, 0.0))
        draft.exceptions = [replace(e, t_mono_ns=e.t_mono_ns or last_ns) for e in draft.exceptions]
    _put_in_turn(drafts)
    return began_ns


def _put_in_turn(drafts: list[RankDraft]) -> None:
    """Errors in the order of their stamps, where all have one, else of their lines, where all stand in one log.

    A launcher sees the end of a process, which may come long after the error, and in whole seconds.
    """
    raised = [each for draft in drafts for each in draft.exceptions]
    if len(raised) < 2:
        return
    stamped = all(each.t_wall_ns for each in raised)
    if not stamped and len({each.source.partition("#")[0] for each in raised}) > 1:
        return
    first_ns = min(each.t_mono_ns for each in raised)
    turns = [each.t_wall_ns if stamped else _line(each) for each in raised]
    for draft in drafts:
        draft.exceptions = [
            replace(e, t_mono_ns=first_ns + (e.t_wall_ns if stamped else _line(e)) - min(turns))
            for e in draft.exceptions
        ]


def _line(raised: Raised) -> int:
    return int(raised.source.rpartition(" ")[2] or 0)
