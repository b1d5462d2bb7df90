"""Findings where all ranks with a dump issued the same collectives: a GPU is behind, a dump is missing, the network is stalled, or nothing is pending."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from nsadiag.analysis.external.load import ExternalEvidence
from nsadiag.analysis.external.view import NEXT, View
from nsadiag.evidence.phrases import all_of, these
from nsadiag.evidence.records import Evidence, Finding, Strength

# A collective that was pending for less when its dump was written may just have been in flight.
IN_FLIGHT_S = 20.0
BELIEVED_S = 2 * 86400.0  # beyond, the files were copied


def late(view: View) -> Finding:
    """Everyone issued it, and most GPUs are in it: on the rest something before it still runs."""
    pending = view.pending
    behind = pending.late
    first, own = view.first_waiting, next((a for r in behind if (a := view.asked(r))), None)
    evidence = view.waiting_evidence(first)
    if own:
        evidence.append(
            Evidence(claim=f"rank {own.rank} has issued it, and its GPU has not begun it", source=own.source)
        )
    return view.finding(
        cls="straggler_rank",
        outcome="slow",
        strength=Strength.LIKELY if len(behind) < len(pending.started) else Strength.GUESS,
        summary=f"{these(behind).capitalize()} issued {view.name(first)} like all others, but the GPU has not reached it, while {len(pending.started):,} of {view.world:,} ranks wait in it: it is behind with what comes before.",
        guilty_ranks=behind,
        at=own,
        peers_at=first.place if first else None,
        evidence=tuple(evidence),
        ruled_out={
            "missing_rank": f"{these(behind)} issued the collective that the others wait in",
            "network_stall": f"the GPUs of {these(behind)} have not begun it, those of {len(pending.started):,} ranks have",
        },
        gaps=(
            "one dump a rank does not tell a slow GPU from one whose kernel never ends (gpu_kernel_hang): a second dump would",
        ),
        fix=f"Look at what {these(behind)} computes before that line: more data than the others, a slower GPU, or a kernel that never ends.",
    )


def in_flight(view: View) -> Finding:
    """In a job that runs well, ranks are a little apart at any moment."""
    pending, first = view.pending, view.first_waiting
    return view.finding(
        cls="unknown",
        outcome="unknown",
        strength=Strength.NONE,
        blocked_ranks=(),
        summary=f"{these(pending.deviating).capitalize()} had not reached {view.name(first)}, which was pending for {view.pending_s():.1f} s when the dumps were written: a job that runs well looks the same.",
        at=first,
        evidence=tuple(view.waiting_evidence(first)),
        ruled_out={
            "missing_rank": f"the call had been pending for {view.pending_s():.1f} s, and in a running job ranks may be {IN_FLIGHT_S:.0f} s apart",
        },
        fix=None,
        next="dump again some seconds later: a rank that still has not reached it is missing",
    )


def without_a_dump(view: View) -> Finding:
    pending = view.pending
    first = view.first_waiting
    return view.finding(
        cls="missing_rank",
        strength=Strength.GUESS,
        summary=f"{all_of(len(pending.waiting)).capitalize()} with a dump wait in {view.name(first)}; {these(pending.unseen)} left none, so it is among them that one must be missing.",
        guilty_ranks=pending.unseen,
        at=first,
        where=view.where(first),
        peers_at=first.place if first else None,
        evidence=tuple(view.waiting_evidence(first)),
        ruled_out={
            "network_stall": f"not every member is known to have issued it: no dump of {these(pending.unseen)}",
        },
        fix="Find the dump, the log or the process of the ranks named.",
    )


def stalled(view: View) -> Finding:
    pending, first, pending_s = view.pending, view.first_waiting, view.pending_s()
    # Where most members left no dump, anyone may be the one that is missing.
    known = not pending.unseen
    long = pending_s is not None and pending_s > IN_FLIGHT_S
    since = f" for {pending_s:.0f} s" if long and pending_s is not None and pending_s < BELIEVED_S else ""
    stands = known and long
    doubt = "" if stands else " It may just have been in flight."
    if not known:
        doubt = f" {these(pending.unseen).capitalize()} left no dump: whoever is missing may be among them."
    return view.finding(
        cls="network_stall" if stands else "unknown",
        outcome="hung" if stands else "unknown",
        strength=Strength.WEAK if stands else Strength.NONE,
        summary=f"{all_of(len(pending.waiting)).capitalize()} with a dump issued {view.name(first)}, and none has finished it{since}.{doubt}",
        blocked_ranks=pending.waiting if stands else (),
        at=first,
        evidence=tuple(view.waiting_evidence(first)),
        ruled_out={
            "collective_args_mismatch": f"{all_of(len(pending.waiting), 'dump')} ask for the same in {view.name(first)}",
        },
        fix="Look at the network between the ranks: NCCL_DEBUG=INFO, the link state of each host's interfaces, NCCL_SOCKET_IFNAME."
        if stands
        else None,
        next=NEXT if known else "find the dumps of the other ranks",
    )


def all_over(external: ExternalEvidence) -> Finding:
    """No dump shows anyone waiting."""
    dumps = external.dumps
    entries = sum(c.entries for c in dumps.ranks.values())
    ahead = Counter(
        tuple(sorted((c.group.key, c.last) for c in columns.groups)) for columns in dumps.ranks.values()
    )
    level = len({max((c.last for c in columns.groups), default=0) for columns in dumps.ranks.values()}) == 1
    first = next(iter(dumps.ranks.values()))
    transfers = sum(c.open_transfers for c in dumps.ranks.values())
    fine = entries > 0 and level and not transfers
    said = (
        f"All {entries:,} collectives of {len(dumps.ranks):,} ranks are over"
        if entries
        else "The dumps hold no collective"
    )
    more = "" if level else f", though not all ranks are equally far ({len(ahead)} different ends)"
    more += f", but {transfers} sends or receives are not" if transfers else ""
    return Finding(
        cls="healthy" if fine else "unknown",
        outcome="healthy" if fine else "unknown",
        strength=Strength.WEAK if fine else Strength.NONE,
        summary=f"{said}{more}: nobody waits for a peer.",
        evidence=(
            Evidence(
                claim="nothing in it is pending",
                source=Path(first.file).relative_to(external.cell.path).as_posix(),
            ),
        ),
        gaps=("a dump shows collectives alone: a rank that is stuck elsewhere would not be seen",),
        next=None if fine else NEXT,
    )
