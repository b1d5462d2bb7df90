"""From a checkpoint to text, and to transformers and back."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from launching import ROOT

import nsa.__main__ as console
from nsa.export import main as export
from nsa.generate import continue_text
from nsa.generate import main as generate
from nsa.generation import Sampling
from nsa.model import NSAModel
from nsa.options import load_train_config
from nsa.restore import load_model, read_config
from nsa.text import Bytes, Unfolding, codec_of
from nsa.tokenize import main as tokenize
from nsa.train import main as train_main
from nsa.train import train

SENTENCE = "one two three four five six seven eight nine ten "


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A directory of checkpoints of a model that has learned a sentence."""
    directory = tmp_path_factory.mktemp("trained")
    (directory / "text").write_text(SENTENCE * 400)
    train(
        load_train_config(
            "tiny",
            [
                "data.source=text", f"data.path={directory / 'text'}", "train.steps=90", "optimizer.lr=0.01",
                "data.batch_size=4", f"checkpoint.dir={directory / 'checkpoints'}", "checkpoint.every=45",
            ],
        )
    )  # fmt: skip
    return directory / "checkpoints"


@pytest.fixture(scope="module")
def of_tokens(tmp_path_factory):
    """A checkpoint of a model of token ids."""
    tokenizers = pytest.importorskip("tokenizers")
    directory = tmp_path_factory.mktemp("of_tokens")
    made = tokenizers.ByteLevelBPETokenizer()
    made.train_from_iterator([SENTENCE + "naïve φ"], vocab_size=290, special_tokens=["<|endoftext|>"])
    made.save(str(directory / "tokenizer.json"))
    (directory / "text").write_text(SENTENCE * 100)
    arguments = [
        str(directory / "text"),
        "--out",
        str(directory / "ids"),
        "--tokenizer",
        str(directory / "tokenizer.json"),
    ]
    assert tokenize(arguments) == 0
    options = [
        f"data.path={directory / 'ids'}",
        "model.vocab_size=300",
        f"checkpoint.dir={directory / 'checkpoints'}",
    ]
    train(load_train_config("tiny", ["data.source=tokens", "data.seq_len=32", *options]))
    return directory / "checkpoints/step_3"


def test_a_checkpoint_carries_its_configuration_and_tokenizer(trained, of_tokens):
    assert read_config(trained / "step_90").data.batch_size == 4
    assert (of_tokens / "tokenizer.json").read_bytes() == (
        of_tokens.parents[1] / "tokenizer.json"
    ).read_bytes()
    assert codec_of(of_tokens, 300).end_of_document == 0


def test_a_run_with_another_model_does_not_resume(trained, capsys):
    options = ["--checkpoint.dir", str(trained), "--checkpoint.resume", "true", "--train.steps", "91"]
    assert train_main(["tiny", *options, "--model.layers", "3"]) == 2
    assert "model.layers is 3, and 2 in" in capsys.readouterr().err


def test_the_command_continues_what_was_learned(trained, capsys):
    for checkpoint in (trained, trained / "step_90"):
        assert generate([str(checkpoint), SENTENCE + "one tw", "--tokens", "12", "--temperature", "0"]) == 0
        assert capsys.readouterr().out == "o three four\n"


def test_the_text_is_printed_as_it_is_made(trained):
    model, config = load_model(trained / "step_90")
    parts = continue_text(model, codec_of(trained, config.model.vocab_size), "one two", 10**5, Sampling(0))
    assert len([next(parts) for _ in range(5)]) == 5


def test_samples_repeat_by_their_seed_and_top_p_of_almost_none_is_the_most_probable(trained, capsys):
    def said(*options):
        assert generate([str(trained), "one", "--tokens", "20", *options]) == 0
        return capsys.readouterr().out

    warm = ("--temperature", "2", "--top-p", "1")
    assert said(*warm, "--seed", "1") == said(*warm, "--seed", "1") != said(*warm, "--seed", "2")
    assert said("--temperature", "2", "--top-p", "1e-9") == said("--temperature", "0")


def test_top_p_keeps_the_fewest_tokens_of_that_probability():
    logits = torch.tensor([[0.5, 0.25, 0.15, 0.1]]).log().repeat(4000, 1)
    for top_p, kept in ((0.5, 1), (0.51, 2), (0.75, 2), (0.9, 3), (1.0, 4)):
        sample = Sampling(1.0, torch.Generator().manual_seed(0), top_p)
        counts = sample(logits).flatten().bincount(minlength=4)
        assert (counts > 0).tolist() == [i < kept for i in range(4)]
        expected = logits[0, :kept].exp() / logits[0, :kept].exp().sum()
        torch.testing.assert_close(counts[:kept] / 4000, expected, atol=0.04, rtol=0)


