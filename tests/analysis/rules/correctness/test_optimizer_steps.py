"""Replicas that part as one of them leaves out an optimizer step, from black boxes written by hand."""

from __future__ import annotations

from pathlib import Path

from nsadiag.analysis.case import Case
from nsadiag.analysis.load import load_cell
from nsadiag.analysis.rules.correctness.replicas.optimizer_steps import SkippedStep, skipped_step
from nsadiag.evidence.layout import RunDir, make_private_dir, write_json
from nsadiag.evidence.ring.blackbox import BlackBox, Kind, Phase

SCRIPT = """
for x, y in loader:
    loss = loss_fn(model(x), y)
    loss.backward()
    if guard.is_spike(loss.item()):
        continue
    if step % 4:
        log(loss)
    opt.step()
    scheduler.step()
"""


def found(
    path: Path, *made: list[int], until: int = 8, script: str = SCRIPT, scaled: bool = False
) -> SkippedStep | None:
    """Of ranks that made so many steps after each backward, through a gradient scaler."""
    path.mkdir(exist_ok=True)
    (path / "train.py").write_text(script)
    run = RunDir(path=path / "run")
    make_private_dir(run.path)
    for number, steps in enumerate(made):
        rank = run.rank(number)
        make_private_dir(rank.path)
        write_json(rank.meta, {"rank": number, "world_size": len(made)})
        box = BlackBox(rank.blackbox, rank=number, world_size=len(made))
        names = box.names
        for count in steps:
            for at, kind in ((3, Kind.FORWARD), (4, Kind.BACKWARD)):
                box.emit(kind, Phase.BEGIN, names("Net"), 0, 0, names(f"\t{path}/train.py:{at}:main"))
            if scaled:
                box.emit(Kind.SCALER, Phase.BEGIN, names("Adam"), 0, 0, names(f"\t{path}/train.py:9:main"))
            for _ in range(count):
                box.step += 1
                box.emit(Kind.STEP, Phase.POINT, 0, box.step)
            if scaled:
                box.emit(Kind.SCALER, Phase.END, names("Adam"), 0 if count else 1)
    cell = load_cell(run.path)
    return skipped_step(Case(cell), until)


def test_the_rank_that_leaves_out_a_step_is_told_with_the_condition(tmp_path: Path) -> None:
    one = found(tmp_path, [1, 1, 1, 1, 1], [1, 1, 0, 1, 1])
    assert one and (one.backward, one.ranks, one.made, one.usual) == (3, (1,), 0, 1)
    assert one.place and one.place.line == 5


def test_of_two_conditions_that_may_have_led_past_the_step_neither_is_named(tmp_path: Path) -> None:
    two = SCRIPT.replace("    if step % 4", "    if bad(y):\n        continue\n    if step % 4")
    one = found(tmp_path, [1, 1, 1], [1, 0, 1], script=two)
    assert one and one.ranks == (1,) and one.place is None


def test_a_scaler_that_leaves_out_its_own_ranks_step_is_told_with_its_line(tmp_path: Path) -> None:
    one = found(tmp_path / "one", [1, 1, 1, 1, 1], [1, 1, 0, 1, 1], scaled=True)
    assert one and one.place and (one.ranks, one.place.line) == ((1,), 9)
    assert "scaler of rank 1 skipped" in one.says("1") and "unscale_" in one.fix
    # While they look for their scale all leave out steps together, as they do where they agree.
    late = found(tmp_path / "late", [0, 1, 1, 1, 0, 1], [0, 1, 1, 1, 1, 1], scaled=True)
    assert late and (late.ranks, late.backward) == ((0,), 5)
    assert found(tmp_path / "together", [0, 1, 0, 1, 1], [0, 1, 0, 1, 1], scaled=True) is None
    assert found(tmp_path / "no scaler", [0, 1, 1, 1, 0, 1], [0, 1, 1, 1, 1, 1]) is None


def test_nobody_is_named_where_steps_tell_nothing(tmp_path: Path) -> None:
    assert found(tmp_path / "together", [1, 0, 1, 1], [1, 0, 1, 1]) is None
    assert found(tmp_path / "accumulates", [0, 1, 0, 1, 0], [0, 1, 1, 0, 0]) is None
    assert found(tmp_path / "from the start", [1, 1, 1], [0, 1, 1]) is None
    assert found(tmp_path / "cut off", [1, 1, 1], [1, 1, 0]) is None
    assert found(tmp_path / "after they had parted", [1, 1, 1, 1], [1, 1, 0, 1], until=2) is None
