"""Covering arrays: few cells in which the settings of any two (or more) factors meet at least once.

Greedy, one cell at a time, as AETG does (Cohen et al., 1997): each begins with what is not covered yet and
takes the settings that cover most. It needs more cells than the best array known, by a tenth or so, but
knows what is left out, starts from the cells that are run anyway, and always gives the same array.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

from nsadiag.errors import UsageError
from nsadiag.spec.space import Factors, Space

Meeting = tuple[tuple[str, str], ...]  # some factors with a setting each, in the order of the axes


def covering_array(room: Space, strength: int, given: Sequence[Mapping[str, str]] = ()) -> list[Factors]:
    """Cells beyond the given ones, so that all settings of any `strength` factors that may meet, do."""
    if strength > len(room.axes):
        raise UsageError(
            f"strength is {strength}, and there are {len(room.axes)} axes",
            "give 2, or as many as axes at most",
        )
    missing = dict.fromkeys(_possible(room, strength))
    for cell in given:
        _cover(missing, cell, strength)
    found = []
    while missing:
        cell = _next_cell(room, missing, strength)
        _cover(missing, cell, strength)
        found.append(cell)
    return found


def _possible(room: Space, strength: int) -> Iterable[Meeting]:
    """Every meeting that some allowed cell has."""
    for names in itertools.combinations(room.axes, strength):
        for values in itertools.product(*(room.axes[name] for name in names)):
            meeting = tuple(zip(names, values, strict=True))
            if _completed(room, dict(meeting), {}) is not None:
                yield meeting


def _cover(missing: dict[Meeting, None], cell: Mapping[str, str], strength: int) -> None:
    for names in itertools.combinations(cell, strength):
        missing.pop(tuple((name, cell[name]) for name in names), None)


def _next_cell(room: Space, missing: Mapping[Meeting, None], strength: int) -> Factors:
    cell = _completed(room, dict(next(iter(missing))), missing)
    assert cell is not None, "a meeting is missing only if some cell has it"
    return {name: cell[name] for name in room.axes}


def _completed(room: Space, partial: Factors, missing: Mapping[Meeting, None]) -> Factors | None:
    """An allowed cell with these settings that covers much of what is missing; None where there is no such cell."""
    if not room.allows(partial):
        return None
    name = next((n for n in room.axes if n not in partial), None)
    if name is None:
        return partial
    order = sorted(room.axes[name], key=lambda value: -_gain(partial, (name, value), missing))
    for value in order:
        cell = _completed(room, {**partial, name: value}, missing)
        if cell is not None:
            return cell
    return None


def _gain(partial: Factors, setting: tuple[str, str], missing: Mapping[Meeting, None]) -> int:
    """The number of uncovered combinations that agree with the cell so far and have this setting."""
    return sum(
        setting in meeting
        and all(partial.get(name, value) == value for name, value in meeting if name != setting[0])
        for meeting in missing
    )
