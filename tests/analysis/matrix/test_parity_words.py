"""What is said of two runs that should compute the same, from records written by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nsadiag.analysis.ingest.first_steps.record import read_record
from nsadiag.analysis.matrix.parity import Comparison, compare, document_of
from nsadiag.analysis.matrix.parity.words import summary_of

NAMES = (
    "embed.weight",
    *(f"blocks.{n}.{part}.weight" for n in range(4) for part in ("attn", "mlp")),
    "head.weight",
)
ELEMENTS = 600
SIGNS = np.random.default_rng(0).choice([-1.0, 1.0], ELEMENTS)
Gradients = dict[str, np.ndarray]
Change = Callable[[list[dict[str, Any]]], None]


def sketch(vector: np.ndarray, begin: int = 0) -> list[float]:
    buckets = np.zeros(31)
    np.add.at(
        buckets, np.arange(begin, begin + len(vector)) % 31, vector * SIGNS[begin : begin + len(vector)]
    )
    return [*buckets.tolist(), float(vector @ vector)]


def gradients(step: int = 0) -> Gradients:
    draw = np.random.default_rng(step + 1)
    return {name: draw.normal(size=ELEMENTS) for name in NAMES}


def facts(loss: float, **more: Any) -> dict[str, Any]:
    return {
        "losses": [loss],
        "backwards": 1,
        "precisions": ["float32"],
        "inputs": [[0.0, 4.0, 11.0, 7.0, 0.0, 0.0]],
        "random": 5,
        "drew": False,
        "scale": None,
        **more,
    }


def rows(
    steps: list[Gradients], *, at: tuple[int, int] = (0, ELEMENTS), loss: float = 2.0
) -> list[dict[str, Any]]:
    start = np.random.default_rng(99).normal(size=ELEMENTS)
    found = []
    for number, each in enumerate(steps):
        parameters = [
            {
                "name": name,
                "shape": [ELEMENTS],
                "at": list(at),
                "dtype": "float32",
                "value": sketch((start - 0.1 * number * gradients()[name])[slice(*at)], at[0]),
                "gradient": sketch(gradient[slice(*at)], at[0]),
            }
            for name, gradient in each.items()
        ]
        found.append(
            {"step": number, "phase": "step", "facts": facts(loss - 0.1 * number), "parameters": parameters}
        )
    return found


def written(directory: Path, *ranks: list[dict[str, Any]]) -> Path:
    for number, found in enumerate(ranks):
        folder = directory / "ranks" / f"{number:05d}"
        folder.mkdir(parents=True)
        (folder / "parity.jsonl").write_text("".join(json.dumps(row) + "\n" for row in found))
        (folder / "meta.json").write_text(json.dumps({"world_size": len(ranks)}))
    return directory


def shared_out(found: list[dict[str, Any]], part: int, of: int) -> list[dict[str, Any]]:
    """A rank's share of the data: hashes of rows add up."""
    for row in found:
        row["facts"]["inputs"] = [
            [number * (part + 1) / (of * (of + 1) / 2) for number in row["facts"]["inputs"][0]]
        ]
    return found


@pytest.fixture
def against(tmp_path: Path) -> Callable[..., Comparison]:
    """Compares what the ranks wrote with a control of one rank and three steps."""
    control = written(tmp_path / "control", rows([gradients(n) for n in range(3)]))

    def compared(*ranks: list[dict[str, Any]]) -> Comparison:
        return compare(read_record(written(tmp_path / "cell", *ranks)), read_record(control))

    return compared


def three() -> list[Gradients]:
    return [gradients(n) for n in range(3)]


def test_shards_of_a_parameter_add_up_to_the_controls(against: Callable[..., Comparison]) -> None:
    parts = [(0, 151), (151, ELEMENTS)]
    found = against(*(shared_out(rows(three(), at=at), n, 2) for n, at in enumerate(parts)))
    assert (found.judgement, found.steps) == ("same", 3), found
    assert found.worst is not None and found.worst.relative < 1e-9


