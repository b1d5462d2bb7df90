"""The layer and the model under torch.compile, torch.export, torch.func, fake tensors and the meta device."""

from __future__ import annotations

import copy

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel

from nsa import AttentionConfig, ModelConfig, NativeSparseAttention, NSAModel, nsa_attention

LENGTHS = {
    "compress_block": 8,
    "compress_stride": 4,
    "select_block": 8,
    "select_count": 3,
    "window": 6,
    "backend": "torch",
}
SIZES = ModelConfig(layers=1, dim=16, heads=2, kv_groups=1, head_dim=8, vocab_size=32)


def layer() -> NativeSparseAttention:
    torch.manual_seed(0)
    return NativeSparseAttention(16, 2, 1, **LENGTHS)


def model() -> NSAModel:
    torch.manual_seed(0)
    return NSAModel(SIZES, AttentionConfig(**LENGTHS))


@pytest.mark.slow
def test_a_new_model_compiles_as_one_graph_for_any_length():
    made = model()
    compiled = torch.compile(made, fullgraph=True, backend="aot_eager")
    for n in (30, 47):
        tokens = torch.randint(32, (2, n))
        compiled(tokens, tokens).backward()
        gradients = [each.grad.clone() for each in made.parameters()]
        made.zero_grad()
        made(tokens, tokens).backward()
        for a, each in zip(gradients, made.parameters(), strict=True):
            assert torch.allclose(a, each.grad, atol=1e-5)
        made.zero_grad()


@pytest.mark.slow
def test_a_new_layer_compiles_with_a_mask():
    made = layer()
    x, mask = torch.randn(2, 30, 16), torch.ones(2, 30)
    mask[1, :9] = 0
    compiled = torch.compile(made, backend="aot_eager")
    assert torch.allclose(compiled(x, attention_mask=mask)[0], made(x, attention_mask=mask)[0], atol=1e-5)


@pytest.mark.parametrize("used_before", [False, True])
def test_an_exported_layer_is_the_layer_which_stays_as_it_was(used_before):
    made, x = layer().eval(), torch.randn(2, 32, 16)
    if used_before:
        made(x)
    exported = torch.export.export(made, (x,)).module()
    other = torch.randn(2, 32, 16)
    assert torch.allclose(exported(other)[0], made(other)[0], atol=1e-5)


def test_fake_tensors_leave_nothing_in_the_layer():
    made, x = layer(), torch.randn(1, 20, 16)
    expected = copy.deepcopy(made)(x)[0]
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        assert made(mode.from_tensor(x))[0].shape == (1, 20, 16)
    assert torch.equal(made(x)[0], expected)


def test_a_model_on_the_meta_device_has_shapes_and_its_values_once_it_is_initialised():
    with torch.device("meta"):
        made = model()
    tokens = torch.zeros(2, 30, dtype=torch.long)
    assert made(tokens.to("meta")).shape == (2, 30, 32)
    made.to_empty(device="cpu")
    made.load_state_dict(model().state_dict())
    assert torch.equal(made(tokens), model()(tokens))


def test_gradients_of_each_sample_by_vmap_are_those_of_each_alone():
    made, x = layer(), torch.randn(3, 30, 16)
    weights = dict(made.named_parameters())

    def loss(weights, row):
        return torch.func.functional_call(made, weights, (row[None],))[0].square().sum()

    together = torch.func.vmap(torch.func.grad(loss), (None, 0))(weights, x)
    for i in range(3):
        alone = torch.func.grad(loss)(weights, x[i])
        for name, gradient in alone.items():
            assert torch.allclose(together[name][i], gradient, rtol=1e-4, atol=1e-5), name


@pytest.mark.slow
def test_second_derivatives_exist_by_the_math_kernel():
    torch.manual_seed(0)
    shapes = ((1, 12, 2, 4), (1, 12, 1, 4), (1, 12, 1, 4))
    inputs = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    inputs.append(torch.rand(1, 12, 2, 3, dtype=torch.float64, requires_grad=True))
    config = AttentionConfig(**LENGTHS)
    with sdpa_kernel(SDPBackend.MATH):
        assert torch.autograd.gradgradcheck(lambda *each: nsa_attention(*each, config), inputs)


@pytest.mark.parametrize("backend", ["torch", "sequential", "reference"])
@pytest.mark.parametrize("argument", range(4), ids=["q", "k", "v", "gates"])
@pytest.mark.parametrize("math", [True, False])
def test_forward_mode_gives_the_finite_difference_or_an_error(backend, argument, math):
    generator = torch.Generator().manual_seed(0)
    shapes = ((1, 12, 2, 4), (1, 12, 1, 4), (1, 12, 1, 4), (1, 12, 2, 3))
    inputs = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    inputs[3] = inputs[3].sigmoid()
    config = AttentionConfig(**{**LENGTHS, "backend": backend})
    direction = torch.randn(shapes[argument], generator=generator, dtype=torch.float64)

    def attend(x):
        return nsa_attention(*inputs[:argument], x, *inputs[argument + 1 :], config)

    step, x = 1e-6 * direction, inputs[argument]
    expected = (attend(x + step) - attend(x - step)) / 2e-6
    kernels = list(SDPBackend.__members__.values()) if not math else [SDPBackend.MATH]
    try:
        with sdpa_kernel([each for each in kernels if each != SDPBackend.ERROR]):
            _, actual = torch.func.jvp(attend, (x,), (direction,))
    except (NotImplementedError, RuntimeError) as error:
        assert backend != "torch" or not math, error
    else:
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("sizes", "named"),
    [
        ({"hidden_size": 0}, "hidden_size"),
        ({"num_heads": 0}, "num_heads"),
        ({"num_heads": -2}, "num_heads"),
        ({"num_kv_heads": 0}, "num_kv_heads"),
        ({"head_dim": -2}, "head_dim"),
        ({"v_head_dim": -4}, "v_head_dim"),
        ({"rope_theta": -1.0}, "rope_theta"),
        ({"num_heads": 2.0}, "num_heads"),
    ],
)
def test_sizes_that_no_layer_can_have_are_refused_by_name(sizes, named):
    with pytest.raises(ValueError, match=f"{named} is"):
        NativeSparseAttention(**{"hidden_size": 16, "num_heads": 2, "num_kv_heads": 1, **sizes})


@pytest.mark.parametrize("shape", [(30, 16), (1, 30, 15), (1, 1, 30, 16), (1, 0, 16)])
@pytest.mark.parametrize("use_cache", [False, True])
def test_hidden_states_that_do_not_fit_are_refused(shape, use_cache):
    with pytest.raises(ValueError, match=r"\[B, T, (16|H, D)\]"):
        layer()(torch.randn(shape), use_cache=use_cache)


@pytest.mark.parametrize(
    "tokens", [torch.zeros(30, dtype=torch.long), torch.zeros(2, 30), torch.zeros(1, 0, dtype=torch.long)]
)
def test_tokens_that_do_not_fit_are_refused(tokens):
    for call in (model(), lambda tokens: model().generate(tokens, 1)):
        with pytest.raises(ValueError, match=r"tokens is .*\[B, T\]"):
            call(tokens)
