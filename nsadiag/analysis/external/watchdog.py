"""Reports of NCCL's watchdog in the form of flight-recorder dumps: a call a rank and group, with the line of the log as its number."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from nsadiag.analysis.ingest.messages.watchdog import DEFAULT, TimedOut
from nsadiag.evidence.messages import Standing
from nsadiag.evidence.recorder import OF_WATCHDOG, Dump, Entry, GroupConfig

GATHERS = re.compile(r"^_?all_?gather")  # the result holds the input of every member
SCATTERS = re.compile(r"^_?reduce_?scatter")  # and here the input as many results
MOST_MEMBERS = 2**20
NEAR = 100  # numbers of one group on ranks that are out of step


def dumps_of(
    reports: Iterable[TimedOut], ranks: Collection[int], world_size: int, standings: Iterable[Standing] = ()
) -> Iterator[tuple[int, Dump]]:
    """By rank. `ranks` wrote something: whoever reports no timeout has issued nothing that is pending.

    `standings`: how far ranks say they were when another one timed out.
    """
    reports, standings = [*_grouped([*reports])], [*standings]
    members = {
        name: [*range(world_size)] if own[0].group == DEFAULT else members_of(own)
        for name, own in _by_group(reports).items()
    }
    config = {
        name: GroupConfig(name=name, desc=own[0].group, ranks=str(members[name]))
        for name, own in _by_group(reports).items()
    }
    for rank in sorted({*ranks} | {each.rank for each in reports}):
        mine = [each for each in reports if each.rank == rank]
        yield (
            rank,
            {
                "version": OF_WATCHDOG,
                "pg_config": {name: each for name, each in config.items() if rank in members[name]},
                "pg_status": {
                    **{
                        _group_of(s): _status(s)
                        for s in standings
                        if s.rank == rank and _group_of(s) in config
                    },
                    **{_name(each): _status(each) for each in mine},
                },
                "entries": [_entry(each) for each in mine],
            },
        )


def world_size(reports: Iterable[TimedOut]) -> int:
    """The least number of ranks that the reports allow; 0 where there is none."""
    groups = _by_group(_grouped([*reports])).values()
    sizes = (size_of(own) for own in groups if own[0].group == DEFAULT)
    highest = (max(members_of(own)) + 1 for own in groups)
    return max((*sizes, *highest), default=0)


def _grouped(reports: list[TimedOut]) -> Iterator[TimedOut]:
    """The reports, those whose group no line names in groups by their numbers: of one group ranks are not far apart."""
    numbers = sorted({each.seq for each in reports if not each.guid})
    first: dict[int, int] = {}
    for before, number in zip([None, *numbers], numbers, strict=False):
        near = before is not None and number - before <= NEAR
        first[number] = first[before] if near and before is not None else number
    alone = len({*first.values()}) < 2
    for each in reports:
        named = each.guid or alone
        yield (
            each
            if named
            else replace(each, group=f"an unnamed group at #{first[each.seq]}", guid=f"at {first[each.seq]}")
        )


def size_of(reports: Collection[TimedOut]) -> int:
    """The least number of members that a group can have: by the numbers of those that report, and by what a member gives and gets."""
    numbers = (each.group_rank + 1 for each in reports if each.group_rank is not None)
    return max((*numbers, *map(shares, reports)), default=0)


def members_of(reports: Collection[TimedOut]) -> list[int]:
    """The ranks of a group, of which some may not report: groups of a mesh are regular, so two members tell where the others are."""
    own = {each.rank for each in reports}
    places = {each.group_rank: each.rank for each in reports if each.group_rank is not None}
    if len(places) < 2 or len(places) < len(own):
        return sorted(own)
    (first, base), *_, (last, end) = sorted(places.items())
    step, rest = divmod(end - base, last - first)
    start = base - first * step
    if rest or step < 1 or start < 0:
        return sorted(own)
    regular = all(start + number * step == rank for number, rank in places.items())
    size = size_of(reports)
    # A mesh cuts the ranks into runs of one size, or takes each n-th from one of the first n on.
    fits = start % size == 0 if step == 1 else 0 <= start % (step * size) < step
    if not regular or not fits:
        return sorted(own)
    return [start + number * step for number in range(size)]


def shares(report: TimedOut) -> int:
    """The number of members, by the sizes of a gathering or scattering call."""
    given, got = report.elements or 0, report.output or 0
    if SCATTERS.match(report.op):
        given, got = got, given
    elif not GATHERS.match(report.op):
        return 0
    return got // given if given and got % given == 0 and got // given <= MOST_MEMBERS else 0


def _by_group(reports: Iterable[TimedOut]) -> Mapping[str, list[TimedOut]]:
    found: dict[str, list[TimedOut]] = {}
    for each in reports:
        found.setdefault(_name(each), []).append(each)
    return found


def _name(report: TimedOut) -> str:
    """The group's own name. The one of all ranks has the same, whoever leaves it out."""
    return DEFAULT if report.group == DEFAULT else report.guid or report.group


def _group_of(standing: Standing) -> str:
    return DEFAULT if standing.group == "0" else standing.group


def _status(report: TimedOut | Standing) -> dict[str, int | None]:
    """In the words of a dump's own status."""
    return {"last_enqueued_collective": report.enqueued, "last_completed_collective": report.completed}


def _entry(report: TimedOut) -> Entry:
    """The call that timed out."""
    return {
        "collective_seq_id": report.seq,
        "process_group": [_name(report), report.group],
        "profiling_name": f"nccl:{report.op}",
        "input_sizes": [[report.elements]] if report.elements is not None else None,
        "output_sizes": [[report.output]] if report.output is not None else [],
        "state": "started",
        "index": report.line,
        "frames": [
            {"name": frame.function, "filename": frame.file, "line": frame.line}
            for frame in report.frames[::-1]
        ],
    }
