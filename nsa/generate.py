"""Text from a checkpoint, printed as it is made.

python -m nsa.generate checkpoints/step_1000 "Once upon a time" --temperature 0.8 --top-p 0.95
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

from nsa.config import ConfigError, ParallelConfig, TrainConfig
from nsa.generation import Sampling, new_tokens
from nsa.model import NSAModel
from nsa.parallel import pick_device
from nsa.restore import load_model
from nsa.text import Codec, Unfolding, codec_of
from nsa.training.checkpoint import newest_checkpoint


def main(argv: list[str] | None = None) -> int:
    """Run the command line; returns 0, or 2 for a checkpoint or numbers that cannot be used."""
    parser = argparse.ArgumentParser(prog="python -m nsa.generate", description=__doc__.splitlines()[0])
    parser.add_argument(
        "checkpoint",
        type=Path,
        help="step_N, a directory that holds some, or one of transformers' save_pretrained",
    )
    parser.add_argument("prompt", nargs="?", default="", help="text to continue; - reads it from stdin")
    parser.add_argument("--tokens", type=int, default=256, help="at most so many (256)")
    parser.add_argument(
        "--temperature", type=float, default=0.8, help="0 takes the most probable token (0.8)"
    )
    parser.add_argument(
        "--top-p", type=float, default=0.95, help="sample from this share of the probability (0.95)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the samples (0)")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    given = parser.parse_args(argv)
    prompt = sys.stdin.read() if given.prompt == "-" else given.prompt
    try:
        device = pick_device(ParallelConfig(device=given.device))
        checkpoint = newest_checkpoint(given.checkpoint) or given.checkpoint
        model, config = load_model(checkpoint)
        codec = codec_of(checkpoint, config.model.vocab_size)
        generator = torch.Generator(device).manual_seed(given.seed)
        sample = Sampling(given.temperature, generator, given.top_p)
        sample.check()
        for part in continue_text(_on(model, config, device), codec, prompt, given.tokens, sample):
            print(part, end="", flush=True)
    except (ConfigError, ValueError) as error:
        hint = error.hint if isinstance(error, ConfigError) else "see --help"
        print(f"error: {getattr(error, 'message', error)}\nhint: {hint}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader has read enough
        sys.stderr.close()
        return 0
    print()
    return 0


def continue_text(model: NSAModel, codec: Codec, prompt: str, count: int, sample: Sampling) -> Iterator[str]:
    """The text of at most `count` tokens after `prompt`, as they are made, up to the end of the document.

    A prompt without tokens is the end of a document, where the next one begins. ValueError for one with tokens that the
    model does not have.
    """
    ids = codec.encode(prompt) or ([codec.end_of_document] if codec.end_of_document is not None else [])
    if not ids or max(ids) >= model.embed.num_embeddings:
        raise ValueError(
            f"the prompt is of the tokens {ids}; the model has those below {model.embed.num_embeddings}"
        )
    tokens = torch.tensor([ids], device=model.embed.weight.device)
    text = Unfolding(codec)
    for new in new_tokens(model, tokens, count, torch.tensor([len(ids)]), sample):
        token = int(new)
        if token == codec.end_of_document:
            break
        yield text.take(token)
    yield text.end()


def _on(model: NSAModel, config: TrainConfig, device: torch.device) -> NSAModel:
    """The model on `device`; on a GPU in bf16 if it was trained so, for which there are the fastest kernels."""
    in_bf16 = device.type == "cuda" and config.train.precision != "fp32"
    return model.to(device, torch.bfloat16 if in_bf16 else None)


if __name__ == "__main__":
    sys.exit(main())
