"""Findings from what logs say outright: absent from a barrier, exit codes, communicators never created, waits for stragglers."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from nsadiag.analysis.external.deepspeed_log import Waits
from nsadiag.analysis.external.load import ExternalEvidence
from nsadiag.analysis.external.nccl_log import Init
from nsadiag.analysis.external.view import NEXT
from nsadiag.evidence.phrases import these
from nsadiag.evidence.records import Evidence, Finding, Rejected, Strength, Where

WORTH_SHARE = 0.2  # of the communication itself: less is the noise of any network
OWN_SHARE = 0.2  # of what its peers waited: whoever waited less is the one they waited for


def never_came(external: ExternalEvidence, ranks: tuple[int, ...], source: str) -> Finding:
    """A monitored barrier names those who did not come."""
    others = tuple(r for r in range(external.cell.world_size) if r not in ranks)
    return Finding(
        cls="missing_rank",
        outcome="hung",
        strength=Strength.CONCLUSIVE,
        summary=f"{these(ranks).capitalize()} never came to the monitored barrier in which the others waited.",
        guilty_ranks=ranks,
        blocked_ranks=others,
        evidence=(
            Evidence(claim=f"the barrier's own words: {these(ranks)} failed to pass it", source=source),
        ),
        rejected=(Rejected(cls="rank_exception", because=f"no traceback of {these(ranks)}"),),
        gaps=(f"no stack of {these(ranks)}: what it did instead is not known",),
        fix="Find what keeps the rank from that barrier.",
        next=NEXT,
    )


def ended_with_code(external: ExternalEvidence, ranks: tuple[int, ...], code: int) -> Finding:
    """The launcher saw it end first, and nothing here says of what."""
    others = tuple(r.rank for r in external.cell.ranks if r.rank not in ranks)
    return Finding(
        cls="rank_exception",
        outcome="crashed",
        strength=Strength.WEAK,
        summary=f"{these(ranks).capitalize()} was the first to end, with exit code {code}; its traceback is not among these files.",
        guilty_ranks=ranks,
        blocked_ranks=others,
        evidence=(Evidence(claim=f"the launcher saw exit code {code}", source=external.statements.launcher),),
        rejected=(
            Rejected(cls="rank_killed", because=f"the launcher saw exit code {code}, and no signal"),
            Rejected(cls="rank_exited_early", because=f"exit code {code} is not that of a clean end"),
        ),
        gaps=(f"no log of {these(ranks)}",),
        fix="Read that rank's own stderr.",
        next="torchrun --log-dir logs --redirects 3 --tee 3 <the same script>, then: nsadiag analyze logs",
    )


def communicator_finding(found: Iterable[Init], world_size: int) -> Finding | None:
    """The first communicator that some ranks began to create and none could end; None if all of them were made."""
    by_id: dict[str, list[Init]] = {}
    for init in found:
        by_id.setdefault(init.communicator, []).append(init)
    for rows in by_id.values():
        came = {row.rank for row in rows}
        absent = tuple(sorted({*range(rows[0].size)} - came))
        if not any(row.complete for row in rows):
            return _stuck(rows, tuple(sorted(came)), absent, rows[0].size == max(world_size, rows[0].size))
    return None


def _stuck(rows: list[Init], came: tuple[int, ...], absent: tuple[int, ...], whole: bool) -> Finding:
    size = rows[0].size
    what = f"the communicator {rows[0].communicator} of {size} ranks"
    # In a communicator of a part of the job, NCCL's numbers are not those of the job.
    numbers = "" if whole else " (as numbered in it)"
    evidence = Evidence(
        claim=f"{these(came)}{numbers} began to create {what}, and nobody ended it",
        source=f"{rows[0].source}#line {rows[0].line}",
    )
    summary = (
        f"{these(absent).capitalize()}{numbers} never came to create {what}, in which {len(came)} wait."
        if absent
        else f"All {size} ranks began to create {what}, and none has ended it."
    )
    return Finding(
        cls="process_group_mismatch" if absent else "network_stall",
        outcome="hung",
        strength=Strength.WEAK if absent else Strength.GUESS,
        summary=summary,
        guilty_ranks=absent if whole else (),
        blocked_ranks=came if whole else (),
        where=Where(),
        evidence=(evidence,),
        rejected=(
            Rejected(
                cls="missing_rank",
                because=f"{what} was never created: no collective could be issued in it",
                source=evidence.source,
            ),
        ),
        gaps=("a rank whose log is not among these files would be taken for one that did not come",),
        fix="Let every rank of the job create the same groups in the same order, each on its own GPU (set_device(LOCAL_RANK))."
        if absent
        else "Look at the network between the hosts: NCCL_SOCKET_IFNAME, firewalls, the lines of NCCL WARN.",
        next=NEXT,
    )


def straggler_finding(found: Iterable[Waits]) -> Finding | None:
    """The rank that waited least, where its peers waited for much longer than their communication takes."""
    rows = sorted(found, key=lambda row: row.more_ms)
    if not rows or rows[-1].more_ms < WORTH_SHARE * rows[-1].least_ms:
        return None
    usual_ms = statistics.median(row.more_ms for row in rows[len(rows) > 1 :])
    late = [row for row in rows[:-1] if row.more_ms < OWN_SHARE * usual_ms]
    named = tuple(sorted(row.rank for row in late))
    waited = next(row for row in rows if row.more_ms >= usual_ms)
    length = f"{waited.more_ms / 1e3:.1f} s, beside {waited.least_ms / 1e3:.1f} s of communication"
    return Finding(
        cls="straggler_rank",
        outcome="slow",
        strength=Strength.LIKELY if len(named) == 1 else Strength.GUESS,
        summary=f"{these(named).capitalize()} came late to collectives: rank {waited.rank} waited for it for {length}."
        if named
        else f"Rank {waited.rank} waited for ranks that came late to its collectives for {length}.",
        guilty_ranks=named,
        blocked_ranks=tuple(sorted(row.rank for row in rows if row not in late)),
        where=Where(),
        evidence=tuple(
            Evidence(claim=f"rank {row.rank} waited for {row.more_ms / 1e3:.1f} s", source=row.source)
            for row in (*late[:2], waited)
        ),
        gaps=() if named else ("no summary of the ranks that it waited for: each rank prints its own",),
        fix="Look at what the rank does between its collectives: its input, its share of the work, its host.",
        next="nsadiag run -- <the same command>: the line on which that rank spends the time",
    )
