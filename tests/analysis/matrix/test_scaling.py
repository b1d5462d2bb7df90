"""The cost model: what it foretells, how sure it says that it is, and which cells it calls far off."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsadiag.analysis.matrix.scaling.axes import effort, sizes_in
from nsadiag.analysis.matrix.scaling.model import fit_model
from nsadiag.analysis.matrix.scaling.points import Point, point_of
from nsadiag.analysis.matrix.scaling.summary import summary

LAYERS, KINDS, PARALLEL = (1, 2, 4, 5), ("none", "reentrant", "other"), ("single", "ddp", "fsdp")
SLOWER = {"none": 1.0, "reentrant": 1.3, "other": 1.32, "single": 1.0, "ddp": 1.5, "fsdp": 2.1}
Cost = Callable[[Mapping[str, float]], float]


def linear(sizes: Mapping[str, float]) -> float:
    return 0.02 + 0.03 * sizes["layers"]


def measured(cost: Cost, seed: int = 0, noise: float = 0.05, tokens: tuple[int, ...] = (128,)) -> list[Point]:
    """A matrix of 36 cells for each number of tokens, whose other factors make it dearer by a factor."""
    random = np.random.default_rng(seed)
    points = []
    for layers, length, kind, parallel in itertools.product(LAYERS, tokens, KINDS, PARALLEL):
        sizes = {"layers": float(layers), "tokens": float(length), "world_size": 1.0 + (parallel != "single")}
        kinds = {"checkpointing": kind, "parallel": parallel}
        step_s = cost(sizes) * SLOWER[kind] * SLOWER[parallel] * float(np.exp(random.normal(0, noise)))
        name = f"layers={layers},tokens={length},checkpointing={kind},parallel={parallel}"
        points.append(Point(id=name, sizes=sizes, kinds=kinds, measured={"step_s": step_s}))
    return points


def dearer(points: list[Point], cell: str, factor: float) -> list[Point]:
    """The same, and one cell costs so many times as much."""
    assert cell in {p.id for p in points}
    return [
        Point(id=p.id, sizes=p.sizes, kinds=p.kinds, measured={"step_s": p.measured["step_s"] * factor})
        if p.id == cell
        else p
        for p in points
    ]


def point(layers: float, parallel: str = "ddp", tokens: float = 128.0) -> Point:
    kinds = {"checkpointing": "none", "parallel": parallel}
    sizes = {"layers": layers, "tokens": tokens, "world_size": 1.0 + (parallel != "single")}
    return Point(id="asked", sizes=sizes, kinds=kinds)


@pytest.mark.parametrize("seed", range(5))
def test_a_fixed_part_and_a_slope_foretell_a_model_of_three_times_the_depth(seed: int) -> None:
    model = fit_model(measured(linear, seed), "step_s")
    told = model.predict(point(12)) if model else None
    true = linear({"layers": 12}) * SLOWER["ddp"]
    assert told is not None and told.low < true < told.high
    assert told.value == pytest.approx(true, rel=0.2)


@pytest.mark.parametrize("seed", range(5))
def test_powers_of_two_sizes_are_found(seed: int) -> None:
    def cost(sizes: Mapping[str, float]) -> float:
        return 1e-6 * sizes["layers"] * sizes["tokens"] ** 2

    found = summary(measured(cost, seed, tokens=(128, 512)))["measures"]["step_s"]["growth"]
    for size, true in (("layers", 1.0), ("tokens", 2.0)):
        assert found[size]["exponent"] == pytest.approx(true, abs=0.06)
        assert found[size]["low"] < found[size]["exponent"] < found[size]["high"]
        assert found[size]["high"] - found[size]["low"] < 0.2
    assert "world_size" not in found, "ranks and parallel vary together: nobody can tell which of them costs"


def test_a_straight_cost_has_no_threshold() -> None:
    jumps = summary(measured(linear))["measures"]["step_s"]["jumps"]
    assert [(j["axis"], j["from"], j["to"]) for j in jumps] == [
        ("layers", 1, 2),
        ("layers", 2, 4),
        ("layers", 4, 5),
    ]
    assert not any(j["is_jump"] for j in jumps)
    assert jumps[2]["measured"] == pytest.approx(0.17 / 0.14, rel=0.1)


def test_a_cost_that_jumps_at_five_layers_has_one() -> None:
    def cost(sizes: Mapping[str, float]) -> float:
        return linear(sizes) * (4 if sizes["layers"] >= 5 else 1)

    jumps = summary(measured(cost))["measures"]["step_s"]["jumps"]
    assert [j["to"] for j in jumps if j["is_jump"]] == [5]


@pytest.mark.parametrize("noise", [0.05, 0.3])
def test_noise_alone_makes_no_cell_far_off(noise: float) -> None:
    called = [off["id"] for seed in range(15) for off in summary(measured(linear, seed, noise))["offs"]]
    assert called == []


@settings(max_examples=20, deadline=None)
@given(
    cell=st.tuples(st.sampled_from(LAYERS), st.sampled_from(KINDS), st.sampled_from(PARALLEL)),
    factor=st.sampled_from([0.3, 2.5, 20.0]),
    seed=st.integers(0, 1000),
)
def test_a_cell_that_costs_much_more_or_less_is_named_and_no_other(
    cell: tuple[int, str, str], factor: float, seed: int
) -> None:
    name = f"layers={cell[0]},tokens=128,checkpointing={cell[1]},parallel={cell[2]}"
    offs = summary(dearer(measured(linear, seed), name, factor))["offs"]
    assert [off["id"] for off in offs] == [name]
    assert offs[0]["factor"] == pytest.approx(factor, rel=0.35)
    assert (
        offs[0]["predicted"]["low"] < offs[0]["measured"] / offs[0]["factor"] < offs[0]["predicted"]["high"]
    )


def test_of_two_cells_that_alone_share_a_setting_none_is_called_far_off() -> None:
    """Each would be by the other; so it goes where factors are tried one at a time."""
    points = measured(linear, noise=0.1)
    slow = {
        "layers=2,tokens=128,checkpointing=none,parallel=ddp": 0.35,
        "layers=2,tokens=128,checkpointing=other,parallel=ddp": 3.0,
    }
    odd = [
        Point(id=p.id, sizes=p.sizes, kinds={**p.kinds, "anomaly_mode": "on" if p.id in slow else "off"},
              measured={"step_s": p.measured["step_s"] * slow.get(p.id, 1.0)})
        for p in points
    ]  # fmt: skip
    assert summary(odd)["offs"] == []


def test_nine_of_ten_cells_lie_in_their_interval() -> None:
    rows = [
        row
        for seed in range(8)
        for row in summary(measured(linear, seed, 0.1))["measures"]["step_s"]["points"]
    ]
    inside = [row["predicted"]["low"] <= row["measured"] <= row["predicted"]["high"] for row in rows]
    assert 0.8 < sum(inside) / len(inside) < 0.99


def test_nothing_is_foretold_of_what_was_never_measured() -> None:
    points = measured(linear)
    shallow = fit_model([p for p in points if p.sizes["layers"] == 1], "step_s")
    assert shallow is not None and shallow.predict(point(2)) is None, "one depth says nothing of another"
    assert shallow.predict(point(1)) is not None
    model = fit_model([p for p in points if p.kinds["parallel"] != "fsdp"], "step_s")
    assert model is not None and model.predict(point(2, "fsdp")) is None


def test_few_cells_foretell_nothing_and_a_few_more_say_how_unsure_they_are() -> None:
    single = [
        p for p in measured(linear, noise=0.02) if p.kinds == {"checkpointing": "none", "parallel": "single"}
    ]
    assert fit_model(single[:3], "step_s") is None
    few = fit_model(single, "step_s")
    many = fit_model(measured(linear, noise=0.02), "step_s")
    assert few and many
    of_few, of_many = few.predict(point(12, "single")), many.predict(point(12, "single"))
    assert of_many is not None
    assert of_few is None or of_few.high / of_few.low > of_many.high / of_many.low


def test_repeats_that_disagree_are_no_finding_while_their_median_is_in_line() -> None:
    random = np.random.default_rng(1)
    repeats = [
        Point(id=f"{p.id},repeat={n}", sizes=p.sizes, kinds=p.kinds,
              measured={"step_s": p.measured["step_s"] * float(np.exp(random.normal(0, 0.05)))})
        for p in measured(linear) for n in (1, 2, 3)
    ]  # fmt: skip
    wild = repeats[0]
    once = dearer(repeats, wild.id, 10.0)
    assert summary(once)["offs"] == []
    for repeat in repeats[1:3]:
        once = dearer(once, repeat.id, 10.0)
    offs = summary(once)["offs"]
    assert [(off["id"], off["repeats"]) for off in offs] == [(wild.id, 3)]


def cell(
    layers: int, *, outcome: str = "healthy", run_s: float = 0.0, wall_s: float = 0.0
) -> dict[str, object]:
    return {
        "id": f"layers={layers}", "factors": {"layers": str(layers)}, "world_size": 1, "wall_s": wall_s,
        "costs": {"run_s": run_s or 2.0 * layers + 1, "step_s_median": 0.2 * layers}, "verdict": {"outcome": outcome},
    }  # fmt: skip


def test_a_cell_whose_time_was_too_short_is_told_from_one_that_hangs() -> None:
    sizes = sizes_in({"layers": ["1", "2", "3", "4", "6", "8", "40", "50"]})
    points = [point_of(cell(n), sizes) for n in (1, 2, 3, 4, 6, 8)]
    points.append(point_of(cell(40, outcome="unknown", run_s=30, wall_s=30), sizes, stopped="timeout"))
    points.append(point_of(cell(50, outcome="hung", run_s=9, wall_s=9), sizes, stopped="hang"))
    short = summary(points)["cut_short"]
    assert [row["id"] for row in short] == ["layers=40"]
    assert short[0]["predicted"]["value"] == pytest.approx(81, rel=0.15) and short[0]["after_s"] == 30
    assert "layers=50" not in str(summary(points)), "a cell that hangs is no measurement"


def test_sizes_are_numbers_of_something_that_can_grow() -> None:
    axes = {
        "layers": ["1", "2"], "seed": ["1", "2"], "lr": ["0.1", "0.2"], "bf16": ["true", "false"],
        "parallel": ["fsdp1", "fsdp2"], "batch": ["4"], "repeat": ["1", "2"], "offset": ["-1", "1"],
    }  # fmt: skip
    assert sizes_in(axes) == {"layers": {"1": 1.0, "2": 2.0}}
    assert sizes_in({"length": ["s128", "s512"], "layers": ["1", "2"]}, ["length"]) == {
        "length": {"s128": 128.0, "s512": 512.0}
    }


def test_effort_is_the_product_of_sizes_and_ranks() -> None:
    sizes = sizes_in({"layers": ["1", "4"], "tokens": ["128", "512"]})
    assert effort({"layers": "4", "tokens": "128", "parallel": "ddp"}, 2, sizes) == 4 * 128 * 2
