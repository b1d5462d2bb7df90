"""The condition that decides whether a module runs, read off the model's source: where DDP says what took no part."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from nsadiag.analysis.facts.parameters import branch_around
from nsadiag.evidence.documents.training import Parameter, Tensor, Wrap, WrappedModel
from nsadiag.source.model import SourceModel

VISION = "vision.0.weight", "vision.0.bias"
SHARED = "text.weight", "head.weight"
MODEL = """
class Tower(nn.Module):
    def forward(self, x):
        return self.net(x)

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.text, self.head = nn.Linear(4, 4), nn.Linear(4, 4)
        self.vision = nn.Sequential(nn.Linear(4, 4))
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
{methods}
"""


def parameter(name: str, qualified: str = "") -> Parameter:
    return Parameter(name=name, shape=(4,), dtype="torch.float32", qualified=qualified)


def wrap(model: str, names: Iterable[str]) -> Wrap:
    tensors = tuple(Tensor(name, (4,), "torch.float32") for name in names)
    return Wrap(wrapper="DDP", model=model, place="", parameters=tensors)


def found(
    methods: str,
    unused: tuple[str, ...] = VISION,
    known: tuple[str, ...] = VISION + SHARED,
    model: str = "Model",
) -> str | None:
    """The code of the line that is named; None where none is."""
    source = MODEL.format(methods=textwrap.indent(textwrap.dedent(methods), "    "))
    cell: Any = SimpleNamespace(code=SourceModel({"/u/model.py": source}))
    rank: Any = SimpleNamespace(
        ddp=[WrappedModel(parameters=tuple(parameter(name) for name in known))],
        wraps=(wrap(model, known),),
    )
    at = branch_around(cell, rank, list(unused))
    return source.splitlines()[at.line - 1].strip() if at else None


# What `forward` does, and the line that decides.
DECIDES = {
    "an if": ("def forward(self, x, image):\n    if image is not None:\n        x = x + self.vision(image)\n    return self.head(x)", "if image is not None:"),
    "its else": ("def forward(self, x, image):\n    if image is None:\n        v = 0\n    else:\n        v = self.vision(image)\n    return v", "if image is None:"),
    "a choice": ("def forward(self, x, image):\n    v = self.vision(image) if image is not None else 0\n    return x + v", "v = self.vision(image) if image is not None else 0"),
    "the innermost of two": ("def forward(self, x, image):\n    if self.training:\n        if image.any():\n            x = self.vision(image)\n    return x", "if image.any():"),
    "an early return": ("def forward(self, x, image):\n    if image is None:\n        return self.head(x)\n    return self.vision(image)", "if image is None:"),
    "a helper that is called so": ("def see(self, image):\n    return self.vision(image)\n\ndef forward(self, x, image):\n    if len(image):\n        x = x + self.see(image)\n    return x", "if len(image):"),
    "and a check that it is there": ("def forward(self, x, image):\n    if self.vision is not None and image is not None:\n        x = self.vision(image)\n    return x", "if self.vision is not None and image is not None:"),
    "the inner one is that it is there": ("def forward(self, x, image):\n    if image.any():\n        if self.vision:\n            x = self.vision(image)\n    return x", "if image.any():"),
    "what only runs where nobody trains": ("def forward(self, x, image):\n    if not self.training:\n        x = self.vision(image)\n    return x", "if not self.training:"),
    "a case": ("def forward(self, x, kind):\n    match kind:\n        case 'image':\n            x = self.vision(x)\n    return x", "case 'image':"),
    "one that another method freezes": ("def freeze(self):\n    for p in self.vision.parameters():\n        p.requires_grad_(False)\n\ndef forward(self, x, image):\n    if image is not None:\n        x = self.vision(image)\n    return x", "if image is not None:"),
}  # fmt: skip


@pytest.mark.parametrize(("methods", "line"), DECIDES.values(), ids=DECIDES.keys())
def test_the_condition_around_what_did_not_run_is_named(methods: str, line: str) -> None:
    assert found(methods) == line


NOTHING = {
    "nothing decides": "def forward(self, x, image):\n    return self.head(x) + self.vision(image)",
    "it is run either way": "def forward(self, x, image):\n    if self.saves_memory:\n        return checkpoint(self.vision, image)\n    else:\n        return self.vision(image)",
    "it is run without the condition too": "def forward(self, x, image):\n    if image is not None:\n        x = self.vision(image)\n    return x + self.vision(x)",
    "two early returns": "def forward(self, x, image):\n    if image is None:\n        return x\n    if not len(x):\n        return x\n    return self.vision(image)",
    "nobody runs it": "def forward(self, x, image):\n    if image is not None:\n        x = self.head(x)\n    return x",
    "it is only asked for": "def forward(self, x, image):\n    if self.vision is not None:\n        x = self.vision(image)\n    return x",
    "it is asked for by name": "def forward(self, x, image):\n    if not hasattr(self, 'vision'):\n        return x\n    return self.vision(image)",
    "the model trains, as it does": "def forward(self, x, image):\n    if self.training:\n        x = self.vision(image)\n    return x",
    "a refusal is no way past it": "def forward(self, x, image):\n    if image is None:\n        raise ValueError\n    return self.vision(image)",
}  # fmt: skip


@pytest.mark.parametrize("methods", NOTHING.values(), ids=NOTHING.keys())
def test_where_nothing_decides_no_line_is_named(methods: str) -> None:
    assert found(methods) is None


GUARDED = (
    "def forward(self, x, image):\n    if image is not None:\n        x = self.vision(image)\n    return x"
)


def test_a_condition_behind_which_something_took_part_is_not_it() -> None:
    assert found(GUARDED, unused=VISION[:1]) is None


def test_a_model_whose_class_is_not_known_has_no_source() -> None:
    assert found(GUARDED, model="Elsewhere") is None
    assert found(GUARDED + "\n\nclass Model:\n    pass") is None


def test_names_that_other_conditions_decide_about_name_none() -> None:
    methods = GUARDED.replace("return x", "if len(x):\n        x = self.head(x)\n    return x")
    assert found(methods, unused=(*VISION, "head.weight")) is None


def test_a_block_that_a_loop_leaves_out_is_told_by_the_loop() -> None:
    blocks = tuple(f"blocks.{n}.weight" for n in range(3))
    methods = """
    def forward(self, x):
        for n, block in enumerate(self.blocks):
            if self.drops(n):
                continue
            x = block(x)
        return self.head(x)
    """
    assert found(methods, unused=blocks[1:2], known=blocks + SHARED) == "if self.drops(n):"
    assert found(methods.replace("continue", "x = -x"), unused=blocks[1:2], known=blocks + SHARED) is None


def test_a_module_within_a_module_is_looked_for_in_its_own_class() -> None:
    known = ("tower.net.weight", "tower.gate.weight", "head.weight")
    methods = """
        self.tower = Pair(4)

    def forward(self, x):
        return self.head(self.tower(x))

class Pair(nn.Module):
    def __init__(self, n):
        self.net, self.gate = nn.Linear(n, n), nn.Linear(n, n)

    def forward(self, x):
        if x.mean() > 0:
            x = x * self.gate(x)
        return self.net(x)
    """
    source = textwrap.dedent(MODEL).replace("{methods}", methods)
    cell: Any = SimpleNamespace(code=SourceModel({"/u/model.py": source}))
    rank: Any = SimpleNamespace(
        ddp=[WrappedModel(parameters=tuple(parameter(name, f"net.{name}") for name in known))],
        wraps=(wrap("Model", known),),
    )
    at = branch_around(cell, rank, ["net.tower.gate.weight"])
    assert at and source.splitlines()[at.line - 1].strip() == "if x.mean() > 0:"
