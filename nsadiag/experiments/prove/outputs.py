"""The first module in the one process's order whose output is another on some rank, for the samples that the rank was given."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from nsadiag.experiments.prove.record import Array, Rank, Run

TOLERATED = {"float64": 1e-9, "float32": 1e-4, "tf32": 1e-2, "float16": 2e-2, "bfloat16": 6e-2}


@dataclass(frozen=True, kw_only=True)
class Output:
    """The output of one module on one rank, beside the one process's for the same samples."""

    module: str
    rank: int
    mine: Array = field(repr=False)
    other: Array = field(repr=False)
    relative: float


def first_output(ranks: Run, alone: Run, step: int, precision: str) -> Output | None:
    """None where all agree, or none can be compared: modules that put out no row a sample are passed over."""
    one = alone.ranks[0]
    known = {row: n for n, row in enumerate(_samples(one, step))}
    theirs = _outputs(one, step, len(_samples(one, step)))
    found: dict[str, Output] = {}
    for rank in ranks.ranks:
        mine = _samples(rank, step)
        if not mine or not all(row in known for row in mine):
            continue
        places = [known[row] for row in mine]
        for module, value in _outputs(rank, step, len(mine)).items():
            whole = theirs.get(module)
            if whole is None or whole.shape[1:] != value.shape[1:] or module in found:
                continue
            other = whole[places]
            size = float(np.linalg.norm(other))
            relative = float(np.linalg.norm(value - other)) / size if size else 0.0
            if relative > TOLERATED[precision]:
                found[module] = Output(module=module, rank=rank.number, mine=value, other=other, relative=relative)  # fmt: skip
    return next((found[module] for module in theirs if module in found), None)


def _samples(rank: Rank, step: int) -> list[bytes]:
    """Rows of the first argument, over all calls."""
    rows = [row for row in rank.rows("given", step) if row.argument == 0]
    tensors = [rank.tensor(row) for row in rows]
    return [np.ascontiguousarray(piece).tobytes() for t in tensors if t.ndim for piece in t]


def _outputs(rank: Rank, step: int, samples: int) -> dict[str, Array]:
    """By module: its first output over all calls, where that has a row for each sample."""
    found: dict[str, list[Array]] = defaultdict(list)
    for row in rank.rows("output", step):
        if row.argument == 0 and row.local:
            found[row.name].append(rank.numbers(row))
    joined = {n: np.concatenate(t) for n, t in found.items() if len({each.shape[1:] for each in t}) == 1}
    return {name: value for name, value in joined.items() if len(value) == samples}
