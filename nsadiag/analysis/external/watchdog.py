"""Reports of NCCL's watchdog in the form of flight-recorder dumps: a call a rank, with the line of the log as its number."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from nsadiag.analysis.ingest.messages.watchdog import DEFAULT, TimedOut
from nsadiag.evidence.recorder import OF_WATCHDOG, Dump, Entry, GroupConfig


def dumps_of(
    reports: Iterable[TimedOut], ranks: Collection[int], world_size: int
) -> Iterator[tuple[int, Dump]]:
    """By rank. `ranks` wrote something: whoever reports no timeout has issued nothing that is pending."""
    reports = [*reports]
    members = {
        # Who else is in a group that is not the default one, nobody says.
        group: [*range(world_size)]
        if group == DEFAULT
        else sorted({each.rank for each in reports if each.group == group})
        for group in {each.group for each in reports}
    }
    config = {
        group: GroupConfig(name=group, desc=group, ranks=str(found)) for group, found in members.items()
    }
    for rank in sorted({*ranks} | {each.rank for each in reports}):
        mine = [each for each in reports if each.rank == rank]
        own = {group: each for group, each in config.items() if rank in members[group]}
        yield (
            rank,
            {
                "version": OF_WATCHDOG,
                "pg_config": own,
                "entries": [e for each in mine for e in _entries(each)],
            },
        )


def _entries(report: TimedOut) -> Iterator[Entry]:
    """The call that timed out, and the last one that was enqueued behind it."""
    call: Entry = {
        "collective_seq_id": report.seq,
        "process_group": [report.group, report.group],
        "profiling_name": f"nccl:{report.op}",
        "input_sizes": [[report.elements]] if report.elements is not None else None,
        "state": "started",
        "index": report.line,
    }
    yield call
