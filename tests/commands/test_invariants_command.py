"""`nsadiag invariants`: kept from a good run, and checked against a later one, also on another number of ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from nsadiag.cli import app
from nsadiag.evidence.layout import RunDir, append_json_line, make_private_dir, write_json


def recorded(path: Path, ranks: int, order: tuple[str, ...] = ("clip", "step"), drifts: bool = False) -> Path:
    """A run whose ranks keep a weight equal, and a head of their own each."""
    run = RunDir(path=path)
    for rank in range(ranks):
        directory = run.rank(rank)
        make_private_dir(directory.path)
        write_json(directory.meta, {"rank": rank, "world_size": ranks, "pid": 100 + rank})
        for step in range(6):
            weight = 10 + step + (rank if drifts and step > 2 else 0)
            head = 500 + 7 * step + 100 * rank
            values = [["a.weight", [40], weight, 1.5 + weight, 50.0], ["head", [40], head, 0.5 * head, 900.0]]
            stepped: dict[str, Any] = {"optimizer": 0, "name": "SGD", "settings": ["lr=0.1 momentum=0.9"]}
            kinds = ("forward", "backward", *order)
            operations = [
                {"kind": kind, **(stepped | {"values": values} if kind == "step" else {})} for kind in kinds
            ]
            append_json_line(directory.invariants, {"step": step, "operations": operations})
    return path


def checked(run: Path, kept: Path) -> tuple[int, dict[str, Any]]:
    """The exit code, and what is broken, by name."""
    done = CliRunner().invoke(app, ["invariants", str(run), "--against", str(kept), "--json"])
    return done.exit_code, {row["fact"]: row for row in json.loads(done.stdout)["broken"]}


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    done = CliRunner().invoke(app, ["invariants", str(recorded(tmp_path / "good", 2))])
    assert done.exit_code == 0, done.output
    (tmp_path / "good.json").write_text(done.stdout)
    return tmp_path / "good.json"


def test_facts_name_what_is_equal_and_what_is_each_ranks_own(kept: Path) -> None:
    facts = json.loads(kept.read_text())["facts"]
    assert facts["copies of a.weight"] == "equal"
    assert facts["copies of head"] == "each rank's own"
    assert facts["operations of a step"] == ["forward", "backward", "clip", "step SGD"]


def test_a_run_on_more_ranks_that_keeps_them_breaks_none(kept: Path, tmp_path: Path) -> None:
    assert checked(recorded(tmp_path / "later", 3), kept) == (0, {})


def test_another_order_and_a_copy_that_drifts_are_broken_invariants(kept: Path, tmp_path: Path) -> None:
    code, found = checked(recorded(tmp_path / "later", 3, order=("step", "clip"), drifts=True), kept)
    assert code == 1
    assert set(found) == {"operations of a step", "copies of a.weight"}
    assert (found["copies of a.weight"]["kept"], found["copies of a.weight"]["found"]) == ("equal", "drift")


def test_what_holds_no_invariants_is_refused(tmp_path: Path) -> None:
    run = recorded(tmp_path / "later", 2)
    (tmp_path / "other.json").write_text("{}")
    done = CliRunner().invoke(app, ["invariants", str(run), "--against", str(tmp_path / "other.json")])
    assert done.exit_code != 0
    assert "holds no invariants" in str(done.exception)
