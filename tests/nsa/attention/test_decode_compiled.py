"""Decode steps through torch.compile: one graph for all blocks, and the same tokens."""

from __future__ import annotations

import pytest
import torch

import nsa.model
from nsa.config import AttentionConfig, ModelConfig
from nsa.model import Block, NSAModel

LENGTHS = {"compress_block": 8, "compress_stride": 4, "select_block": 16, "select_count": 4, "window": 32}


@pytest.fixture
def one_graph(monkeypatch):
    """Blocks compiled without the code generator, whose sums would differ in the last bit; a break is an error."""
    import torch._dynamo.utils as dynamo  # 8 s on a busy machine, which no collection of tests has to spend

    torch._dynamo.reset()
    dynamo.counters.clear()
    decode = torch.compile(Block.decode, backend="aot_eager", fullgraph=True)
    monkeypatch.setattr(nsa.model, "compiled_decode", lambda: decode)
    return dynamo.counters


@pytest.mark.slow
@pytest.mark.parametrize(
    ("attention", "changes"),
    [("nsa", {}), ("nsa", {"branches": ("selected", "sliding"), "compression": "mean"}), ("dense", {})],
)
def test_compiled_steps_choose_the_same_tokens_from_one_graph(attention, changes, one_graph):
    torch.manual_seed(0)
    sizes = ModelConfig(layers=3, dim=64, heads=4, kv_groups=2, head_dim=16, attention=attention)
    model = NSAModel(sizes, AttentionConfig(**LENGTHS, **changes))
    prompts, lengths = torch.randint(1, 256, (3, 30)), torch.tensor([30, 5, 21])
    expected = model.generate(prompts, 9, lengths=lengths, temperature=0)
    assert torch.equal(model.generate(prompts, 9, lengths=lengths, temperature=0, compile=True), expected)
    assert one_graph["stats"]["unique_graphs"] == 1
