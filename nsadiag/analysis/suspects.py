"""Of ranks that disagree, which one strayed: the minority, or whoever does what it never did before."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from nsadiag.analysis.disagreement import Disagreement, minority
from nsadiag.evidence.blackbox import Kind, Phase

if TYPE_CHECKING:
    from nsadiag.analysis.tables import Tables

CALLS = (Kind.COLLECTIVE, Kind.BACKWARD, Kind.FORWARD)
ARGUMENTS = ["op", "root", "tensors", "splits"]


def suspects(tables: Tables, one: Disagreement) -> tuple[tuple[int, ...], str]:
    """Ranks, and for a sentence why they and not the others; all ranks where nothing tells."""
    ranks = tuple(sorted(one.asked))
    if one.kind == "splits":
        return _most_at_odds({r: int(a.key[0]) for r, a in one.asked.items()})
    few = minority({rank: asked.key for rank, asked in one.asked.items()}, tables.cell.weight)
    if few:
        return few, "the minority"
    if one.kind != "operation":
        changed = tuple(r for r in ranks if has_changed(tables, r, one))
        if 0 < len(changed) < len(ranks):
            return changed, "asking for what it never asked for at this line, while its peers repeat theirs"
    return strayed(tables, ranks)


def strayed(tables: Tables, ranks: tuple[int, ...]) -> tuple[tuple[int, ...], str]:
    """By the lines at which they stand."""
    new = tuple(r for r in ranks if is_at_a_new_place(tables, r))
    if 0 < len(new) < len(ranks):
        return new, "at a line it had not been at before, while its peers repeat theirs"
    turned = tuple(r for r in ranks if took_a_new_turn(tables, r))
    if 0 < len(turned) < len(ranks):
        return turned, "where its path never led before, while its peers follow theirs"
    return ranks, "no majority, and no rank that left its path"


def _most_at_odds(wrong: dict[int, int]) -> tuple[tuple[int, ...], str]:
    most = max(wrong.values())
    return tuple(
        sorted(r for r, n in wrong.items() if n == most)
    ), "the one that most of its peers disagree with"


def _path(tables: Tables, rank: int) -> list[str]:
    """The lines from which the rank's main thread called, in order."""
    events = tables.events
    mine = events[(events["rank"] == rank) & (events.phase == Phase.BEGIN) & (events.place != "")]
    mine = mine[mine.kind.isin(CALLS) & ~mine.name.str.startswith("store.")]
    return [str(place) for place in mine.place]


def is_at_a_new_place(tables: Tables, rank: int) -> bool:
    """Whether the rank had never before called from the line it now stands at: it has left the common path."""
    path = _path(tables, rank)
    return len(path) > 1 and path.count(path[-1]) == 1


def took_a_new_turn(tables: Tables, rank: int) -> bool:
    """Whether it never before came to this line from the one before."""
    path = _path(tables, rank)
    turns = list(itertools.pairwise(path))
    return len(turns) > 1 and turns.count(turns[-1]) == 1


def _earlier(
    tables: Tables, rank: int, one: Disagreement
) -> tuple[tuple[Any, ...] | None, set[tuple[Any, ...]]]:
    """What the rank asks for now, and what it asked for before at this line."""
    rows = tables.asked[(tables.asked["rank"] == rank) & (tables.asked.group == one.group)]
    now = rows[rows.call == one.call]
    if one.recorded or now.empty:
        return None, set()
    before = rows[(rows.call < one.call) & (rows.place == now.iloc[-1].place)]
    asked = {tuple(map(str, row)) for row in before[ARGUMENTS].itertuples(index=False)}
    return tuple(map(str, now.iloc[-1][ARGUMENTS])), asked


def has_changed(tables: Tables, rank: int, one: Disagreement) -> bool:
    """Whether the rank called from this line before, and never so."""
    now, before = _earlier(tables, rank, one)
    return now is not None and bool(before) and now not in before


def is_out_of_order(tables: Tables, one: Disagreement) -> bool:
    """Whether the ranks are at different calls of the program, and do not only ask otherwise in the same one."""
    if one.kind == "operation":
        return True
    if len(one.places) > 1:
        return not _are_partners(tables, one)
    known = [_earlier(tables, rank, one) for rank in one.asked]
    # From this line everyone has issued both before: a loop over what is ordered otherwise.
    return all(now is not None and all(other in before for other, _ in known) for now, before in known)


def _are_partners(tables: Tables, one: Disagreement) -> bool:
    """Whether calls from these lines belong together: a root has a line of its own in much code."""
    op = next(iter(one.asked.values())).op
    rooted = op.startswith(("broadcast", "scatter", "gather", "reduce")) and not op.startswith(
        "reduce_scatter"
    )
    now = {rank: place for rank, place in _places_at(tables, one, one.call).items() if place}
    if len(now) < len(one.asked):
        return False
    rows = tables.asked[(tables.asked.group == one.group) & (tables.asked.call < one.call)]
    if any(_places_at(tables, one, int(call)) == now for call in rows.call.unique()):
        return True
    visited = {rank: set(rows[rows["rank"] == rank].place) for rank in now}
    shared = all(place in visited[rank] for rank in now for place in now.values())
    return rooted and not shared


def _places_at(tables: Tables, one: Disagreement, call: int) -> dict[int, str]:
    rows = tables.asked[(tables.asked.group == one.group) & (tables.asked.call == call)]
    return {int(rank): str(place) for rank, place in rows[["rank", "place"]].itertuples(index=False)}
