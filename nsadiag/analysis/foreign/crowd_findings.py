"""What all ranks' dumps together show, where no stack, traceback or exit of a rank says more."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nsadiag.analysis.dumps.columns import op_of
from nsadiag.analysis.dumps.crowd import Crowd, Meeting
from nsadiag.analysis.foreign.load import Foreign
from nsadiag.analysis.places import place, short
from nsadiag.evidence.records import Collective, Evidence, Finding, Place, Rejected, Where
from nsadiag.evidence.sources import is_user
from nsadiag.evidence.spans import spans

# A collective that was pending for less when its dump was written may just have been in flight.
IN_FLIGHT_S = 20.0
SHOWN = 4
# Wherever it is installed; frames of a dump come from other machines.
TORCH = re.compile(
    r"/torch/(distributed|nn|utils|autograd|optim|cuda|multiprocessing|fx|_\w+)/|/torch/\w+\.py$"
)
NEXT = "nsadiag attach <pid of the launcher>, or start it with: nsadiag run -- <the same command>"


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What one rank asked for under a number, as its dump has it."""

    rank: int
    entry: dict[str, Any]
    file: str

    @property
    def op(self) -> str:
        return op_of(str(self.entry["profiling_name"]))

    @property
    def source(self) -> str:
        return f"{self.file}#entries[{self.entry['index']}]"

    @property
    def place(self) -> Place | None:
        """The user line that issued it: frames are listed from the innermost."""
        for frame in self.entry.get("frames") or []:
            file = str(frame.get("filename", ""))
            if is_user(file) and not TORCH.search(file):
                return place(file, int(frame.get("line") or 0), str(frame.get("name")))
        return None

    def collective(self, group: str) -> Collective:
        return Collective(
            op=self.op,
            group=group,
            seq=int(self.entry["collective_seq_id"]),
            sizes=self.entry.get("input_sizes"),
            dtypes=self.entry.get("input_dtypes"),
        )

    @property
    def shape(self) -> str:
        """`[1024] Float`, and where it differs from the input the output."""
        sizes = {way: " ".join(map(str, self.entry.get(f"{way}_sizes") or [])) for way in ("input", "output")}
        dtypes = " ".join(dict.fromkeys(self.entry.get("input_dtypes") or []))
        into = f" -> {sizes['output']}" if sizes["output"] and sizes["output"] != sizes["input"] else ""
        return f"{sizes['input']}{into} {dtypes}".strip()


def crowd_finding(foreign: Foreign) -> Finding | None:
    """The first thing that explains why ranks wait; None where no dump shows anyone waiting."""
    if not foreign.close_up.meetings:
        return None
    view = View(foreign, foreign.close_up.meetings[0])
    meeting = view.meeting
    if meeting.odd:
        return _disagreement(view)
    if meeting.missing:
        return _missing(view)
    if meeting.late:
        return _late(view)
    if meeting.unseen and len(meeting.unseen) < len(meeting.waiting):
        return _without_a_dump(view)
    return _stalled(view)


