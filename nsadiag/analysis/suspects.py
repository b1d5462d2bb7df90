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
    return _strayed(tables, one)


def _strayed(tables: Tables, one: Disagreement) -> tuple[tuple[int, ...], str]:
    """By the lines from which they called it: some may have got further since."""
    ranks = tuple(sorted(one.asked))
    paths = {
        r: [_path(tables, r, _begun(tables, one, r), arguments=more) for more in (False, True)] for r in ranks
    }
    new = tuple(r for r in ranks if _is_at_a_new_place(paths[r][0]))
    if 0 < len(new) < len(ranks):
        return new, "at a line it had not been at before, while its peers repeat theirs"
    for more in (False, True):
        turned = tuple(r for r in ranks if _took_a_new_turn(paths[r][more]))
        if 0 < len(turned) < len(ranks):
            return turned, "where its path never led before, while its peers follow theirs"
    return ranks, "no majority, and no rank that left its path"


def _most_at_odds(wrong: dict[int, int]) -> tuple[tuple[int, ...], str]:
    most = max(wrong.values())
    return tuple(
        sorted(r for r, n in wrong.items() if n == most)
    ), "the one that most of its peers disagree with"


def _begun(tables: Tables, one: Disagreement, rank: int) -> float:
    """When the rank made the call; of one that only the recorder tells of, it is at the newest."""
    rows = tables.asked[(tables.asked["rank"] == rank) & (tables.asked.group == one.group)]
    begun = rows.loc[rows.call == one.call, "begin_s"]
    return float("inf") if one.recorded or begun.empty or begun.isna().all() else float(begun.iloc[-1])


def _path(tables: Tables, rank: int, until_s: float = float("inf"), *, arguments: bool = False) -> list[str]:
    """The lines from which the rank's main thread called, in order; with what it gave, if asked for."""
    events = tables.events
    mine = events[(events["rank"] == rank) & (events.phase == Phase.BEGIN) & (events.place != "")]
    mine = mine[mine.kind.isin(CALLS) & ~mine.name.str.startswith("store.")]
    mine = mine if until_s == float("inf") else mine[mine.t_s <= until_s]
    return [str(place) for place in (mine.place + "\t" + mine.detail if arguments else mine.place)]


def _is_at_a_new_place(path: list[str]) -> bool:
    """Whether the rank had never before called from the line it is at: it has left the common path."""
    return len(path) > 1 and path.count(path[-1]) == 1


def took_new_turns(tables: Tables, ranks: tuple[int, ...]) -> tuple[int, ...]:
    """Who came to the line at which it stands from the one before as none of them ever did in what is over."""
    turns = {rank: list(itertools.pairwise(_path(tables, rank))) for rank in ranks}
    before = {turn for taken in turns.values() for turn in taken[:-1]}
    return tuple(r for r, taken in turns.items() if len(taken) > 1 and taken[-1] not in before)


def _took_a_new_turn(path: list[str]) -> bool:
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
