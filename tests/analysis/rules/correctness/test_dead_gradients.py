"""Weights that nothing trains, told from what the first steps of real models left; and models whose weights wait, or need none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from nsadiag.analysis.ingest.first_steps.record import Record, record_of
from nsadiag.analysis.rules.correctness.dead_gradients import untrained
from nsadiag.evidence.documents.first_steps import FirstStep
from nsadiag.evidence.documents.values import rows_of
from nsadiag.worker.probes.correctness.sketches import sketch_run

DIM, TOKENS = 16, 12


class Attention(nn.Module):
    def __init__(self, keys: int | None = None):
        super().__init__()
        self.keys = keys
        self.norm = nn.LayerNorm(DIM)
        self.query, self.key, self.value = (nn.Linear(DIM, DIM) for _ in range(3))
        self.out = nn.Linear(DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        seen = h[:, : self.keys] if self.keys else h
        return x + self.out(scaled_dot_product_attention(self.query(h), self.key(seen), self.value(seen)))


class Gated(nn.Module):
    """A branch that starts at nothing: `start` is the weight behind it."""

    def __init__(self, start: float):
        super().__init__()
        self.inside, self.beside, self.out = (nn.Linear(DIM, DIM, bias=False) for _ in range(3))
        nn.init.constant_(self.out.weight, start)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.beside(x) + self.out(self.inside(x).relu())


class Model(nn.Module):
    def __init__(self, blocks: list[nn.Module]):
        super().__init__()
        self.embed = nn.Linear(DIM, DIM)
        self.layers = nn.ModuleList(blocks)
        self.head = nn.Linear(DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


FACTS = {"losses": [1.0], "backwards": 1, "precisions": ["float32"], "inputs": [], "random": 1, "drew": False}


def part(name: str, parameter: nn.Parameter) -> dict[str, Any]:
    shape, gradient = list(parameter.shape), parameter.grad
    return {
        "name": name,
        "shape": shape,
        "at": [0, parameter.numel()],
        "dtype": "float32",
        "value": sketch_run([parameter], 0)[0].tolist(),
        "gradient": None if gradient is None else sketch_run([gradient], 0)[0].tolist(),
    }


def recorded(blocks: list[nn.Module], lrs: tuple[float, ...] = (1e-3, 1e-3, 1e-3)) -> Record:
    """What three steps left, as the probe writes it."""
    torch.manual_seed(0)
    model = Model(blocks)
    optimizer = torch.optim.AdamW(model.parameters())
    rows: list[dict[str, Any]] = []
    for lr in lrs:
        batch = torch.randn(8, TOKENS, DIM)
        optimizer.zero_grad()
        (model(batch) - batch.roll(1, 1)).square().mean().backward()
        parameters = [part(name, parameter) for name, parameter in model.named_parameters()]
        rows.append({"step": len(rows), "phase": "step", "facts": FACTS, "parameters": parameters})
        optimizer.param_groups[0]["lr"] = lr
        optimizer.step()
    return record_of({0: rows_of(FirstStep, rows)}, {0: 1})


def of_one_key() -> list[nn.Module]:
    return [Attention(keys=1), Attention(keys=1)]


def test_queries_and_keys_of_an_attention_to_one_key_are_told_in_every_block() -> None:
    assert untrained(recorded(of_one_key())) == [
        f"layers.{n}.{name}.weight" for n in (0, 1) for name in ("query", "key")
    ]


def test_a_branch_behind_a_gate_that_stays_shut_is_told() -> None:
    shut: list[nn.Module] = [Gated(start=0.0), Gated(start=0.0)]
    for block in shut:
        block.get_parameter("out.weight").requires_grad_(False)
    assert untrained(recorded(shut)) == ["layers.0.inside.weight", "layers.1.inside.weight"]


HEALTHY: dict[str, Callable[[], list[nn.Module]]] = {
    "attention": lambda: [Attention(), Attention()],
    "one of two blocks": lambda: [Attention(), Attention(keys=1)],
    "one block alone": lambda: [Attention(keys=1)],
    "branches that start at zero": lambda: [Gated(start=0.0), Gated(start=0.0)],
    "branches that start near it": lambda: [Gated(start=1e-4), Gated(start=1e-4)],
    "another kind beside it": lambda: [Attention(keys=1), Gated(start=0.1)],
    "frozen": lambda: [block.requires_grad_(False) for block in of_one_key()],
}


@pytest.mark.parametrize("blocks", HEALTHY.values(), ids=HEALTHY.keys())
@pytest.mark.parametrize("lrs", [(1e-3, 1e-3, 1e-3), (1e-6, 2e-6, 3e-6)], ids=["", "warming up"])
def test_weights_that_are_trained_or_will_be_or_are_not_alike_in_all_blocks_are_not_told(
    blocks: Callable[[], list[nn.Module]], lrs: tuple[float, ...]
) -> None:
    assert untrained(recorded(blocks(), lrs)) == []


def test_nothing_is_told_of_steps_that_were_left_out_or_are_too_few() -> None:
    """As by a gradient scaler, or by a schedule that begins at 0."""
    assert untrained(recorded(of_one_key(), (0.0, 1e-3, 1e-3))) == []
    assert untrained(recorded(of_one_key(), (1e-3, 1e-3))) == []