class View:
    """One meeting with the entries that were looked at closely."""

    def __init__(self, foreign: Foreign, meeting: Meeting) -> None:
        self.foreign, self.meeting = foreign, meeting
        self.crowd: Crowd = foreign.crowd
        self.world = foreign.cell.world_size

    def asked(self, rank: int) -> Asked | None:
        """Under the number of the meeting."""
        return next(
            (a for a in self._entries(rank) if a.entry["collective_seq_id"] == self.meeting.seq), None
        )

    def last(self, rank: int) -> Asked | None:
        """The rank's last in that group."""
        return max(self._entries(rank), key=lambda a: a.entry["collective_seq_id"], default=None)

    def newest(self, rank: int) -> Asked | None:
        """The rank's last in any group that was looked at."""
        document = self.foreign.close_up.documents.get(rank, {})
        entries = document.get("entries", [])
        newest = max(entries, key=lambda e: e["index"], default=None)
        return Asked(rank=rank, entry=newest, file=self._file(rank)) if newest else None

    def _entries(self, rank: int) -> list[Asked]:
        document = self.foreign.close_up.documents.get(rank, {})
        own = (
            next((c for c in self.crowd.ranks[rank].groups if c.group == self.meeting.group), None)
            if rank in self.crowd.ranks
            else None
        )
        return [
            Asked(rank=rank, entry=e, file=self._file(rank))
            for e in document.get("entries", [])
            if own and e["process_group"][0] == own.process_group[0] and not e.get("is_p2p")
        ]

    def _file(self, rank: int) -> str:
        path = Path(self.crowd.ranks[rank].file)
        return path.relative_to(self.foreign.cell.path).as_posix()

    @property
    def first_waiting(self) -> Asked | None:
        ranks = self.meeting.conforming or self.meeting.waiting
        return next((a for r in ranks if (a := self.asked(r))), None)

    def name(self, asked: Asked | None) -> str:
        """`all_reduce 17 of default_pg`."""
        op = asked.op if asked else "collective"
        return f"{op} {self.meeting.seq} of {self.meeting.group.name}"

    def pending_s(self) -> float | None:
        """For how long it was pending when the youngest dump was written, if the files' times can be believed."""
        ages = []
        for rank in self.meeting.waiting[:SHOWN]:
            asked = self.asked(rank)
            created = int(asked.entry.get("time_created_ns") or 0) / 1e9 if asked else 0
            if created:
                ages.append(Path(self.crowd.ranks[rank].file).stat().st_mtime - created)
        return min(ages) if ages and min(ages) >= 0 else None

    def waiting_evidence(self, asked: Asked | None) -> list[Evidence]:
        """Who waits."""
        if asked is None:
            return []
        state = "their GPUs are in it" if self.meeting.started else "it is not over"
        many = len(self.meeting.waiting)
        claim = (
            f"{_ranks(self.meeting.waiting)} issued {self.name(asked)}, and {state}"
            if many > 1
            else f"rank {asked.rank} issued {self.name(asked)}, and it is not over"
        )
        return [Evidence(claim=claim, source=asked.source)]


