"""Ranks that create other process groups, or in another order, so that each waits for others to join another group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.explain.candidates.iteration_order import order_of
from nsadiag.analysis.explain.context import Context
from nsadiag.analysis.facts import locations
from nsadiag.analysis.facts.exits import earliest_failure
from nsadiag.analysis.outliers import minority
from nsadiag.analysis.records import CellEvidence, Declined
from nsadiag.analysis.relations.pending import is_still, waits
from nsadiag.analysis.rules.drafts import all_but, at_line, line_of, named, recorded
from nsadiag.analysis.rules.reasons import everyone, not_still
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.analysis.rules.setup.group_creation import at_odds, creation_cycles, local_creations, members_of
from nsadiag.evidence.phrases import are, these
from nsadiag.evidence.records import Place, Strength
from nsadiag.evidence.table import Table

FIX_LOCAL = "Creating a group waits for all its members: let all ranks create shared groups in one common order (sorted by their members, not from each rank's own view), or create all of them before training begins."


def process_group_mismatch(case: Case) -> Iterator[Draft | Declined]:
    if not is_still(case.cell) and not (_broke_in_creation(case.cell) or _broke_between_groups(case)):
        yield from not_still(case.cell)
        return
    if is_still(case.cell):
        yield from _in_a_cycle(case)
        yield from _crossed(case)
    # Creations that involve only their members may differ.
    created = case.created[~case.created.local.astype(bool) & (case.created.op != "split_group")]
    if created.empty:
        yield Declined(f"{everyone(case.cell)} created no process group besides the default one")
        return
    created = created.assign(
        number=created.groupby("rank").cumcount() + created.groupby("rank").call.transform("min")
    )
    for number, same in created.groupby("number", sort=True):
        asked = {int(r): str(members) for r, members in same[["rank", "ranks"]].itertuples()}
        if len(set(asked.values())) > 1 and (not is_still(case.cell) or _matters(case)):
            after = created[created.number == int(str(number)) + 1]
            yield _differ(case.cell, int(str(number)), same, asked, _by_members_alone(same, after))
            return
    if is_still(case.cell):
        yield from _alone(case, created)


def _broke_in_creation(cell: CellEvidence) -> bool:
    broke = earliest_failure(cell)
    raised = broke.rank.exception if broke and broke.kind == "exception" else None
    return raised is not None and any(
        frame.function in ("new_group", "_new_process_group_helper") for frame in raised.frames
    )


def _broke_between_groups(case: Case) -> bool:
    """Whether a call failed whose peers made it at the same line, in a group of the same ranks by another name."""
    broke = earliest_failure(case.cell)
    if not broke or not broke.rank.exception or case.asked.empty:
        return False
    last = {row.rank: row for row in case.asked.sort_values("begin_s")}
    places = {locations.of_text(str(row.place)) for row in last.values()}
    members = {case.groups.members(str(row.group)) for row in last.values()}
    made_alike = len({row.op for row in last.values()}) == len(places) == len(members) == 1
    raised_at = {(frame.file, frame.line) for frame in broke.rank.exception.frames}
    at = next(iter(places))
    failed_there = at is not None and broke.rank.rank in last and (at.file, at.line) in raised_at
    return made_alike and failed_there and len({row.group for row in last.values()}) > 1


def _matters(case: Case) -> bool:
    """Whether a rank waits in a creation, or in a group other than the first: with gloo a mismatch may be harmless."""
    in_creation = bool(case.created.end_s.isna().any())
    return in_creation or any(wait.group != "default_pg" for wait in waits(case))


def _place(same: Table, rank: int) -> Place | None:
    rows = same[same["rank"] == rank]
    return locations.of_text(str(rows.iloc[-1].place)) if len(rows) else None


def _by_members_alone(same: Table, after: Table) -> Table:
    """The creations made by exactly the group's members, which then created what the others had created instead."""
    for members, rows in same.groupby("ranks"):
        made_it = set(rows["rank"].astype(int))
        others = same[~same["rank"].isin(made_it)]
        then = after[after["rank"].isin(made_it)]
        instead, next_ones = (set(zip(f.ranks, f.place, strict=True)) for f in (others, then))
        if made_it == members_of(str(members)) and instead == next_ones and len(instead) == 1:
            return rows
    return same[:0]


def _differ(cell: CellEvidence, number: int, same: Table, asked: dict[int, str], alone: Table) -> Draft:
    """A draft for a group whose members differ between ranks; `alone`: the creations made only by the members."""
    members = tuple(sorted({int(rank) for rank in alone["rank"]}))
    odd = minority(asked, cell.weight)
    # Of two, the one that made a creation of its own is where the line is.
    guilty = odd or members or tuple(sorted(asked))
    blocked = all_but(cell, guilty)
    rows = sorted(asked.items())
    said = "; ".join(f"rank {r}: {who}" for r, who in rows[:6])
    # All ranks have to make the creation that some skipped; the next one is right.
    missed = _place(alone, members[0]) if members and (not odd or set(odd).isdisjoint(members)) else None
    why = f" Only its members create it,{at_line(missed)}; all ranks have to." if missed else ""
    peers_at = None
    if blocked:
        peers_at = locations.of_rank_now(cell.rank(blocked[0])) if missed else _place(same, blocked[0])
    made = {r: f"created group {number} with ranks {who}{at_line(_place(same, r))}" for r, who in rows[:8]}
    return Draft(
        strength=Strength.STRONG if len(guilty) < len(asked) else Strength.LIKELY,
        summary=f"The ranks disagree on the members of process group {number} ({said}).{why}",
        guilty_ranks=guilty,
        at=missed or _place(same, guilty[0]) or locations.of_rank_now(cell.rank(guilty[0])),
        peers_at=peers_at,
        evidence=recorded(cell, made),
    )


