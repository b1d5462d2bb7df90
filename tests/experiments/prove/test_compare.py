"""Records of two runs, compared: which part of what a rank holds, which samples, and by which name a difference goes."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from nsadiag.experiments.prove.compare import prove
from nsadiag.experiments.prove.intent import compared_in_a_batch, rate_by_ranks
from nsadiag.experiments.prove.layout import Layout, Part, layout
from nsadiag.experiments.prove.naming import name_of
from nsadiag.experiments.prove.origins import wrong_at_backward
from nsadiag.experiments.prove.record import Run

Tensors = dict[str, np.ndarray[Any, Any]]
DRAWN = np.random.default_rng(0)
WEIGHT, BIAS, X = DRAWN.normal(size=(8, 6)), np.zeros(8), DRAWN.normal(size=(12, 6))
GRADIENT = {"up.weight": DRAWN.normal(size=(8, 6)), "up.bias": DRAWN.normal(size=8)}


class Writer:
    """One rank's proof.jsonl and proof.bin."""

    def __init__(self, run: Path, rank: int, world: int) -> None:
        self._folder = run / "ranks" / f"{rank:05d}"
        self._folder.mkdir(parents=True)
        (self._folder / "meta.json").write_text(json.dumps({"rank": rank, "world_size": world, "pid": 1}))
        self._lines: list[dict[str, Any]] = []
        self._data = b""

    def add(self, what: str, step: int, tensor: np.ndarray[Any, Any] | None = None, **about: Any) -> None:
        row = {"what": what, "step": step, **about}
        if tensor is not None:
            shape = list(tensor.shape)
            row |= {
                "local": shape,
                "shape": shape,
                "dtype": "float32",
                "stored": "f8",
                "offset": len(self._data),
            }
            self._data += np.ascontiguousarray(tensor, np.float64).tobytes()
        self._lines.append(row)

    def close(self) -> None:
        (self._folder / "proof.bin").write_bytes(self._data)
        (self._folder / "proof.jsonl").write_text("".join(json.dumps(row) + "\n" for row in self._lines))


def run_of(path: Path, ranks: list[tuple[Tensors, Tensors, np.ndarray[Any, Any]]]) -> Run:
    """One step: what each rank holds, its gradients, and what it is given."""
    for number, (held, gradients, given) in enumerate(ranks):
        writer = Writer(path, number, len(ranks))
        writer.add("given", 0, given)
        for name, value in held.items():
            writer.add("parameter", 0, value, name=name)
        for name, value in gradients.items():
            writer.add("gradient", 0, value, name=name)
        writer.add("step", 0, rates=[0.1])
        writer.close()
    return Run(path)


def alone(path: Path) -> Run:
    return run_of(path / "alone", [({"up.weight": WEIGHT, "up.bias": BIAS}, GRADIENT, X)])


def test_shards_are_found_row_by_row_and_their_constants_beside_them(tmp_path: Path) -> None:
    """Rank 1 holds every other row, as of a fused layer that is split by heads."""
    rows = [[0, 2, 4, 6], [1, 3, 5, 7]]
    parts = [
        ({"up.weight": WEIGHT[r], "up.bias": BIAS[r]}, {n: g[r] for n, g in GRADIENT.items()}, X)
        for r in rows
    ]
    ranks, one = run_of(tmp_path / "ranks", parts), alone(tmp_path)
    found = layout(ranks, one).parts
    assert found[1, "up.weight"].rows == (0, (1, 3, 5, 7)) == found[1, "up.bias"].rows
    proof = prove(ranks, one)
    assert (proof.judgement, proof.largest) == ("same", 0.0), proof.why


def test_a_stage_counts_its_layers_anew_and_is_found_by_content(tmp_path: Path) -> None:
    one = run_of(tmp_path / "alone", [({"0.weight": WEIGHT, "1.weight": WEIGHT + 1}, {}, X)])
    ranks = run_of(tmp_path / "ranks", [({"0.weight": WEIGHT}, {}, X), ({"0.weight": WEIGHT + 1}, {}, X)])
    assert {key: part.name for key, part in layout(ranks, one).parts.items()} == {
        (0, "0.weight"): "0.weight",
        (1, "0.weight"): "1.weight",
    }


def test_ranks_that_start_apart_are_refused(tmp_path: Path) -> None:
    held = {"up.weight": WEIGHT, "up.bias": BIAS}
    ranks = run_of(
        tmp_path / "ranks", [(held, GRADIENT, X), ({**held, "up.weight": WEIGHT * 1.1}, GRADIENT, X)]
    )
    proof = prove(ranks, alone(tmp_path))
    assert proof.judgement == "not_comparable" and "start from different values" in proof.why


@pytest.mark.parametrize(
    ("given", "judgement"),
    [
        ([X[:6], X[6:]], "same"),
        ([X[::2], X[1::2]], "same"),
        ([X, X], "same"),
        ([X[:6], X[:6]], "not_comparable"),  # a set of them would pass where rows come twice
        ([X, X[:6]], "not_comparable"),
        ([X[:, :3], X[:, 3:]], "same"),  # cut along the second dimension
    ],
)
def test_samples_are_counted_over_all_ranks(tmp_path: Path, given: list[Any], judgement: str) -> None:
    held = {"up.weight": WEIGHT, "up.bias": BIAS}
    ranks = run_of(tmp_path / "ranks", [(held, GRADIENT, each) for each in given])
    assert prove(ranks, alone(tmp_path)).judgement == judgement