@pytest.mark.parametrize("numbers", [("--temperature", "-1"), ("--top-p", "0"), ("--top-p", "1.5")])
def test_numbers_that_cannot_be_are_refused(trained, numbers, capsys):
    assert generate([str(trained), "one", *numbers]) == 2
    assert numbers[0].removeprefix("--").replace("-", "_") + " is" in capsys.readouterr().err


def test_what_is_no_checkpoint_is_refused_with_what_to_name(tmp_path, capsys):
    for command in (generate, export):
        assert command([str(tmp_path), str(tmp_path / "new")]) == 2
        assert "nsa.json cannot be used" in capsys.readouterr().err


def test_a_character_of_several_tokens_is_printed_whole():
    text = Unfolding(Bytes())
    assert [text.take(byte) for byte in "φ!".encode()] == ["", "φ", "!"]
    assert text.take(0xCF) + text.end() == "\ufffd"


def test_an_empty_prompt_begins_a_document(of_tokens, capsys):
    assert generate([str(of_tokens), "", "--tokens", "3"]) == 0
    assert generate([str(of_tokens), "naïve φ", "--tokens", "3"]) == 0
    capsys.readouterr()


def assert_same_weights(one: NSAModel, other: NSAModel) -> None:
    theirs = other.state_dict()
    for name, value in one.state_dict().items():
        assert value.dtype == theirs[name].dtype and torch.equal(value, theirs[name]), name


@pytest.mark.parametrize("which", ["trained", "of_tokens"])
def test_an_export_and_its_return_keep_every_bit(which, request, tmp_path, capsys):
    transformers = pytest.importorskip("transformers")
    import nsa.hf  # noqa: F401 - registers the model

    checkpoint = request.getfixturevalue(which)
    there, back = tmp_path / "there", tmp_path / "back"
    assert export([str(checkpoint), str(there)]) == export([str(there), str(back)]) == 0
    original, config = load_model(checkpoint / "step_90" if which == "trained" else checkpoint)
    returned, again = load_model(back)
    assert (again.model, again.attention) == (
        config.model.model_copy(update={"mlp_hidden": 4 * config.model.dim}),
        config.attention,
    )
    assert_same_weights(original, returned)
    exported = transformers.AutoModelForCausalLM.from_pretrained(there)
    assert_same_weights(original, exported.model)
    assert exported.config.eos_token_id == 0
    said = []
    for each in (checkpoint, there, back):
        capsys.readouterr()
        assert generate([str(each), "one two", "--tokens", "8", "--temperature", "0"]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1] == said[2]
    if which == "of_tokens":
        tokenizer = transformers.AutoTokenizer.from_pretrained(there)
        assert tokenizer.decode(tokenizer("naïve φ")["input_ids"]) == "naïve φ"
        assert tokenizer.eos_token == "<|endoftext|>"


def test_bf16_weights_stay_bf16(tmp_path):
    pytest.importorskip("transformers")
    options = ["train.steps=1", "train.precision=bf16_pure", f"checkpoint.dir={tmp_path}"]
    train(load_train_config("tiny", options))
    assert export([str(tmp_path), str(tmp_path / "there")]) == 0
    assert export([str(tmp_path / "there"), str(tmp_path / "back")]) == 0
    first, last = load_model(tmp_path / "step_1")[0], load_model(tmp_path / "back")[0]
    assert first.embed.weight.dtype == torch.bfloat16
    assert_same_weights(first, last)


def test_the_console_command_runs_each_program_by_name(capsys):
    assert console.main([]) == console.main(["--help"]) == 0
    said = capsys.readouterr().out
    assert all(f"  {name} " in said for name in console.COMMANDS)
    assert console.main(["fly"]) == 2
    assert "no command 'fly'" in capsys.readouterr().err
    assert console.main(["train", "tiny", "--train.steps", "1"]) == 0
    for name in ("generate", "export", "tokenize"):
        done = subprocess.run(
            [sys.executable, "-m", "nsa", name, "--help"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.startswith(f"usage: python -m nsa.{name}")