def _in_a_cycle(case: Case) -> Iterator[Draft]:
    """Groups created only by their members, in orders that conflict."""
    created = local_creations(case)
    for cycle in creation_cycles(created):
        guilty = at_odds(created, cycle)
        waits_for = {r: these(created[r].absent) for r in cycle}
        said = "; ".join(
            f"rank {r} creates the group of ranks {created[r].ranks} and waits for {waits_for[r]}"
            for r in cycle[:6]
        )
        here = order_of(Context(case), cycle) or created[guilty[0]].place
        began = {
            r: f"began to create the group of ranks {created[r].ranks}{at_line(created[r].place)} and did not finish; {waits_for[r]} never called it"
            for r in cycle[:8]
        }
        yield Draft(
            strength=Strength.STRONG,
            summary=f"{named(case.cell, cycle).capitalize()} wait for each other while creating different process groups: {said}.",
            guilty_ranks=guilty,
            at=here or locations.of_rank_now(case.cell.rank(guilty[0])),
            peers_at=line_of(case, all_but(case.cell, guilty)[:1]),
            evidence=recorded(case.cell, began),
            fix=FIX_LOCAL,
        )


def _crossed(case: Case) -> Iterator[Draft]:
    """Groups of the same members, created at one line in another order on some ranks.

    Ranks then make the same call at the same line, each in a group that its peers know under another name.
    """
    open_calls = [(wait, rank) for wait in waits(case) for rank in wait.waiting]
    asked = {
        (call.op, repr(call.sizes), wait.issued_at(case.cell, rank))
        for wait, rank in open_calls
        for call in [wait.collective(rank)]
    }
    groups = {w.group: frozenset((*w.waiting, *w.missing, *w.completed)) for w, _ in open_calls}
    if len(groups) < 2 or len(asked) > 1 or len({*groups.values()}) > 1:
        return
    # As many by each rank as there are groups in which somebody waits.
    made = Counter(zip(map(str, case.created["place"]), map(int, case.created["rank"]), strict=True))
    place = next((at for (at, _), times in made.items() if times >= len(groups)), None)
    if place is None:
        return
    cycle = tuple(sorted({rank for _, rank in open_calls}))
    said = "; ".join(f"rank {rank} in group {wait.group}" for wait, rank in open_calls[:6])
    at = locations.of_text(place)
    yield Draft(
        strength=Strength.STRONG,
        summary=f"{named(case.cell, cycle).capitalize()} make the same call in different groups of the same members ({said}), which all were created{at_line(at)}: in another order on each of them.",
        guilty_ranks=cycle,
        at=at,
        peers_at=line_of(case, cycle[:1]),
        evidence={
            f"rank {rank} waits in {wait.collective(rank).op} #{wait.seq} of group {wait.group}": wait.source(
                case.cell, rank
            )
            for wait, rank in open_calls[:8]
        },
    )


def _of_ranks(members: str) -> str:
    return "of all ranks" if members == "all" else f"of ranks {members}"


def _alone(case: Case, created: Table) -> Iterator[Draft]:
    """Ranks that are blocked in creating a group, while the others wait for them elsewhere."""
    unfinished = created[created.end_s.isna()]
    inside = tuple(sorted({int(rank) for rank in unfinished["rank"]}))
    outside = {rank: state for rank, state in sorted(case.thread_states.items()) if rank not in inside}
    waiting = [s.waits_for_peers or s.doing == "backward" for s in outside.values()]
    # Another one in a rendezvous is creating another group, or the first one.
    if (
        not inside
        or not outside
        or not all(waiting)
        or any(s.doing == "rendezvous" for s in outside.values())
    ):
        return
    guilty, blocked = (tuple(outside), inside) if len(outside) < len(inside) else (inside, tuple(outside))
    group = _of_ranks(str(unfinished.iloc[0]["ranks"]))
    did = f"began {unfinished.iloc[0]['op']} {group} and did not finish"
    yield Draft(
        strength=Strength.STRONG,
        summary=f"{named(case.cell, inside).capitalize()} {are(inside)} creating a process group {group}, and {named(case.cell, outside)} {'does' if len(outside) == 1 else 'do'} not create it: they wait for each other.",
        guilty_ranks=guilty,
        blocked_ranks=blocked,
        at=_place(unfinished, guilty[0]) or line_of(case, guilty[:1]),
        peers_at=line_of(case, blocked[:1]),
        evidence={
            **recorded(case.cell, dict.fromkeys(inside[:4], did)),
            **{
                f"rank {r} waits in {state.event or state.doing}": f"{state.source}/py_spy.json"
                for r, state in [*outside.items()][:4]
            },
        },
    )


RULE = Rule(
    means={
        "process_group_mismatch": "Process groups were created by some ranks only, in another order, or with other members."
    },
    family="structure",
    detected="The nth group creation has other members on some ranks; or some ranks are in a creation while the others wait for them elsewhere. Creations that involve only their members (`use_local_synchronization`) may differ, unless ranks wait for each other in a cycle of them. If only its members created a group, `where` is the line that created it.",
    fix="Creating a group is a collective of the whole world: let every rank call new_group (or init_device_mesh) for every group, in one order, also for groups that it is not in; or pass use_local_synchronization=True and call it on the members only.",
    check=process_group_mismatch,
    needs=("black_boxes",),
    explained_by=("collective_args_mismatch",),
    confused_with=("missing_rank", "rendezvous_mismatch"),
)
