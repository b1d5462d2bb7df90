"""The line of a difference: what the ranks show among themselves, else what the step does between the last that is right and the first that is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.load import load_cell
from nsadiag.analysis.relations.invariants.operations import couples, reduces_gradients, steps_of
from nsadiag.analysis.verdict import judge
from nsadiag.evidence.documents.operations import Operation
from nsadiag.evidence.records import Place
from nsadiag.evidence.rehearsal.proof import Kept
from nsadiag.experiments.prove.cause import LEAVES_OUT
from nsadiag.experiments.prove.compare import Proof
from nsadiag.experiments.prove.factors import common_factor
from nsadiag.experiments.prove.record import Run
from nsadiag.source.patterns.gradient_cuts import gradient_scaling
from nsadiag.source.patterns.single_call import given_first
from nsadiag.source.ways.chosen import chosen_by

KINDS = {"rate": "schedule", "update": "optimizer", "start": "model"}  # of states, by what differs first
INFERRED = "the line is inferred, from the step's operations and the sources"


def with_line(
    told: dict[str, Any], proof: Proof, directory: Path, line: tuple[str, str] | None = None
) -> dict[str, Any]:
    """The changes that a better line makes in the document; nothing where none is known. `directory`: the ranks' run."""
    if line is not None:
        at = locations.of_text(line[0])
        chosen = (
            chosen_by(load_cell(directory).code, at.file, at.line)
            if at is not None and line[1].startswith(LEAVES_OUT)
            else None
        )
        return {"place": _text(chosen) if chosen else line[0], "claims": [*told["claims"], line[1]]}
    cell = load_cell(directory)
    own = judge(cell) if told["control"] == "one process" else None
    if own is not None and own.outcome == "wrong" and own.where is not None and own.where.file:
        at = Place(file=own.where.file, line=own.where.line or 0, function=own.where.function)
        says = f"among the ranks: {own.summary}"
        return {"place": _text(at), "fix": own.fix or told["fix"], "claims": [*told["claims"], says]}
    found = _after(proof, Case(cell), Run(directory)) if proof.after else _within(proof, Case(cell))
    return {"place": _text(found), "claims": [*told["claims"], INFERRED]} if found else {}


def _text(at: Place) -> str:
    return f"{at.file}:{at.line}:{at.function or ''}"


def _after(proof: Proof, case: Case, run: Run) -> Place | None:
    """After a restart: the line that reads data, where they are others; else the one that makes what is saved."""
    if proof.what == "data":
        asked = [loader.place for rank in case.cell.ranks for loader in rank.loaders]
        return locations.of_text(asked[0]) if asked else None
    saved = [row for rank in run.ranks for row in rank.all_of("saved") if row.place]
    again = [rank.all_of("put") for rank in Run(run.directory / "proof" / "again").ranks]
    if found := _put_back(KINDS.get(str(proof.what), ""), saved, again):
        return locations.of_text(found)
    return given_first(case.cell.code, locations.of_text(saved[0].place)) if saved else None


def _put_back(kind: str, saved: list[Kept], again: list[list[Kept]]) -> str:
    """The line that reads what comes back otherwise; where it is saved and not put back, the last that puts others back."""
    puts = next((rows for rows in again if rows), [])
    at = next((n for n, row in enumerate(puts) if row.name == kind), None)
    if at is not None:
        files = [row.place for row in puts[:at] if row.name == "file"]
        return files[-1] if files else puts[at].place
    is_saved = any(kind in row.notes for row in saved)
    return puts[-1].place if puts and is_saved else ""


def _within(proof: Proof, case: Case) -> Place | None:
    """The operations of a step."""
    if not proof.pairs or proof.rates is not None:
        return None
    if proof.output is not None or proof.what != "gradient":
        return None
    return _in_backward(case) if proof.at_backward else _behind_backward(proof, case)


def _behind_backward(proof: Proof, case: Case) -> Place | None:
    """The line that does something to gradients before the optimizer uses them: that which scales them, else the last that clips or reduces them."""
    factor = common_factor(proof.differing)
    scaling = gradient_scaling(case.cell.code, 1 / factor if factor else 0.0)
    if scaling is not None:
        return scaling
    done = [o for o in _operations(case) if o.kind == "clip" or reduces_gradients(o)]
    return locations.of_text(done[-1].place) if done else None


def _in_backward(case: Case) -> Place | None:
    """A collective of forward: what it returns carries no gradient."""
    plain = [o for o in _operations(case) if couples(o) and not o.inside]
    return locations.of_text(plain[0].place) if plain else None


def _operations(case: Case) -> list[Operation]:
    """Those of the first step that is recorded, on the first rank."""
    steps = steps_of(case)
    return list(next(iter(steps[0].ranks.values()))) if steps else []
