"""Claims of a matrix's spec: confirmed, refuted, or not tested, with the cells behind each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from nsadiag.analysis.matrix.criteria import Document, Judged, Repeats, judge_pair, judge_phase, judge_shape

TRIALS_TOLD = 2


def settle(claims: Sequence[Document], matrix: Document) -> list[Document]:
    """Each claim with its status.

    A claim holds `trials`: by setting the ids of the cells that share everything else. `confirmed` and
    `refuted` need every trial that counts to say the same; `depends` is neither. `not settled`: repeats of the
    same cell contradict each other. `not tested`: nothing counts.
    """
    cells = {str(cell.get("id")): cell for cell in matrix.get("cells", ())}
    parity = [row for row in matrix.get("parity") or () if isinstance(row, Mapping)]
    return [_settled(claim, cells, parity) for claim in claims]


def _settled(claim: Document, cells: Mapping[str, Document], parity: Sequence[Document]) -> Document:
    if claim.get("not_tested"):
        return {**claim, "status": "not tested", "because": claim["not_tested"], "trials": [], "cells": []}
    trials = [
        {**trial, "vary": list(sides), "holds": judged.holds, "flaky": judged.flaky, "why": judged.why}
        for trial in claim["trials"]
        for sides, judged in _judged(claim, trial, cells, parity)
    ]
    status = _status(trials)
    deciding = [t for t in trials if t["holds"] is not None] or [t for t in trials if t["flaky"]]
    return {
        **claim,
        "status": status,
        "because": _because(status, trials),
        "trials": trials,
        "cells": list(dict.fromkeys(_ids(deciding, cells))),
    }


def _judged(
    claim: Document, trial: Document, cells: Mapping[str, Document], parity: Sequence[Document]
) -> Iterable[tuple[tuple[str, ...], Judged]]:
    """The settings that are compared, and what came of it."""
    criterion = claim["criterion"]
    sides = {
        setting: Repeats(
            name=f"{claim['factor']}={setting}",
            cells=tuple(cells[i] for i in ids if i in cells),
        )
        for setting, ids in trial["cells"].items()
    }
    if criterion["form"] == "shape":
        yield tuple(sides), judge_shape(criterion, list(sides.values()))
    elif criterion["form"] == "stands":
        yield tuple(sides), judge_phase(criterion, next(iter(sides.values())))
    else:
        first, *others = sides
        for other in others:
            yield (first, other), judge_pair(criterion, sides[first], sides[other], parity)


def _status(trials: Sequence[Document]) -> str:
    answers = {t["holds"] for t in trials if t["holds"] is not None}
    if answers == {True, False}:
        return "depends"
    if any(t["flaky"] for t in trials):
        return "not settled"
    if not answers:
        return "not tested"
    return "confirmed" if answers == {True} else "refuted"


def _because(status: str, trials: Sequence[Document]) -> str:
    if not trials:
        return "its cells were not run"
    if status == "not settled":
        flaky = next(t for t in trials if t["flaky"])
        return f"flaky: {flaky['why']}{_place(flaky, trials)}"
    if status == "depends":
        return f"{_share(trials, True)}; but {_share(trials, False)}"
    if status == "not tested":
        return f"{trials[0]['why']}{_place(trials[0], trials)}"
    told = _share(trials, status == "confirmed")
    void = sum(t["holds"] is None for t in trials)
    return f"{told}; {void} of {len(trials)} comparisons did not count" if void else told


def _share(trials: Sequence[Document], holds: bool) -> str:
    """The first few comparisons with this answer, in words."""
    alike = [t for t in trials if t["holds"] is holds]
    told = "; ".join(f"{t['why']}{_place(t, trials)}" for t in alike[:TRIALS_TOLD])
    more = len(alike) - TRIALS_TOLD
    return f"{told}; and so in {more} more" if more > 0 else told


def _place(trial: Document, trials: Sequence[Document]) -> str:
    """The settings in which this trial's surroundings differ from the other trials'."""
    varied = {
        name: value
        for name, value in trial["context"].items()
        if any(other["context"].get(name) != value for other in trials)
    }
    return f" [{', '.join(f'{name}={value}' for name, value in varied.items())}]" if varied else ""


def _ids(trials: Iterable[Document], cells: Mapping[str, Document]) -> Iterable[str]:
    for trial in trials:
        for setting in trial["vary"]:
            yield from (i for i in trial["cells"][setting] if i in cells)
