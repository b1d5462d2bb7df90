"""A part of the model that nobody gave to DDP, on evidence written as ranks write it."""

from pathlib import Path
from typing import Any

import pytest

from nsadiag.analysis.case import Case
from nsadiag.analysis.load import load_cell
from nsadiag.analysis.rules.correctness.replicas.replica_drift import _beside_the_wrapper, _held_by_ddp
from nsadiag.evidence.layout import RunDir, append_json_line, make_private_dir, write_json


def drifts(path: Path, names: list[str], heads: dict[int, list[float]]) -> Any:
    """Of ranks that have the encoder in DDP, whose other parameter had these sums after steps 0, 1, 2."""
    run = RunDir(path=path)
    for rank, sums in heads.items():
        make_private_dir(run.rank(rank).path)
        write_json(run.rank(rank).meta, {"rank": rank, "world_size": 2, "pid": 100 + rank})
        write_json(run.rank(rank).ddp, [{"parameters": [{"name": "weight", "shape": [4], "dtype": "float32", "qualified": "encoder.weight"}], "ranks": [0, 1]}])  # fmt: skip
        for step, head in enumerate(sums):
            each = [[names[0], [4], float(step), 8.0], [names[1], [4], head, 8.0]]
            append_json_line(run.rank(rank).replicas, {"step": step, "elements": 8, "parameters": each})
    cell = load_cell(path)
    found = _beside_the_wrapper(Case(cell), _held_by_ddp(cell))
    return next((draft.where for draft in found), None)


def test_what_is_trained_beside_ddp_is_told(tmp_path: Path) -> None:
    found = drifts(tmp_path, ["encoder.weight", "head.weight"], {0: [1.0, 2.0, 3.0], 1: [1.0, 2.5, 3.5]})
    assert found is not None and (found.parameter, found.step) == ("head.weight", 1)


@pytest.mark.parametrize(
    ("names", "second"),
    [
        # Kept equal by hand; each rank's own from the start; DDP's own by another name; of no name.
        (["encoder.weight", "head.weight"], [1.0, 2.0, 3.0]),
        (["encoder.weight", "head.weight"], [7.0, 2.5, 3.5]),
        (["encoder.weight", "weight"], [1.0, 2.5, 3.5]),
        (["encoder.weight", "parameter 1"], [1.0, 2.5, 3.5]),
    ],
)
def test_what_may_be_meant_is_not(tmp_path: Path, names: list[str], second: list[float]) -> None:
    assert drifts(tmp_path, names, {0: [1.0, 2.0, 3.0], 1: second}) is None