def _ranks(ranks: tuple[int, ...]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {spans(ranks)}"


def _Ranks(ranks: tuple[int, ...]) -> str:
    return _ranks(ranks).capitalize()


def _missing(view: View) -> Finding:
    meeting = view.meeting
    held_up = view.crowd.held_up_elsewhere(meeting)
    guilty = tuple(r for r in meeting.missing if r not in held_up)
    if not guilty:
        return _cycle(view)
    peers, last = view.first_waiting, view.last(guilty[0])
    newest = view.newest(guilty[0])
    here = (newest or last or _Nowhere).place
    left = f" It was last seen at {short(here)}." if here else ""
    evidence = view.waiting_evidence(peers)
    for rank in guilty[:SHOWN]:
        own = view.last(rank)
        claim = f"rank {rank} never issued it: its last in {meeting.group.name} is {own.entry['collective_seq_id'] if own else 'none'}"
        evidence.append(Evidence(claim=claim, source=own.source if own else view._file(rank)))
    return Finding(
        detector="crowd",
        cls="missing_rank",
        outcome="hung",
        confidence=0.85 if len(guilty) < len(meeting.waiting) or len(guilty) == 1 else 0.7,
        summary=f"{_Ranks(guilty)} never joined {view.name(peers)}, in which {len(meeting.waiting):,} of {view.world:,} ranks wait.{left}",
        guilty_ranks=guilty,
        blocked_ranks=_blocked(view, guilty),
        where=Where(collective=peers.collective(meeting.group.name) if peers else None).at(here),
        peers_at=peers.place if peers else None,
        evidence=tuple(evidence),
        rejected=(
            Rejected(
                cls="collective_order_mismatch", because="no rank issued another collective under that number"
            ),
            Rejected(
                cls="straggler_rank",
                because=f"{_ranks(guilty)} never issued it, while a slow rank's CPU runs ahead of its GPU",
            ),
        ),
        gaps=(
            f"no stack of {_ranks(guilty)}: the line is where it issued its last collective, what it does now is not known",
        ),
        fix="Find what keeps the rank from that collective: look at what follows the line shown, and at branches on rank or data before it.",
        next=NEXT,
    )


class _NowhereType:
    place = None


_Nowhere = _NowhereType()


def _blocked(view: View, guilty: tuple[int, ...]) -> tuple[int, ...]:
    waiting = {rank for meeting in view.crowd.meetings for rank in meeting.waiting}
    return tuple(sorted(waiting - {*guilty}))


def _cycle(view: View) -> Finding:
    """Everyone who is waited for waits in another group, for someone who waits here."""
    meetings = view.foreign.close_up.meetings
    ranks = tuple(sorted({r for m in meetings for r in m.deviating if any(r in o.waiting for o in meetings)}))
    views = [View(view.foreign, m) for m in meetings]
    evidence = [e for v in views for e in v.waiting_evidence(v.first_waiting)]
    said = "; ".join(f"{_ranks(v.meeting.waiting)} in {v.name(v.first_waiting)}" for v in views)
    here = view.first_waiting
    return Finding(
        detector="crowd",
        cls="collective_order_mismatch",
        outcome="hung",
        confidence=0.75,
        summary=f"Groups wait for each other in a circle: {said}.",
        guilty_ranks=ranks,
        blocked_ranks=_blocked(view, ranks),
        where=Where(collective=here.collective(view.meeting.group.name) if here else None).at(
            here.place if here else None
        ),
        evidence=tuple(evidence),
        rejected=(
            Rejected(
                cls="missing_rank", because="every rank that is waited for waits in another group itself"
            ),
        ),
        fix="Let all ranks take the groups in the same order.",
        next=NEXT,
    )


def _disagreement(view: View) -> Finding:
    meeting = view.meeting
    everyone = len(meeting.odd) >= len(meeting.waiting) and not meeting.conforming
    odd = next((a for r in meeting.odd if (a := view.asked(r))), None)
    others = next(
        (a for r in view.foreign.close_up.documents if r not in meeting.odd and (a := view.asked(r))), None
    )
    if others is None and odd is not None:
        others = next(
            (a for r in meeting.odd if (a := view.asked(r)) and (a.op, a.shape) != (odd.op, odd.shape)), odd
        )
    assert odd is not None and others is not None
    order = odd.op != others.op
    mine, theirs = (odd.op, others.op) if order else (odd.shape, others.shape)
    what = f"collective {meeting.seq} of {meeting.group.name}" if order else view.name(odd)
    verb = "issued" if order else "brought"
    rest = "the others" if not everyone else _ranks((others.rank,))
    late = f" {_Ranks(meeting.missing)} issued none at all." if meeting.missing else ""
    named = [others, *(a for r in meeting.odd[:SHOWN] if (a := view.asked(r)) and a.rank != others.rank)]
    evidence = [
        Evidence(claim=f"rank {a.rank} issued {a.op} {a.shape} as number {meeting.seq}", source=a.source)
        for a in named
    ]
    return Finding(
        detector="crowd",
        cls="collective_order_mismatch" if order else "collective_args_mismatch",
        outcome="hung",
        confidence=0.6 if everyone else 0.9,
        summary=f"{_Ranks((odd.rank,) if everyone else meeting.odd)} {verb} {mine} as {what}, {rest} {theirs}; {len(_blocked(view, meeting.odd)):,} of {view.world:,} ranks wait.{late}",
        guilty_ranks=meeting.odd,
        blocked_ranks=_blocked(view, meeting.odd),
        where=Where(collective=odd.collective(meeting.group.name)).at(odd.place),
        peers_at=others.place,
        evidence=tuple(evidence),
        rejected=(
            Rejected(
                cls="collective_args_mismatch" if order else "collective_order_mismatch",
                because=f"the operations are {'different ones' if order else 'the same'}",
            ),
            Rejected(cls="missing_rank", because="the rank issued a collective under that number"),
        ),
        gaps=("no majority: which of them is wrong cannot be told",) if everyone else (),
        fix="Make all ranks issue the same collectives in the same order; a branch on rank or data before the line shown is the usual cause."
        if order
        else "Let all ranks bring the same sizes and types: pad the last batch, or agree on the size first.",
    )


def _late(view: View) -> Finding:
    """Everyone issued it, and most GPUs are in it: on the rest something before it still runs."""
    meeting = view.meeting
    late = meeting.late
    first, own = view.first_waiting, next((a for r in late if (a := view.asked(r))), None)
    evidence = view.waiting_evidence(first)
    if own:
        evidence.append(
            Evidence(claim=f"rank {own.rank} has issued it, and its GPU has not begun it", source=own.source)
        )
    return Finding(
        detector="crowd",
        cls="straggler_rank",
        outcome="slow",
        confidence=0.75 if len(late) < len(meeting.started) else 0.5,
        summary=f"{_Ranks(late)} issued {view.name(first)} like all others, but the GPU has not come to it, while {len(meeting.started):,} of {view.world:,} ranks wait in it: it is behind with what comes before.",
        guilty_ranks=late,
        blocked_ranks=_blocked(view, late),
        where=Where(collective=own.collective(meeting.group.name) if own else None).at(
            own.place if own else None
        ),
        peers_at=first.place if first else None,
        evidence=tuple(evidence),
        rejected=(
            Rejected(
                cls="missing_rank", because=f"{_ranks(late)} issued the collective that the others wait in"
            ),
            Rejected(cls="network_stall", because="not every member has begun it"),
        ),
        gaps=(
            "one dump a rank does not tell a slow GPU from one whose kernel never ends (gpu_kernel_hang): a second dump would",
        ),
        fix=f"Look at what {_ranks(late)} computes before that line: more data than the others, a slower GPU, or a kernel that never ends.",
        next=NEXT,
    )


def _without_a_dump(view: View) -> Finding:
    meeting = view.meeting
    first = view.first_waiting
    sure = 0.55 if len(meeting.unseen) == 1 else 0.4
    return Finding(
        detector="crowd",
        cls="missing_rank",
        outcome="hung",
        confidence=sure,
        summary=f"All {len(meeting.waiting):,} ranks with a dump wait in {view.name(first)}; {_ranks(meeting.unseen)} left none, so it is among them that one must be missing.",
        guilty_ranks=meeting.unseen,
        blocked_ranks=_blocked(view, meeting.unseen),
        where=Where(collective=first.collective(meeting.group.name) if first else None),
        peers_at=first.place if first else None,
        evidence=tuple(view.waiting_evidence(first)),
        rejected=(
            Rejected(
                cls="network_stall",
                because=f"not every member is known to have issued it: no dump of {_ranks(meeting.unseen)}",
            ),
        ),
        fix="Find the dump, the log or the process of the ranks named.",
        next=NEXT,
    )


def _stalled(view: View) -> Finding:
    meeting, first, pending_s = view.meeting, view.first_waiting, view.pending_s()
    long = pending_s is not None and pending_s > IN_FLIGHT_S
    since = f" for {pending_s:.0f} s" if long else ""
    return Finding(
        detector="crowd",
        cls="network_stall" if long else "unknown",
        outcome="hung" if long else "unknown",
        confidence=0.6 if long else 0.3,
        summary=f"All {len(meeting.waiting):,} ranks issued the same {view.name(first)}, and none has finished it{since}."
        + ("" if long else " It may just have been in flight."),
        blocked_ranks=meeting.waiting if long else (),
        where=Where(collective=first.collective(meeting.group.name) if first else None).at(
            first.place if first else None
        ),
        evidence=tuple(view.waiting_evidence(first)),
        rejected=(
            Rejected(cls="missing_rank", because="every member issued it"),
            Rejected(cls="collective_args_mismatch", because="all of them asked for the same"),
        ),
        fix="Look at the network between the ranks: NCCL_DEBUG=INFO, the link state of each host's interfaces, NCCL_SOCKET_IFNAME."
        if long
        else None,
        next=NEXT,
    )


def all_over(foreign: Foreign) -> Finding:
    """No dump shows anyone waiting."""
    crowd = foreign.crowd
    entries = sum(c.entries for c in crowd.ranks.values())
    ahead = Counter(
        tuple(sorted((c.group.key, c.last) for c in columns.groups)) for columns in crowd.ranks.values()
    )
    level = len({max((c.last for c in columns.groups), default=0) for columns in crowd.ranks.values()}) == 1
    first = next(iter(crowd.ranks.values()))
    transfers = sum(c.open_transfers for c in crowd.ranks.values())
    fine = entries > 0 and level and not transfers
    said = (
        f"All {entries:,} collectives of {len(crowd.ranks):,} ranks are over"
        if entries
        else "The dumps hold no collective"
    )
    more = "" if level else f", though not all ranks are equally far ({len(ahead)} different ends)"
    more += f", but {transfers} sends or receives are not" if transfers else ""
    return Finding(
        detector="crowd",
        cls="healthy" if fine else "unknown",
        outcome="healthy" if fine else "unknown",
        confidence=0.6 if fine else 0.3,
        summary=f"{said}{more}: nobody waits for a peer.",
        evidence=(
            Evidence(
                claim="nothing in it is pending",
                source=Path(first.file).relative_to(foreign.cell.path).as_posix(),
            ),
        ),
        gaps=("a dump shows collectives alone: a rank that is stuck elsewhere would not be seen",),
        next=None if fine else NEXT,
    )
