"""The attention layers: every weight trains, positions are relative, and recomputation changes nothing."""

from __future__ import annotations

import functools

import pytest
import torch
from attention_cases import SMALL
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from nsa.config import AttentionConfig
from nsa.layers.dense import DenseAttention
from nsa.layers.rope import rotate, rotation
from nsa.layers.sparse import NSAAttention


def nsa_layer(config: AttentionConfig = SMALL, **others: int) -> NSAAttention:
    torch.manual_seed(0)
    return NSAAttention(16, 4, 2, 8, config, **others).double()


def tokens(n_tokens: int = 40, batch: int = 2) -> Tensor:
    return torch.randn(batch, n_tokens, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


LAYERS = {
    "nsa": nsa_layer,
    "nsa_v_wider": lambda: nsa_layer(v_head_dim=12),
    "nsa_mean_compression": lambda: nsa_layer(SMALL.model_copy(update={"compression": "mean"})),
    "nsa_sequential": lambda: nsa_layer(SMALL.model_copy(update={"backend": "sequential"})),
    "compressed_alone": lambda: nsa_layer(SMALL.model_copy(update={"branches": ("compressed",)})),
    "selected_alone": lambda: nsa_layer(SMALL.model_copy(update={"branches": ("selected",)})),
    "sliding_alone": lambda: nsa_layer(SMALL.model_copy(update={"branches": ("sliding",)})),
    "dense": lambda: DenseAttention(16, 4, 2, 8).double(),
    "dense_v_wider": lambda: DenseAttention(16, 4, 2, 8, v_head_dim=12).double(),
}


@pytest.mark.parametrize("name", LAYERS)
def test_every_weight_has_a_gradient(name):
    layer = LAYERS[name]()
    x = tokens(n_tokens=20, batch=1) if name == "nsa_sequential" else tokens()  # it takes 50 ms a token
    out = layer(x)
    assert out.shape == x.shape and out.isfinite().all()
    out.square().sum().backward()
    for parameter_name, parameter in layer.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), parameter_name
        assert parameter.grad.norm() > 0, parameter_name


def test_every_number_in_every_weight_of_all_three_branches_has_a_gradient():
    layer = nsa_layer()
    layer(tokens()).square().sum().backward()
    for name, parameter in layer.named_parameters():
        assert (parameter.grad != 0).all(), name


def test_gradients_exist_even_where_no_block_is_complete():
    layer = nsa_layer()
    layer(tokens(n_tokens=5)).square().sum().backward()  # DDP hangs on a parameter that gets none
    assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())