def test_rounding_is_no_difference(against: Callable[..., Comparison]) -> None:
    steps = three()
    for step in steps:
        for gradient in step.values():
            np.multiply(gradient, 1 + 1e-6 * np.random.default_rng(3).normal(size=ELEMENTS), out=gradient)
    assert against(rows(steps)).judgement == "same"


def test_wrong_blocks_are_named_and_so_are_those_that_are_right(against: Callable[..., Comparison]) -> None:
    steps = three()
    for name, gradient in steps[0].items():
        if name.startswith(("blocks.0", "blocks.1", "blocks.2")):
            gradient[:] = np.random.default_rng(5).normal(size=ELEMENTS)
    found = against(rows(steps))
    assert (found.judgement, found.what, found.step) == ("differs", "gradient", 0)
    assert {d.parameter for d in found.differing} == {
        n for n in NAMES if n[:8] in ("blocks.0", "blocks.1", "blocks.2")
    }
    assert "All of blocks.0-2; none of embed, blocks.3, head" in summary_of(found, "the control")


def test_a_factor_in_all_gradients_is_told(against: Callable[..., Comparison]) -> None:
    steps = three()
    for gradient in steps[0].values():
        np.multiply(gradient, 2, out=gradient)
    found = against(rows(steps))
    assert "All parameters have 2 times the control's gradient." in summary_of(found, "the control")
    document = document_of(
        found, cell="a", control="b", factors="x=1 instead of 2", source="ranks/00000/parity.jsonl"
    )
    assert "average gradients over ranks once" in document["fix"] and "x=1 instead of 2" in document["fix"]
    json.dumps(document, allow_nan=False)


def test_ranks_that_never_average_are_told_by_the_mean_of_their_gradients(
    against: Callable[..., Comparison],
) -> None:
    up, down = three(), three()
    noise = np.random.default_rng(8).normal(size=ELEMENTS)
    for name in NAMES:
        up[0][name] += noise
        down[0][name] -= noise
    found = against(shared_out(rows(up), 0, 2), shared_out(rows(down), 1, 2))
    assert "they are not averaged over ranks" in summary_of(found, "the control")


def test_a_gradient_that_is_missing_or_zero_is_one_that_was_cut_off(
    against: Callable[..., Comparison],
) -> None:
    steps = rows(three())
    steps[0]["parameters"][0]["gradient"] = None
    steps[0]["parameters"][1]["gradient"] = [0.0] * 32
    found = against(steps)
    assert found.what == "missing" and "No gradient reaches" in summary_of(found, "the control")
    assert {d.parameter for d in found.differing} == set(NAMES[:2])


def test_noise_in_a_gradient_that_is_nothing_is_no_difference(tmp_path: Path) -> None:
    """The bias of a key in attention has no gradient but rounding errors."""
    runs = []
    for number in range(2):
        steps = three()
        steps[0][NAMES[0]] = 1e-6 * np.random.default_rng(50 + number).normal(size=ELEMENTS)
        runs.append(read_record(written(tmp_path / str(number), rows(steps))))
    assert compare(*runs).judgement == "same"


def change_value(found: list[dict[str, Any]]) -> None:
    found[0]["parameters"][2]["value"][4] += 0.5


def change_data(found: list[dict[str, Any]]) -> None:
    found[0]["facts"]["inputs"] = [[0.0, 4.0, 12.0, 8.0, 0.0, 0.0]]


def forget_data(found: list[dict[str, Any]]) -> None:
    found[0]["facts"] = facts(2.1, inputs=[None])


def draw_other_numbers(found: list[dict[str, Any]]) -> None:
    found[0]["facts"] = facts(2.0, drew=True, random=6)


def lose_a_parameter(found: list[dict[str, Any]]) -> None:
    for row in found:
        del row["parameters"][3]


def reshape(found: list[dict[str, Any]]) -> None:
    found[0]["parameters"][3]["shape"] = [2, ELEMENTS]


def lose_a_shard(found: list[dict[str, Any]]) -> None:
    found[0]["parameters"][3]["at"] = [0, 151]