NOISE = {name: DRAWN.normal(size=value.shape) for name, value in GRADIENT.items()}


@pytest.mark.parametrize(
    ("first", "second", "says"),
    [
        ({n: 2 * g for n, g in GRADIENT.items()}, {n: 2 * g for n, g in GRADIENT.items()}, "2 times as large"),
        ({n: g + NOISE[n] for n, g in GRADIENT.items()}, {n: g - NOISE[n] for n, g in GRADIENT.items()}, "mean"),
        ({n: g / 2 + NOISE[n] for n, g in GRADIENT.items()}, {n: g / 2 - NOISE[n] for n, g in GRADIENT.items()}, "partial sums"),
        (GRADIENT, {n: g + NOISE[n] for n, g in GRADIENT.items()}, "only on rank 1"),
        ({**GRADIENT, "up.bias": 0 * BIAS}, {**GRADIENT, "up.bias": 0 * BIAS}, "nothing arrives"),
    ],
)  # fmt: skip
def test_a_difference_has_the_name_of_its_shape(
    tmp_path: Path, first: Tensors, second: Tensors, says: str
) -> None:
    held = {"up.weight": WEIGHT, "up.bias": BIAS}
    ranks = run_of(tmp_path / "ranks", [(held, first, X[:6]), (held, second, X[6:])])
    proof = prove(ranks, alone(tmp_path))
    name = name_of(proof, ranks)
    assert proof.judgement == "differs" and name is not None and says in name.says, name


def recorded(path: Path, ranks: list[dict[str, Any]]) -> Run:
    """The first step of each rank: its learning rates, notes, loss, and gradients as it computed them and as it uses them."""
    for number, about in enumerate(ranks):
        writer = Writer(path, number, len(ranks))
        if "loss" in about:
            writer.add("loss", 0, value=about["loss"])
        for what in ("local", "gradient"):
            if what in about:
                writer.add(what, 0, about[what], name="w")
        writer.add("step", 0, rates=about.get("rates", [0.1]), notes=about.get("notes", []))
        writer.close()
    return Run(path)


@pytest.mark.parametrize(
    ("rates", "is_refused"),
    [([[0.2, 0.4]] * 2, True), ([[0.1, 0.2]] * 2, False), ([[0.2, 0.2]] * 2, False), ([[0.2, 0.4], [0.1, 0.2]], False)],
)  # fmt: skip
def test_rates_that_grow_with_the_ranks_are_by_design(
    tmp_path: Path, rates: list[list[float]], is_refused: bool
) -> None:
    """All of them by one factor, on all ranks alike: nothing else."""
    one = recorded(tmp_path / "one", [{"rates": [0.1, 0.2]}])
    ranks = recorded(tmp_path / "ranks", [{"rates": each} for each in rates])
    assert bool(rate_by_ranks(ranks, one.ranks[0])) == is_refused


A, B, APART = (DRAWN.normal(size=20) for _ in range(3))


@pytest.mark.parametrize(
    ("whole", "loss", "notes", "is_refused"),
    [
        (APART, 3.2, [], True),  # over pairs in a batch: more of them, and another gradient
        (APART, 3.2, ["exchanged"], False),  # ranks send each other what is compared: it is to be the same
        (APART, 2.5, [], False),  # the losses are a mean, and gradients are not
        (0.7 * A + 0.3 * B, 2.2, [], False),  # means over other numbers of tokens
    ],
)
def test_a_loss_over_pairs_in_a_batch_is_refused(
    tmp_path: Path, whole: np.ndarray[Any, Any], loss: float, notes: list[str], is_refused: bool
) -> None:
    one = recorded(tmp_path / "one", [{"loss": loss, "gradient": whole}])
    both = [{"loss": 2.0, "local": A, "notes": notes}, {"loss": 3.0, "local": B, "notes": notes}]
    ranks = recorded(tmp_path / "ranks", both)
    pair = SimpleNamespace(mine=(A + B) / 2, other=whole)
    assert bool(compared_in_a_batch(ranks, one.ranks[0], 0, [pair])) == is_refused


@pytest.mark.parametrize(
    ("locals_", "notes", "is_wrong"),
    [
        ((A, B), [], False),  # their mean is the one process's: what follows is wrong
        ((A / 2, B / 2), [], False),  # and their sum, by hand
        ((A / 2, B / 2), ["wrapped"], True),  # which a wrapper halves
        ((A, 3 * B), [], True),
    ],
)
def test_a_gradient_is_wrong_at_backward_or_behind_it(
    tmp_path: Path, locals_: tuple[Any, Any], notes: list[str], is_wrong: bool
) -> None:
    one = recorded(tmp_path / "one", [{"local": (A + B) / 2}])
    ranks = recorded(tmp_path / "ranks", [{"local": each, "notes": notes} for each in locals_])
    laid = Layout(parts={(0, "w"): Part(name="w"), (1, "w"): Part(name="w")})
    assert wrong_at_backward(ranks, one.ranks[0], laid, 0, "w") == is_wrong