# Positions are turned in before a backend is asked.
@pytest.mark.parametrize("name", [name for name in LAYERS if name != "nsa_sequential"])
def test_a_shift_of_all_positions_changes_nothing(name):
    layer = LAYERS[name]()
    positions = torch.arange(40)
    shifted = layer(tokens(), positions=positions + 1000)
    torch.testing.assert_close(shifted, layer(tokens(), positions=positions), rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(layer(tokens(), positions=positions), layer(tokens()), rtol=0, atol=0)


@pytest.mark.parametrize("name", ["compressed_alone", "selected_alone", "sliding_alone", "dense"])
def test_distances_between_positions_matter_to_every_branch(name):
    layer = LAYERS[name]()
    stretched = layer(tokens(), positions=3 * torch.arange(40))
    assert (stretched - layer(tokens()))[:, 30:].abs().min(dim=1).values.max() > 1e-6


def test_positions_may_differ_from_row_to_row():
    layer = nsa_layer()
    positions = torch.stack([torch.arange(40), torch.arange(40) * 2])
    rows = [layer(tokens()[i : i + 1], positions=positions[i]) for i in range(2)]
    torch.testing.assert_close(layer(tokens(), positions=positions), torch.cat(rows), rtol=1e-9, atol=1e-12)


def test_rope_turns_each_pair_by_its_position():
    x = torch.tensor([1.0, 0.0]).expand(1, 5, 1, 2)
    angle = torch.arange(5.0)
    expected = torch.stack([angle.cos(), angle.sin()], dim=-1)[None, :, None]
    torch.testing.assert_close(rotate(x, rotation(torch.arange(5), 2, 10_000.0)), expected)


def test_an_odd_head_dim_is_refused():
    with pytest.raises(ValueError, match="must be even; it is 7"):
        NSAAttention(16, 4, 2, 7, SMALL)(torch.randn(1, 4, 16))


def test_heads_that_do_not_divide_are_refused():
    with pytest.raises(ValueError, match=r"n_heads is 4, which n_kv_heads \(3\) does not divide"):
        NSAAttention(16, 4, 3, 8, SMALL)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_gives_what_fp32_gives_to_its_precision(dtype):
    layer = nsa_layer().float()
    x = tokens().float()
    with torch.autocast("cpu", dtype=dtype):
        low = layer(x)
    assert low.dtype == dtype
    assert (low.float() - layer(x)).norm() < 0.1 * layer(x).norm()


class Stack(nn.Module):
    """Residual attention blocks, each recomputed in backward if `reentrant` is not None."""

    def __init__(self, backend: str, n_blocks: int = 2) -> None:
        super().__init__()
        torch.manual_seed(0)
        config = SMALL.model_copy(update={"backend": backend})
        self.blocks = nn.ModuleList(NSAAttention(16, 4, 2, 8, config) for _ in range(n_blocks)).double()

    def forward(self, x: Tensor, reentrant: bool | None) -> Tensor:
        for block in self.blocks:
            x = x + (block(x) if reentrant is None else checkpoint(block, x, use_reentrant=reentrant))
        return x


@functools.cache
def gradients(backend: str, reentrant: bool | None) -> dict[str, Tensor]:
    stack = Stack(backend)
    x = tokens(n_tokens=12, batch=1).requires_grad_()
    stack(x, reentrant).square().sum().backward()
    return {"x": x.grad, **{name: p.grad for name, p in stack.named_parameters()}}


@pytest.mark.parametrize("backend", ["torch", "sequential"])
@pytest.mark.parametrize("reentrant", [True, False])
def test_gradients_with_activation_checkpointing_are_those_without_in_every_block(backend, reentrant):
    plain, recomputed = gradients(backend, None), gradients(backend, reentrant)
    assert plain.keys() == recomputed.keys()
    for name, gradient in plain.items():
        # Nearly bitwise: reentrant checkpointing adds up the same terms in another order.
        assert (recomputed[name] - gradient).norm() <= 1e-13 * gradient.norm(), name


def test_sequential_gradients_equal_vectorised_ones_in_every_block():
    vectorised = gradients("torch", None)
    for name, gradient in gradients("sequential", None).items():
        assert (gradient - vectorised[name]).norm() <= 1e-9 * vectorised[name].norm(), name


def test_statistics_are_left_only_when_asked_for():
    layer = nsa_layer()
    layer(tokens())
    assert layer.last_gates is None and layer.last_selected_counts is None
    layer.collect_stats = True
    out = layer(tokens())
    assert layer.last_gates.shape == (2, 40, 4, 3) and not layer.last_gates.requires_grad
    assert ((layer.last_gates > 0) & (layer.last_gates < 1)).all()
    # 40 tokens in blocks of 8, four selected: everything up to token 31, then 24 and the query's own block.
    expected = torch.arange(40).where(torch.arange(40) < 32, torch.arange(40) % 8 + 24) + 1
    assert torch.equal(layer.last_selected_counts, expected.expand(2, 2, 40))
    layer.collect_stats = False
    assert torch.equal(out, layer(tokens()))


@pytest.mark.parametrize("shape", [(1,), (39,), (3, 40), (2, 40, 1)])
@pytest.mark.parametrize("name", ["nsa", "dense"])
def test_positions_of_another_shape_are_refused_and_not_broadcast(name, shape):
    with pytest.raises(ValueError, match=r"positions is .*\[T\] = \[40\] or \[B, T\] = \[2, 40\]"):
        LAYERS[name]()(tokens(), positions=torch.zeros(shape, dtype=torch.long))


def test_weights_fit_a_layer_whose_branches_are_named_in_another_order():
    orders = (("compressed", "selected", "sliding"), ("sliding", "compressed", "selected"))
    first, second = (nsa_layer(SMALL.model_copy(update={"branches": order})) for order in orders)
    second.load_state_dict(first.state_dict())
    assert first.config == second.config
    assert torch.equal(first(tokens()), second(tokens()))
