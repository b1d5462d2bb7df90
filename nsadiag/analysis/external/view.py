"""One pending collective, with the entries of the ranks that were read in full."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nsadiag.analysis.external.load import ExternalEvidence
from nsadiag.analysis.facts.locations import place
from nsadiag.analysis.ingest.dumps.columns import op_of
from nsadiag.analysis.scale.dumps.dump_set import DumpSet, PendingCollective
from nsadiag.evidence.phrases import call_name, tensor_names, these
from nsadiag.evidence.recorder import Dump, Entry
from nsadiag.evidence.records import Collective, Evidence, Finding, Outcome, Place, Rejected, Strength, Where
from nsadiag.evidence.user_code import is_user

SHOWN = 4  # ranks that evidence names one by one
WATCHDOG_S = 600.0  # before which NCCL's watchdog complains only if told to
APART_S = 2.0  # ranks of a job that runs well may be so far apart
# Wherever it is installed; frames of a dump come from other machines.
TORCH = re.compile(
    r"/torch/(distributed|nn|utils|autograd|optim|cuda|multiprocessing|fx|_\w+)/|/torch/\w+\.py$"
)
NEXT = "nsadiag attach <pid of the launcher>, or start it with: nsadiag run -- <the same command>"


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A rank's request under one number, as its dump has it."""

    rank: int
    entry: Entry
    file: str
    by_watchdog: bool  # a line of a log, in place of an entry of a dump

    @property
    def op(self) -> str:
        return op_of(str(self.entry["profiling_name"]))

    @property
    def source(self) -> str:
        place = f"line {self.entry['index']}" if self.by_watchdog else f"entries[{self.entry['index']}]"
        return f"{self.file}#{place}"

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
        """`float32[1024]`, and where it differs from the input the output."""
        entry = self.entry
        given = " ".join(tensor_names(entry.get("input_sizes"), entry.get("input_dtypes")))
        made = " ".join(tensor_names(entry.get("output_sizes"), entry.get("output_dtypes")))
        return f"{given} -> {made}" if made and made != given else given


class View:
    """A pending collective with the entries that were looked at closely."""

    def __init__(self, external: ExternalEvidence, pending: PendingCollective) -> None:
        self.external, self.pending = external, pending
        self.dumps: DumpSet = external.dumps
        self.world = external.cell.world_size

    def asked(self, rank: int) -> Asked | None:
        """Under the number of the pending collective."""
        return next(
            (a for a in self._entries(rank) if a.entry["collective_seq_id"] == self.pending.seq), None
        )

    def last(self, rank: int) -> Asked | None:
        """The rank's last in that group."""
        return max(self._entries(rank), key=lambda a: a.entry["collective_seq_id"], default=None)

    def newest(self, rank: int) -> Asked | None:
        """The rank's last in any group that was looked at."""
        document = self.external.details.documents.get(rank, Dump())
        entries = document.get("entries", [])
        newest = max(entries, key=lambda e: e["index"], default=None)
        return (
            Asked(rank=rank, entry=newest, file=self.file_of(rank), by_watchdog=self.by_watchdog(rank))
            if newest
            else None
        )

    def _entries(self, rank: int) -> list[Asked]:
        document = self.external.details.documents.get(rank, Dump())
        own = (
            next((c for c in self.dumps.ranks[rank].groups if c.group == self.pending.group), None)
            if rank in self.dumps.ranks
            else None
        )
        return [
            Asked(rank=rank, entry=e, file=self.file_of(rank), by_watchdog=self.by_watchdog(rank))
            for e in document.get("entries", [])
            if own and e["process_group"][0] == own.process_group[0] and not e.get("is_p2p")
        ]

    def by_watchdog(self, rank: int) -> bool:
        return self.dumps.ranks[rank].version == "watchdog"

    def file_of(self, rank: int) -> str:
        path = Path(self.dumps.ranks[rank].file)
        return path.relative_to(self.external.cell.path).as_posix()

    @property
    def first_waiting(self) -> Asked | None:
        ranks = self.pending.conforming or self.pending.waiting
        return next((a for r in ranks if (a := self.asked(r))), None)

    def name(self, asked: Asked | None) -> str:
        """`all_reduce #17 of default_pg`."""
        return call_name(asked.op if asked else "collective", self.pending.seq, self.pending.group.name)

    def pending_s(self) -> float | None:
        """For how long it was pending when the youngest dump was written, if the files' times can be believed."""
        ages = []
        if self.by_watchdog(self.pending.waiting[0]):
            return WATCHDOG_S
        for rank in self.pending.waiting[:SHOWN]:
            asked = self.asked(rank)
            created = int(asked.entry.get("time_created_ns") or 0) / 1e9 if asked else 0
            if created:
                ages.append(Path(self.dumps.ranks[rank].file).stat().st_mtime - created)
        return min(ages) if ages and min(ages) >= 0 else None

    @property
    def is_young(self) -> bool:
        pending_s = self.pending_s()
        return pending_s is not None and pending_s < APART_S

    def finding(
        self,
        *,
        cls: str,
        strength: Strength,
        summary: str,
        at: Asked | None,
        guilty_ranks: tuple[int, ...] = (),
        blocked_ranks: tuple[int, ...] | None = None,
        outcome: Outcome = "hung",
        ruled_out: Mapping[str, str] | None = None,
        **more: Any,
    ) -> Finding:
        """A finding about the call `at`."""
        rejected = tuple(Rejected(cls=each, because=why) for each, why in (ruled_out or {}).items())
        return Finding(
            **{
                "where": self.where(at).at(at.place if at else None),
                "next": NEXT,
                "rejected": rejected,
                **more,
            },
            cls=cls,
            outcome=outcome,
            strength=strength,
            summary=summary,
            guilty_ranks=guilty_ranks,
            blocked_ranks=blocked_by(self, guilty_ranks) if blocked_ranks is None else blocked_ranks,
        )

    def where(self, asked: Asked | None) -> Where:
        """The collective alone."""
        return Where(collective=asked.collective(self.pending.group.name) if asked else None)

    def waiting_evidence(self, asked: Asked | None) -> list[Evidence]:
        """Ranks that wait."""
        if asked is None:
            return []
        state = "their GPUs are in it" if self.pending.started else "it is not over"
        many = len(self.pending.waiting)
        claim = (
            f"{these(self.pending.waiting)} issued {self.name(asked)}, and {state}"
            if many > 1
            else f"rank {asked.rank} issued {self.name(asked)}, and it is not over"
        )
        return [Evidence(claim=claim, source=asked.source)]


def blocked_by(view: View, guilty: tuple[int, ...]) -> tuple[int, ...]:
    waiting = {rank for pending in view.dumps.all_pending for rank in pending.waiting}
    return tuple(sorted(waiting - {*guilty}))
