"""The loss that teaches which blocks to select."""

from __future__ import annotations

import math

import pytest
import torch

from nsa.attention import BranchKV
from nsa.attention.blocks import block_layout, n_compress_slots
from nsa.attention.selected import select_blocks
from nsa.config import AttentionConfig, ConfigError, TrainConfig
from nsa.layers.selection_loss import selection_loss
from nsa.layers.sparse import NSAAttention

CONFIG = AttentionConfig(
    compress_block=4, compress_stride=4, select_block=4, select_count=4, window=8, backend="torch"
)
TOKENS = 40


def inputs(tokens: int = TOKENS, rows: int = 2) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries of 4 heads, keys of 2, and a compressed key for each block of 4 tokens, which is also one of selection."""
    generator = torch.Generator().manual_seed(0)
    q, k, c = (
        torch.randn(rows, n, heads, 8, generator=generator, dtype=torch.float64)
        for n, heads in ((tokens, 4), (tokens, 2), (n_compress_slots(CONFIG, tokens, packed=False), 2))
    )
    return q, k, c.requires_grad_()


def in_plain_python(q: torch.Tensor, k: torch.Tensor, c: torch.Tensor, at: list[int]) -> float:
    """The loss, one query, head and block at a time."""
    terms = []
    for row in range(len(q)):
        for kv_head in range(2):
            for t in at:
                wanted, given = [0.0] * (TOKENS // 4), [0.0] * (TOKENS // 4)
                for head in (2 * kv_head, 2 * kv_head + 1):
                    scores = [q[row, t, head] @ k[row, s, kv_head] / 8**0.5 for s in range(t + 1)]
                    of_blocks = [q[row, t, head] @ c[row, j, kv_head] / 8**0.5 for j in range((t + 1) // 4)]
                    for s, p in enumerate(torch.tensor(scores).softmax(0).tolist()):
                        wanted[s // 4] += p / 2
                    for j, p in enumerate(torch.tensor(of_blocks).softmax(0).tolist() if of_blocks else []):
                        given[j] += p
                free = range(1, t // 4 - 1)  # neither the first block nor the last two
                total = sum(given[j] for j in free) + 1e-9
                terms.append(-sum(wanted[j] * math.log(given[j] / total + 1e-9) for j in free))
    return sum(terms) / len(terms)


def test_it_is_the_cross_entropy_of_the_blocks_that_can_be_chosen():
    q, k, c = inputs()
    torch.manual_seed(3)
    at = torch.randint(TOKENS, (16,)).tolist()
    torch.manual_seed(3)
    loss = selection_loss(q, BranchKV(c, k, None), CONFIG, queries=16)
    with torch.no_grad():
        assert loss.item() == pytest.approx(in_plain_python(q, k, c, at), rel=1e-9)


def test_the_block_that_one_token_matters_in_is_selected_after_it():
    q, k, c = inputs()
    k = 6 * k  # attention to few tokens
    layout = block_layout(CONFIG, TOKENS, q.device)

    @torch.no_grad()
    def recall() -> float:
        """The share of last queries whose token of the largest score, averaged over heads, lies in a selected block."""
        scores = torch.einsum("bthgd,bshd->bhgts", q.unflatten(2, (2, 2)), k) / 8**0.5
        late = (torch.arange(TOKENS) <= torch.arange(TOKENS)[:, None])[None, None, None]
        best = scores.masked_fill(~late, -torch.inf).softmax(-1).mean(2).argmax(-1)
        chosen = select_blocks(q, c, layout)
        return (chosen == best[..., None] // 4).any(-1)[..., 24:].double().mean().item()

    before = recall()
    optimizer = torch.optim.Adam([c], lr=0.2)
    for _ in range(80):
        selection_loss(q, BranchKV(c, k, None), CONFIG, queries=64).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert recall() > before + 0.15


def test_a_sequence_of_a_packed_row_does_not_see_the_others():
    q, k, _ = inputs(rows=1)
    borders = torch.tensor([0, 24, TOKENS])
    slots = torch.randn(1, n_compress_slots(CONFIG, TOKENS, packed=True), 2, 8, dtype=torch.float64)
    other_k, other_slots = k.clone(), slots.clone()
    other_k[:, 24:], other_slots[:, 6:] = 5.0, 5.0
    gradients = []
    for keys, compressed in ((k, slots.requires_grad_()), (other_k, other_slots.requires_grad_())):
        torch.manual_seed(0)
        loss = selection_loss(q, BranchKV(compressed, keys, None), CONFIG, borders, queries=32)
        gradients.append(torch.autograd.grad(loss, compressed)[0][:, :6])
    assert torch.equal(*gradients) and gradients[0].abs().sum() > 0


def test_in_a_layer_it_changes_the_gradients_of_the_scores_alone():
    torch.manual_seed(0)
    layer = NSAAttention(16, 4, 2, 4, CONFIG)
    x = torch.randn(2, TOKENS, 16)
    results = []
    for weight in (0.0, 0.5, 1.0):
        torch.manual_seed(1)
        layer.selection_loss = weight
        out = layer(x)
        results.append([out, *torch.autograd.grad(out.square().sum(), layer.parameters())])
    names = ["out", *(name for name, _ in layer.named_parameters())]
    changed = {n for n, a, b in zip(names, results[0], results[2], strict=True) if not torch.equal(a, b)}
    assert changed == {"in_proj.weight", *(n for n in names if n.startswith("compress_k."))}
    at = names.index("compress_k.mlp.2.weight")
    none, half, whole = (result[at] for result in results)
    torch.testing.assert_close(whole - none, 2 * (half - none), rtol=1e-3, atol=1e-6)
    with torch.no_grad():
        assert torch.equal(layer(x), results[0][0])


@pytest.mark.parametrize(
    "settings",
    [
        {"model": {"attention": "dense"}},
        {"attention": {"branches": ("selected", "sliding")}},
        {"parallel": {"context": {"ranks": 2}}},
    ],
)
def test_it_is_refused_where_no_trained_scores_select(settings):
    with pytest.raises(ConfigError, match=r"train\.selection_loss"):
        TrainConfig(train={"selection_loss": 1.0}, **settings)