def diverge(found: list[dict[str, Any]]) -> None:
    found.clear()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (change_value, "do not start from the same parameters"),
        (change_data, "different data"),
        (forget_data, "nothing says that they were given the same data"),
        (draw_other_numbers, "draws random numbers"),
        (lose_a_parameter, "only the control trains blocks.1.attn.weight"),
        (reshape, "has the shape"),
        (lose_a_shard, "not all of blocks.1.attn.weight is on record"),
        (diverge, "recorded no step of an optimizer"),
    ],
)
def test_what_was_not_given_the_same_is_not_compared(
    against: Callable[..., Comparison], change: Change, why: str
) -> None:
    steps = three()
    for gradient in steps[0].values():
        np.multiply(gradient, 3, out=gradient)  # which would be a finding
    found = rows(steps)
    change(found)
    refused = against(found)
    assert refused.judgement == "not_comparable" and why in refused.why


def test_another_loss_of_the_same_data_is_a_difference(against: Callable[..., Comparison]) -> None:
    found = against(rows(three(), loss=1.0))
    assert (found.what, found.step) == ("loss", 0)
    assert (
        summary_of(found, "b")
        == "The loss is 1 in the first step, 2 in b, which computes the same on the same data."
    )


def test_a_rank_without_a_record_is_no_basis_for_a_comparison(
    against: Callable[..., Comparison], tmp_path: Path
) -> None:
    folder = written(tmp_path / "alone", rows(three()))
    (folder / "ranks" / "00000" / "meta.json").write_text('{"world_size": 2}')
    refused = compare(read_record(folder), read_record(tmp_path / "control"))
    assert refused.why == "this run has records of 1 of 2 ranks"


def test_a_step_of_the_optimizer_that_differs_is_told_as_such(against: Callable[..., Comparison]) -> None:
    found = rows(three())
    start = np.random.default_rng(99).normal(size=ELEMENTS)
    for part in found[1]["parameters"]:
        part["value"] = sketch(start - 0.2 * gradients()[part["name"]])
    told = against(found)
    assert (told.what, told.step) == ("update", 0) and "although the gradients agree" in summary_of(told, "b")


def test_signs_that_rounding_turns_around_in_one_parameter_are_no_other_optimizer(
    against: Callable[..., Comparison],
) -> None:
    """Adam's first steps go by the sign alone, also where a gradient is next to nothing."""
    found = rows(three())
    start = np.random.default_rng(99).normal(size=ELEMENTS)
    flipped = np.where(np.arange(ELEMENTS) % 4, 0.1, -0.1)
    found[1]["parameters"][4]["value"] = sketch(start - flipped * gradients()[NAMES[4]])
    assert against(found).judgement == "same"


def test_numbers_that_are_none_are_told(against: Callable[..., Comparison]) -> None:
    found = rows(three())
    found[1]["parameters"][0]["gradient"] = "not finite"
    told = against(found)
    assert (told.what, told.step) == ("number", 1) and "embed.weight" in summary_of(told, "b")
    json.dumps(document_of(told, cell="a", control="b", factors="", source=""), allow_nan=False)


def test_a_loss_that_is_no_number_beside_one_that_is_differs(against: Callable[..., Comparison]) -> None:
    found = rows(three())
    found[0]["facts"]["losses"] = [None]
    told = against(found)
    assert (told.what, told.step) == ("loss", 0) and "no number" in summary_of(told, "b")


def test_parameters_of_a_second_optimizer_are_compared(against: Callable[..., Comparison]) -> None:
    """Only the rows of the first tell of the step's input."""
    found = rows(three())
    split = []
    for row in found:
        split += [
            {**row, "optimizer": 0, "parameters": row["parameters"][:3]},
            {**row, "optimizer": 1, "parameters": row["parameters"][3:], "facts": None},
        ]
    assert against(split).judgement == "same"


def test_data_of_which_nothing_is_known_keeps_its_place_among_the_inputs(
    against: Callable[..., Comparison],
) -> None:
    found = rows(three())
    for row in found:
        row["facts"]["inputs"] = [None, *row["facts"]["inputs"]]
    assert against(found).judgement == "same"
