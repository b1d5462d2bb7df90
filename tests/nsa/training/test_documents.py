"""Documents in one row, and rows padded to one length: each comes out as it would alone."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import Tensor

from nsa.config import ConfigError, DataConfig
from nsa.model import NO_TARGET, NSAModel, loss_of
from nsa.options import load_train_config
from nsa.padding import alignment_of, packing_of
from nsa.train import train
from nsa.training.data import pack
from nsa.training.documents import separate
from nsa.training.recomputation import apply_activation_checkpointing

LENGTHS = (37, 1, 12, 50)


def model(attention: str = "nsa") -> NSAModel:
    torch.manual_seed(0)
    config = load_train_config(
        "tiny",
        [
            f"model.attention={attention}", "attention.compress_block=8", "attention.compress_stride=4",
            "attention.select_block=8", "attention.select_count=3", "attention.window=6",
        ],
    )  # fmt: skip
    return NSAModel(config.model, config.attention).double()


def documents() -> list[Tensor]:
    torch.manual_seed(1)
    return [torch.randint(1, 256, (1, n)) for n in LENGTHS]


def borders() -> Tensor:
    return torch.tensor([0, *LENGTHS]).cumsum(0)


@pytest.mark.parametrize("recomputed", ["none", "full", "selective"])
@pytest.mark.parametrize("attention", ["nsa", "dense"])
def test_packed_documents_have_the_loss_and_gradients_of_each_alone(attention, recomputed):
    lm = model(attention)
    targets = [torch.randint(256, (1, n)) for n in LENGTHS]
    alone = sum(
        lm(tokens, target) * tokens.numel() for tokens, target in zip(documents(), targets, strict=True)
    ) / sum(LENGTHS)
    expected = torch.autograd.grad(alone, list(lm.parameters()))
    apply_activation_checkpointing(lm, recomputed)
    packed = lm(torch.cat(documents(), 1), torch.cat(targets, 1), borders())
    torch.testing.assert_close(packed, alone)
    for actual, wanted in zip(torch.autograd.grad(packed, list(lm.parameters())), expected, strict=True):
        torch.testing.assert_close(actual, wanted, rtol=1e-9, atol=1e-12)


def padded(side: str) -> tuple[Tensor, Tensor]:
    """Rows of one length with garbage for padding, and the mask."""
    tokens = torch.randint(256, (len(LENGTHS), max(LENGTHS)))
    mask = torch.zeros_like(tokens)
    for row, document in enumerate(documents()):
        start = {"left": max(LENGTHS) - document.shape[1], "right": 0}[side]
        where = slice(start, start + document.shape[1])
        tokens[row, where], mask[row, where] = document[0], 1
    return tokens, mask


@pytest.mark.parametrize("attention", ["nsa", "dense"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_padded_rows_have_the_logits_of_each_alone(attention, side):
    lm = model(attention)
    tokens, mask = padded(side)
    logits = lm(tokens, attention_mask=mask)
    assert (logits[mask == 0] == 0).all()
    for row, document in enumerate(documents()):
        torch.testing.assert_close(logits[row, mask[row] == 1], lm(document)[0], rtol=1e-9, atol=1e-11)


@functools.cache
def generated_alone() -> list[Tensor]:
    lm = model()
    return [lm.generate(document, 9, temperature=0)[0] for document in documents()]


@pytest.mark.parametrize("how", ["left", "right", "packed"])
def test_prompts_of_unlike_lengths_generate_what_each_would_alone(how):
    lm = model()
    if how == "packed":
        out = lm.generate(torch.cat(documents(), 1), 9, cu_seqlens=borders(), temperature=0)
    else:
        tokens, mask = padded(how)
        out = lm.generate(tokens, 9, attention_mask=mask, temperature=0)
    for row, alone in enumerate(generated_alone()):
        assert torch.equal(out[row, : len(alone)], alone)
        assert not out[row, len(alone) :].any()


def test_rows_are_cut_where_documents_end_and_ends_predict_nothing():
    batch = separate(torch.tensor([[5, 0, 6, 7, 8], [9, 9, 9, 0, 4]]))
    assert batch.inputs.tolist() == [[5, 0, 6, 7, 9, 9, 9, 0]]
    assert batch.targets.tolist() == [[0, NO_TARGET, 7, 8, 9, 9, 0, NO_TARGET]]
    assert batch.cu_seqlens.tolist() == [0, 2, 4, 8, 8, 8, 8, 8]
    assert batch.counted() == 6


def test_the_number_of_borders_grows_by_powers_of_two_and_has_room_for_all():
    for n in (1, 6, 7, 8, 15, 16, 40):
        batch = separate(torch.zeros(1, n + 1, dtype=torch.int64))
        borders = batch.cu_seqlens.tolist()
        assert borders == [*range(n), *[n] * (len(borders) - n)] and len(borders) > n
        assert len(borders).bit_count() == 1


def test_synthetic_tokens_are_no_documents():
    tokens = torch.zeros(2, 9, dtype=torch.int64)
    assert pack(tokens, DataConfig()).cu_seqlens is None
    assert pack(tokens, DataConfig(source="fineweb")).cu_seqlens is not None
    assert pack(tokens, DataConfig(source="fineweb", documents="joined")).cu_seqlens is None


def test_a_step_graph_cannot_keep_documents_apart_and_says_so(tmp_path):
    (tmp_path / "a.txt").write_text("hung " * 100)
    options = ["data.source=text", f"data.path={tmp_path}", "train.cuda_graph=true"]
    with pytest.raises(ConfigError, match=r"train.cuda_graph records one shape"):
        train(load_train_config("tiny", options))


def test_a_mask_of_pairs_and_a_mask_with_borders_are_refused():
    lm = model()
    tokens, mask = padded("left")
    with pytest.raises(ValueError, match=r"attention_mask is \(4, 1, 50\); it must be \[B, T\]"):
        lm(tokens, attention_mask=mask[:, None])
    with pytest.raises(ValueError, match="give one"):
        lm(tokens, cu_seqlens=borders(), attention_mask=mask)
    with pytest.raises(ValueError, match=r"attention_mask is \(4, 49\); it must be \[B, T\] = \[4, 50\]"):
        lm(tokens, attention_mask=mask[:, 1:])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"attention_mask": torch.ones(2, 7)}, r"attention_mask is \(2, 7\); it must be \[B, T\] = \[2, 8\]"),
        ({"attention_mask": torch.tensor([[1] * 8, [0] * 8])}, "attention_mask has no token in row 1"),
        ({"lengths": torch.tensor([8])}, r"lengths is torch.int64 \(1,\); it must be int32 or int64 \[B\] = \[2\]"),
        ({"lengths": torch.tensor([8.0, 8.0])}, "lengths is torch.float32"),
        ({"lengths": torch.tensor([8, 9])}, r"lengths is \[8, 9\]; each must be 1 to 8"),
        ({"lengths": torch.tensor([0, 8])}, r"lengths is \[0, 8\]"),
        ({"lengths": torch.tensor([8, 8]), "attention_mask": torch.ones(2, 8)}, "give one of lengths, attention_mask, cu_seqlens"),
        ({"cu_seqlens": torch.tensor([0, 8])}, "into one row, but the batch has 2 rows"),
        ({"count": -1}, "count is -1"),
        ({"temperature": -0.5}, "temperature is -0.5"),
    ],
)  # fmt: skip
def test_prompts_that_do_not_fit_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        model().generate(torch.ones(2, 8, dtype=torch.int64), **{"count": 2, **arguments})


@pytest.mark.parametrize("borders", [[0, 5], [0, 5, 5, 8], [0, 8, 8]])
def test_packed_prompts_are_the_whole_row_and_none_is_empty(borders):
    with pytest.raises(
        ValueError, match=r"cu_seqlens is .*; prompts end at the row's 8 tokens, and none is empty"
    ):
        model().generate(torch.ones(1, 8, dtype=torch.int64), 2, cu_seqlens=torch.tensor(borders))


def test_packing_and_aligning_take_any_mask():
    x = torch.arange(24).view(2, 4, 3)
    mask = torch.tensor([[0, 1, 0, 1], [1, 0, 0, 0]])
    packing = packing_of(mask, x)
    assert packing.pack(x)[0, :, 0].tolist() == [3, 9, 12]
    assert torch.equal(packing.unpack(packing.pack(x)), x * mask[..., None])
    alignment = alignment_of(mask, x)
    assert alignment.take(x)[0, :2, 0].tolist() == [3, 9] and alignment.lengths.tolist() == [2, 1]
    assert torch.equal(alignment.put_back(alignment.take(x)), x * mask[..., None])


def test_targets_of_minus_100_are_left_out():
    logits = torch.randn(1, 3, 5)
    targets = torch.tensor([[1, NO_TARGET, 2]])
    torch.testing.assert_close(loss_of(logits, targets), loss_of(logits[:, [0, 2]], targets[:, [0, 2]]))


def test_a_batch_without_a_target_has_a_loss_of_0_and_gradients_of_0():
    lm = model()
    loss = lm(torch.zeros(1, 9, dtype=torch.int64), torch.full((1, 9), NO_TARGET))
    loss.backward()
    assert loss == 0
    assert not any(parameter.grad.any() for parameter in lm.parameters())


@pytest.mark.slow  # importing the compiler takes 8 s
def test_compiled_blocks_keep_documents_apart_without_a_graph_break():
    lm, compiled = model(), model()
    for block in compiled.blocks:
        block.compile(backend="aot_eager", fullgraph=True)
    packed = torch.cat(documents(), 1)
    for cu_seqlens in (borders(), torch.tensor([0, 60, 100])):
        targets = torch.roll(packed, -1)
        expected, actual = (each(packed, targets, cu_seqlens) for each in (lm, compiled))
        torch.testing.assert_close(actual, expected)
        gradients = [
            torch.autograd.grad(loss, list(each.parameters()))
            for loss, each in ((expected, lm), (actual, compiled))
        ]
        for a, e in zip(*gradients, strict=True):
            torch.testing.assert_close(a, e)
