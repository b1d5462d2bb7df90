"""Conversion of a checkpoint of `nsa.train` to a directory of transformers, and of one to a checkpoint, bit for bit.

python -m nsa.export checkpoints/step_1000 exported/
python -m nsa.export exported/ checkpoint/
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path

from nsa.config import ConfigError, TrainConfig
from nsa.model import NSAModel
from nsa.restore import copy_tokenizer, is_of_transformers, load_model, save_model
from nsa.text import Tokenizer, codec_of
from nsa.training.checkpoint import newest_checkpoint
from nsa.training.corpus import TOKENIZER


def main(argv: list[str] | None = None) -> int:
    """Run the command line; returns 0, or 2 for directories that cannot be used."""
    parser = argparse.ArgumentParser(prog="python -m nsa.export", description=__doc__.splitlines()[0])
    parser.add_argument(
        "source",
        type=Path,
        help="step_N, a directory that holds some, or one of transformers' save_pretrained",
    )
    parser.add_argument(
        "target", type=Path, help="directory to write, in the other form; it may not exist yet"
    )
    given = parser.parse_args(argv)
    try:
        if given.target.exists():
            raise ConfigError(f"{given.target} exists", "name a new directory")
        source = newest_checkpoint(given.source) or given.source
        model, config = load_model(source)
        if is_of_transformers(source):
            save_model(given.target, model, config)
            copy_tokenizer(source, given.target)
        else:
            save_for_transformers(model, config, source, given.target)
    except ConfigError as error:
        print(f"error: {error.message}\nhint: {error.hint}", file=sys.stderr)
        return 2
    print(f"{source} -> {given.target}")
    return 0


def save_for_transformers(model: NSAModel, config: TrainConfig, checkpoint: Path, directory: Path) -> None:
    """Write `model`, and the tokenizer in `checkpoint`, as `NSAForCausalLM.save_pretrained` does.

    ConfigError without transformers, and for a vocabulary that is not of bytes and without a tokenizer.
    """
    if importlib.util.find_spec("transformers") is None:
        raise ConfigError("the export needs the package transformers", "pip install transformers")
    import torch
    from transformers import PreTrainedTokenizerFast

    from nsa.hf import NSAConfig, NSAForCausalLM

    codec = codec_of(checkpoint, config.model.vocab_size)
    end = codec.end_of_document
    sizes = config.model
    names = {
        "vocab_size": sizes.vocab_size, "num_hidden_layers": sizes.layers, "hidden_size": sizes.dim,
        "num_attention_heads": sizes.heads, "num_key_value_heads": sizes.kv_groups, "head_dim": sizes.head_dim,
        "attention": sizes.attention, "mlp": sizes.mlp, "intermediate_size": sizes.mlp_hidden, "rope_base": sizes.rope_base,
    }  # fmt: skip
    with torch.device("meta"):
        wrapped = NSAForCausalLM(
            NSAConfig(**names, **config.attention.model_dump(), pad_token_id=end, eos_token_id=end)
        )
    wrapped = wrapped.to(model.embed.weight.dtype)
    wrapped.model = model
    wrapped.save_pretrained(directory)
    if isinstance(codec, Tokenizer):
        name = None if end is None else codec.token(end)
        files = PreTrainedTokenizerFast(
            tokenizer_file=str(checkpoint / TOKENIZER), eos_token=name, pad_token=name
        )
        files.save_pretrained(directory)
    copy_tokenizer(checkpoint, directory)


if __name__ == "__main__":
    sys.exit(main())
