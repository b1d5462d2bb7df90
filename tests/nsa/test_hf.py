"""The model in transformers: generation, save and load, training by its Trainer.

The library takes two seconds to import: the tests do, and not each process that only collects them.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from launching import ROOT, TWO_RANKS, run_python
from torch import Tensor

if TYPE_CHECKING:
    from nsa.hf import NSAForCausalLM

pytestmark = pytest.mark.skipif(
    not importlib.util.find_spec("transformers"), reason="pip install 'nsadiag[hf]'"
)
COUNTING = Path(__file__).parent / "data/counting"
SIZES = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "compress_block": 8, "compress_stride": 4, "select_block": 8, "select_count": 3, "window": 6,
}  # fmt: skip


def tiny(**changes: object) -> NSAForCausalLM:
    from nsa.hf import NSAConfig, NSAForCausalLM

    torch.manual_seed(0)
    return NSAForCausalLM(NSAConfig(**SIZES, eos_token_id=None, **changes)).eval()


def prompts(side: str = "left") -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    tokens, mask = torch.randint(1, 256, (3, 30)), torch.ones(3, 30, dtype=torch.int64)
    mask[1, slice(0, 25) if side == "left" else slice(5, 30)] = 0
    mask[2, slice(0, 11) if side == "left" else slice(19, 30)] = 0
    return tokens, mask


@pytest.mark.parametrize("attention", ["nsa", "dense"])
def test_rows_of_unlike_lengths_generate_what_each_would_alone(attention):
    model = tiny(attention=attention)
    tokens, mask = prompts()
    together = model.generate(tokens, attention_mask=mask, max_new_tokens=9, do_sample=False)
    for row in range(3):
        prompt = tokens[row : row + 1, mask[row] == 1]
        alone = model.model.generate(prompt, 9, temperature=0)
        assert torch.equal(together[row, 30:], alone[0, prompt.shape[1] :])


def test_a_cache_grows_beyond_its_room(monkeypatch):
    model = tiny()
    tokens, mask = prompts()
    roomy = model.generate(tokens, attention_mask=mask, max_new_tokens=12, do_sample=False)
    monkeypatch.setattr("nsa.cache.ROOM", 2)
    assert torch.equal(roomy, model.generate(tokens, attention_mask=mask, max_new_tokens=12, do_sample=False))


def test_a_cache_gives_the_logits_of_none():
    model = tiny()
    tokens, mask = prompts()
    with torch.no_grad():
        begun = [model(tokens[:, :27], attention_mask=mask[:, :27]) for _ in range(2)]
        went_on = model(tokens[:, 27:], attention_mask=mask, past_key_values=begun[0].past_key_values)
        renamed = model(tokens[:, 27:], attention_mask=mask, cache=begun[1].past_key_values)
        whole = model(tokens, attention_mask=mask, use_cache=False)
    assert whole.past_key_values is None and begun[0].past_key_values.get_seq_length() == 30
    assert torch.equal(renamed.logits, went_on.logits)
    torch.testing.assert_close(went_on.logits, whole.logits[:, 27:], rtol=1e-4, atol=1e-5)


def test_a_second_turn_continues_the_cache_as_one_that_begins_anew():
    model = tiny()
    tokens, mask = prompts()
    options = {"max_new_tokens": 4, "do_sample": False}
    first = model.generate(tokens, attention_mask=mask, return_dict_in_generate=True, **options)
    everything = torch.cat([first.sequences, tokens[:, :6]], dim=1)
    ones = mask.new_ones(3, everything.shape[1] - mask.shape[1])
    options["attention_mask"] = torch.cat([mask, ones], dim=1)
    cache = first.past_key_values
    assert cache.get_seq_length() == 33
    continued = model.generate(everything, past_key_values=cache, **options)
    assert torch.equal(continued, model.generate(everything, **options))
    assert cache.get_seq_length() == everything.shape[1] + 3


def test_a_mask_that_is_not_of_the_tokens_seen_and_the_new_ones_is_refused():
    model = tiny()
    tokens, mask = prompts()
    with torch.no_grad():
        past = model(tokens[:, :27], attention_mask=mask[:, :27]).past_key_values
        with pytest.raises(ValueError, match=r"\[B, seen \+ new\] = \[3, 57\]"):
            model(tokens, attention_mask=mask, past_key_values=past)  # all of the tokens, some of them twice
        with pytest.raises(ValueError, match=r"keeps .* the cache holds"):
            model(tokens[:, 27:], attention_mask=torch.ones_like(mask), past_key_values=past)
        with pytest.raises(ValueError, match="cu_seqlens"):
            model(tokens[:, 27:], past_key_values=past, cu_seqlens=torch.tensor([0, 3]))
        with pytest.raises(ValueError, match="position_ids do not continue"):
            model(tokens[:, 27:], past_key_values=past, position_ids=torch.arange(3)[None])


def test_padding_after_a_cache_is_refused():
    model = tiny()
    tokens, mask = prompts()
    with torch.no_grad():
        past = model(tokens[:, :27], attention_mask=mask[:, :27]).past_key_values
    mask[0, 28] = 0
    with pytest.raises(ValueError, match="padding among the tokens after a cache"):
        model(tokens[:, 27:], attention_mask=mask, past_key_values=past)


def test_beams_are_those_of_a_model_without_a_cache():
    model = tiny()
    tokens, mask = prompts()
    options = {"attention_mask": mask, "max_new_tokens": 6, "num_beams": 3, "do_sample": False}
    assert torch.equal(model.generate(tokens, **options), model.generate(tokens, **options, use_cache=False))


def test_top_p_samples_from_the_likeliest_alone():
    model = tiny()
    tokens, mask = prompts()
    greedy = model.generate(tokens, attention_mask=mask, max_new_tokens=5, do_sample=False)
    sampled = model.generate(
        tokens, attention_mask=mask, max_new_tokens=5, do_sample=True, top_p=1e-6, top_k=0
    )
    assert torch.equal(sampled, greedy)


def test_a_row_ends_at_its_end_of_sequence_and_the_others_go_on():
    model = tiny()
    tokens, mask = prompts()
    free = model.generate(tokens, attention_mask=mask, max_new_tokens=8, do_sample=False)
    end = int(free[1, 32])
    out = model.generate(
        tokens, attention_mask=mask, max_new_tokens=8, do_sample=False, eos_token_id=end, pad_token_id=0
    )
    for row in range(3):
        made = free[row, 30:].tolist()
        stop = made.index(end) + 1 if end in made else len(made)
        got = out[row, 30:].tolist()
        assert got[: min(stop, len(got))] == made[:stop][: len(got)]
        assert not any(got[stop:])


@pytest.mark.parametrize("side", ["left", "right"])
def test_the_loss_and_gradients_of_padded_rows_are_those_of_each_alone(side):
    model = tiny().train()
    tokens, mask = prompts(side)
    labels = tokens.masked_fill(mask == 0, -100)
    padded = model(tokens, attention_mask=mask, labels=labels).loss
    counts = mask.sum(1) - 1
    alone = [
        model(tokens[row : row + 1, mask[row] == 1], labels=tokens[row : row + 1, mask[row] == 1]).loss
        for row in range(3)
    ]
    expected = sum(loss * count for loss, count in zip(alone, counts, strict=True)) / counts.sum()
    torch.testing.assert_close(padded, expected)
    parameters = list(model.parameters())
    pairs = zip(
        torch.autograd.grad(padded, parameters), torch.autograd.grad(expected, parameters), strict=True
    )
    for actual, wanted in pairs:
        torch.testing.assert_close(actual, wanted, rtol=1e-3, atol=1e-6)


def test_the_loss_of_packed_sequences_is_that_of_each_alone():
    model = tiny().train()
    tokens = prompts()[0][:, :20]
    packed = tokens[:2].reshape(1, -1)
    loss = model(packed, labels=packed, cu_seqlens=torch.tensor([0, 20, 40])).loss
    torch.testing.assert_close(loss, model(tokens[:2], labels=tokens[:2]).loss)


def test_recomputing_changes_nothing():
    model = tiny().train()
    tokens, mask = prompts()
    loss = model(tokens, attention_mask=mask, labels=tokens).loss
    expected = torch.autograd.grad(loss, list(model.parameters()))
    model.gradient_checkpointing_enable()
    again = model(tokens, attention_mask=mask, labels=tokens).loss
    assert all(
        torch.equal(a, b)
        for a, b in zip(torch.autograd.grad(again, list(model.parameters())), expected, strict=True)
    )


def test_what_is_saved_is_what_is_loaded(tmp_path):
    from transformers import AutoConfig, AutoModelForCausalLM

    from nsa.hf import NSAForCausalLM

    model = tiny(branches=["sliding", "selected"], compression="mean")
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(loaded) is NSAForCausalLM
    assert AutoConfig.from_pretrained(tmp_path).branches == ["sliding", "selected"]
    tokens, mask = prompts()
    assert torch.equal(model(tokens, attention_mask=mask).logits, loaded(tokens, attention_mask=mask).logits)


def test_sizes_that_do_not_fit_are_refused():
    from nsa.hf import NSAConfig

    with pytest.raises(ValueError, match="head_dim is 15"):
        NSAConfig(head_dim=15)
    with pytest.raises(ValueError, match="select_block is 10"):
        NSAConfig(select_block=10)
    with pytest.raises(ValueError, match="inputs_embeds would not be read"):
        tiny()(prompts()[0], inputs_embeds=torch.zeros(1))


def test_the_base_of_rotations_has_their_names_too(tmp_path):
    from nsa.hf import NSAConfig

    default = {"rope_theta": 5e5, "rope_type": "default"}
    for names in ({"rope_theta": 5e5}, {"rope_base": 5e5}, {"rope_parameters": default}):
        config = NSAConfig(**names)
        assert config.model_config().rope_base == config.rope_theta == 5e5
    config.rope_theta = 2e4
    config.save_pretrained(tmp_path)
    assert NSAConfig.from_pretrained(tmp_path).rope_base == 2e4
    assert NSAConfig.from_dict({"rope_theta": 3e4, "hidden_size": 48}).rope_base == 3e4


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("sliding_window", "'window'"),
        ("hidden_act", "'mlp'"),
        ("num_hidden_layer", "'num_hidden_layers'"),
        ("attention_dropout", "did you mean"),
        ("max_position_embeddings", "no limit"),
    ],
)
def test_a_key_that_nobody_would_read_is_refused(key, hint):
    from nsa.hf import NSAConfig

    with pytest.raises(ValueError, match=f"unknown key '{key}'.*{hint}"):
        NSAConfig(**{key: 1})


@pytest.mark.parametrize(
    "keys",
    [
        {"rope_scaling": {"factor": 2.0}},
        {"rope_parameters": {"rope_type": "yarn", "factor": 2.0}},
        {"rope_parameters": {"rope_type": "linear"}},
        {"rope_theta": 5e5, "rope_base": 2e5},
    ],
)
def test_rotations_that_we_do_not_have_are_refused(keys):
    from nsa.hf import NSAConfig

    with pytest.raises(ValueError, match="rope_"):
        NSAConfig(**keys)


@pytest.mark.parametrize(
    ("use_cache", "side"), [(False, "left"), (True, "left"), (False, "right"), (None, None)]
)
def test_hidden_states_are_the_inputs_of_blocks_and_what_the_head_reads(use_cache, side):
    model = tiny()
    tokens, mask = prompts(side or "left")
    mask = mask if side else None
    with torch.no_grad():
        out = model(tokens, attention_mask=mask, use_cache=use_cache, output_hidden_states=True)
    assert len(out.hidden_states) == 3
    kept = torch.ones(3, 30, dtype=torch.bool) if mask is None else mask == 1
    assert torch.equal(out.hidden_states[0][kept], model.get_input_embeddings()(tokens)[kept])
    torch.testing.assert_close(model.get_output_embeddings()(out.hidden_states[-1]), out.logits)
    assert model(tokens, use_cache=use_cache).hidden_states is None


def test_hidden_states_of_the_tokens_after_a_cache_are_those_of_none():
    model = tiny()
    tokens, mask = prompts()
    model.config.output_hidden_states = True
    with torch.no_grad():
        past = model(tokens[:, :27], attention_mask=mask[:, :27]).past_key_values
        continued = model(tokens[:, 27:], attention_mask=mask, past_key_values=past)
        whole = model(tokens, attention_mask=mask, use_cache=False)
    for some, all_of_them in zip(continued.hidden_states, whole.hidden_states, strict=True):
        torch.testing.assert_close(some, all_of_them[:, 27:], rtol=1e-4, atol=1e-5)


def test_the_trained_model_that_we_ship_counts():
    from transformers import AutoModelForCausalLM

    import nsa.hf  # noqa: F401 - which makes it known

    model = AutoModelForCausalLM.from_pretrained(COUNTING)
    rows = [b"three four five ", b"one two three four five six seven eight nine "]
    longest = max(map(len, rows))
    tokens = torch.tensor([[0] * (longest - len(row)) + list(row) for row in rows])
    out = model.generate(tokens, attention_mask=(tokens != 0).long(), max_new_tokens=17, do_sample=False)
    said = [bytes(row[longest:].tolist()).decode() for row in out]
    assert said == ["six seven eight n", "ten eleven twelve"]
    assert sum(file.stat().st_size for file in COUNTING.iterdir()) < 2e6


@pytest.mark.slow
def test_two_ranks_of_its_trainer_train_as_one_does(tmp_path):
    from nsa.hf import NSAForCausalLM

    losses = {}
    for name, launcher, rows in (("one", (), "2"), ("two", TWO_RANKS, "1")):
        (tmp_path / name).mkdir()
        done = run_python(*launcher, str(ROOT / "tests/nsa/run_hf_trainer.py"), str(tmp_path / name), rows)
        log = tmp_path / name / "log.json"
        assert log.exists(), done.stderr
        losses[name] = json.loads(log.read_text())
    assert losses["two"] == pytest.approx(losses["one"], abs=1e-3)
    assert losses["two"][-1] < losses["two"][0]
    trained = [NSAForCausalLM.from_pretrained(tmp_path / name / "model").state_dict() for name in losses]
    for name, value in trained[0].items():
        torch.testing.assert_close(trained[1][name], value, rtol=1e-2, atol=1e-3)


def test_tied_embeddings_are_one_tensor_also_after_loading(tmp_path):
    model = tiny(tie_word_embeddings=True)
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path)
    tokens, _ = prompts()
    for each in (model, again):
        assert each.get_output_embeddings().weight is each.get_input_embeddings().weight
    assert torch.equal(model(tokens).logits, again(tokens).logits)
    assert tiny().model.head.weight is not tiny().model.embed.weight


def test_weights_that_a_checkpoint_lacks_are_initialised_and_the_others_loaded(tmp_path):
    model = tiny()
    lacking = {name for name in model.state_dict() if "blocks.1." in name or "embed" in name}
    kept = {name: value for name, value in model.state_dict().items() if name not in lacking}
    model.save_pretrained(tmp_path, state_dict=kept)
    again = type(model).from_pretrained(tmp_path).state_dict()
    for name, value in model.state_dict().items():
        if name in lacking:  # drawn anew, from the same distribution
            assert torch.allclose(again[name].std(), value.std(), rtol=0.5, atol=1e-3), name
            assert again[name].abs().max() <= 2 * value.abs().max() + 1e-3, name
        else:
            assert torch.equal(again[name], value), name


def test_a_restart_of_position_ids_begins_a_sequence_as_in_flattened_batches():
    model = tiny()
    tokens, _ = prompts()
    row, positions = tokens[:1], torch.tensor([[*range(11), *range(7), *range(12)]])
    borders = torch.tensor([0, 11, 18, 30])
    expected = model(row, labels=row, cu_seqlens=borders)
    actual = model(row, labels=row, position_ids=positions)
    assert torch.equal(actual.logits, expected.logits) and torch.equal(actual.loss, expected.loss)
    assert torch.equal(model(tokens, position_ids=torch.arange(30)[None]).logits, model(tokens).logits)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"position_ids": torch.arange(30).flip(0)[None]}, "position_ids"),
        ({"position_ids": torch.arange(5, 35)[None]}, "position_ids"),
        ({"position_ids": torch.tensor([[*range(15), *range(15)]]).repeat(3, 1)}, "one row"),
        ({"attention_mask": torch.ones(3, 1, 30, 30)}, r"attention_mask is \(3, 1, 30, 30\)"),
        ({"attention_mask": torch.zeros(3, 30).fill_(-torch.inf)}, "attention_mask holds -inf"),
        ({"attention_mask": torch.ones(3, 30).cumsum(1).long()}, "attention_mask holds 2"),
        (
            {"attention_mask": torch.ones(3, 30), "position_ids": torch.tensor([[*range(15)] * 2])},
            "position_ids do",
        ),
        ({"position_ids": torch.arange(31)[None]}, "position_ids is"),
        ({"output_attentions": True}, "output_attentions"),
        ({"token_type_ids": torch.zeros(3, 30)}, "token_type_ids would not be read"),
        ({"cu_seq_lens_q": torch.tensor([0, 30])}, "cu_seq_lens_q would not be read: give .*cu_seqlens"),
        ({"num_items_in_batch": 3}, "num_items_in_batch would not be read"),
    ],
)
def test_what_would_be_ignored_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        tiny()(prompts()[0], **arguments)


def test_a_cache_of_theirs_is_refused():
    from transformers import DynamicCache

    with pytest.raises(ValueError, match="DynamicCache"):
        tiny()(prompts()[0], past_key_values=DynamicCache())


def test_logits_to_keep_may_be_positions():
    model, (tokens, _) = tiny(), prompts()
    head, states = model.get_output_embeddings(), []
    head.register_forward_pre_hook(lambda _, inputs: states.extend(inputs))
    kept = torch.tensor([3, 29])
    logits = model(tokens, logits_to_keep=kept).logits
    model(tokens)
    # By what the head is given: the last bits of a product of fewer rows depend on how many threads share it.
    assert torch.equal(states[0], states[1][:, kept]) and torch.equal(logits, head(states[0]))


def test_activation_checkpointing_is_said_to_be_on_and_what_it_cannot_do_is_refused():
    model = tiny()
    model.gradient_checkpointing_enable()
    assert any(getattr(each, "gradient_checkpointing", False) for each in model.modules())
    model.gradient_checkpointing_disable()
    assert not any(getattr(each, "gradient_checkpointing", False) for each in model.modules())
    for arguments in ({"every_n_layers": 3}, {"offload": True}):
        with pytest.raises(ValueError, match=next(iter(arguments))):
            model.gradient_checkpointing_enable(**arguments)
