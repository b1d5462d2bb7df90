"""The model: names, sizes, causality, decoding."""

import pytest
import torch

from nsa.config import AttentionConfig, ModelConfig
from nsa.model import NSAModel, parameter_count
from nsa.options import load_train_config

ATTENTION = AttentionConfig(compress_block=8, compress_stride=4, select_block=8, select_count=4, window=16)


def tiny_model(**changes):
    torch.manual_seed(0)
    sizes = {"layers": 2, "dim": 32, "heads": 4, "kv_groups": 2, "head_dim": 8}
    return NSAModel(ModelConfig(**{**sizes, **changes}), ATTENTION)


def test_parameters_have_the_field_s_names():
    names = dict(tiny_model().named_parameters())
    assert "blocks.1.mlp.fc2.weight" in names
    assert "blocks.1.mlp.fc1.weight" in names


def test_the_field_s_125m_is_78_million_parameters():
    config = load_train_config("m7c_125m_2xa100_production")
    with torch.device("meta"):
        count = parameter_count(NSAModel(config.model, config.attention))
    assert count == pytest.approx(78.3e6, rel=0.02)


@pytest.mark.parametrize("attention", ["nsa", "dense"])
@pytest.mark.parametrize("mlp", ["gelu", "swiglu"])
def test_every_parameter_learns_and_the_loss_starts_at_chance(attention, mlp):
    model = tiny_model(attention=attention, mlp=mlp)
    tokens = torch.randint(256, (2, 65))
    loss = model(tokens[:, :-1], tokens[:, 1:])
    loss.backward()
    assert loss.item() == pytest.approx(torch.tensor(256.0).log().item(), abs=0.3)
    without = [name for name, parameter in model.named_parameters() if not parameter.grad.abs().sum() > 0]
    assert without == []


def test_logits_do_not_see_the_future():
    model = tiny_model()
    tokens = torch.randint(256, (1, 64))
    changed = tokens.clone()
    changed[0, 40:] = (changed[0, 40:] + 1) % 256
    assert torch.allclose(model(tokens)[:, :40], model(changed)[:, :40], atol=1e-6)


@pytest.mark.parametrize("attention", ["nsa", "dense"])
def test_cached_generation_is_what_full_forwards_would_choose(attention):
    model = tiny_model(attention=attention)
    prompt = torch.randint(256, (2, 21))
    generated = model.generate(prompt, 20, temperature=0)
    for length in range(21, 41):
        expected = model(generated[:, :length])[:, -1].argmax(dim=-1)
        assert torch.equal(generated[:, length], expected)


@pytest.mark.parametrize("attention", ["nsa", "dense"])
def test_rows_of_unlike_lengths_generate_what_each_would_alone(attention):
    model = tiny_model(attention=attention)
    prompt, lengths = torch.randint(256, (3, 40)), [40, 3, 17]
    together = model.generate(prompt, 12, lengths=torch.tensor(lengths), temperature=0)
    for row, length in enumerate(lengths):
        alone = model.generate(prompt[row, None, :length], 12, temperature=0)
        assert torch.equal(together[row, : length + 12], alone[0])
        assert not together[row, length + 12 :].any()


def test_sampling_repeats_with_its_generator():
    model = tiny_model()
    prompt = torch.randint(256, (1, 5))
    first, second = (model.generate(prompt, 5, generator=torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(first, second)
    assert first.shape == (1, 10)
