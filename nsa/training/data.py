"""Training tokens: synthetic, local text or token ids, or FineWeb-Edu streamed; sharded by rank, resumable exactly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from nsa.config import ConfigError, DataConfig, TrainConfig
from nsa.training.corpus import TextFiles, TokensFile, Windows
from nsa.training.documents import END_OF_DOCUMENT, Batch, joined, separate

SYNTHETIC_PERIOD = 16  # tokens; copying what stood one period ago is something a model can learn

Sample = Callable[[int], np.ndarray]  # from the number of a sample to its integers [seq_len + 1]


class Stream(Protocol):
    """An endless stream of batches, which its state determines.

    `common_state`: the state is common to all ranks, so that any number of ranks can resume from it. `end_of_document` is
    the token behind each document.
    """

    common_state: bool
    end_of_document: int

    def next_batch(self) -> Tensor:
        """int64 [batch_size, seq_len + 1], on the CPU: inputs are [:, :-1], targets [:, 1:]."""

    def state_dict(self) -> dict[str, Any]:
        """The position of the stream: plain values."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the position of `state`."""

    def close(self) -> None:
        """End threads and close files."""


def open_stream(
    config: DataConfig,
    *,
    vocab_size: int = 256,
    seed: int = 0,
    rank: int = 0,
    world_size: int = 1,
    evaluation: bool = False,
) -> Stream:
    """The stream that `config` names, as rank `rank` of `world_size` sees it.

    Ranks read disjoint samples: batch k of all ranks together is what one rank with world_size times
    the batch size would read as batch k (all but fineweb). ConfigError for data that is missing or does not fit.
    """
    if config.source == "fineweb":
        # Imported here because `datasets` is optional and takes a second to import.
        from nsa.training.fineweb import FinewebStream

        return FinewebStream(config, rank=rank, world_size=world_size, evaluation=evaluation)
    placed = {"batch_size": config.batch_size, "rank": rank, "world_size": world_size}
    if config.source == "synthetic":
        sample = _periodic_samples(config.seq_len, vocab_size, [seed, int(evaluation)])
        return IndexedStream(sample, **placed)
    corpus = TextFiles(config.path) if config.source == "text" else TokensFile(config.path)
    if corpus.vocab_size > vocab_size:
        raise ConfigError(
            f"model.vocab_size is {vocab_size}, and {config.path} has ids below {corpus.vocab_size}",
            f"give --model.vocab_size {corpus.vocab_size} or more",
        )
    windows = Windows(corpus, config.seq_len, seed, evaluation=evaluation)
    return IndexedStream(windows, **placed, end_of_document=corpus.end_of_document)


def pack(tokens: Tensor, config: DataConfig, end_of_document: int = END_OF_DOCUMENT) -> Batch:
    """A batch from rows of tokens [B, T + 1], with documents joined or separate."""
    return separate(tokens, end_of_document) if documents_apart(config) else joined(tokens)


def documents_apart(config: DataConfig) -> bool:
    """Whether documents are separate; synthetic tokens have none."""
    return config.documents == "separate" and config.source != "synthetic"


def check_documents(config: TrainConfig) -> None:
    """Raise ConfigError if documents cannot be kept separate."""
    if not documents_apart(config.data):
        return
    hint = "--data.documents joined lets documents of a row see each other"
    if config.train.cuda_graph:
        raise ConfigError("data.documents is separate, and train.cuda_graph records one shape", hint)


class IndexedStream:
    """Batches of samples that are computed from their number; its state is the number of samples read by all ranks."""

    common_state = True

    def __init__(
        self,
        sample: Sample,
        *,
        batch_size: int,
        rank: int,
        world_size: int,
        end_of_document: int = END_OF_DOCUMENT,
    ) -> None:
        self._sample = sample
        self.end_of_document = end_of_document
        self._batch_size = batch_size
        self._rank = rank
        self._world_size = world_size
        self._samples = 0

    def next_batch(self) -> Tensor:
        first = self._samples + self._rank * self._batch_size
        self._samples += self._world_size * self._batch_size
        rows = [self._sample(first + row) for row in range(self._batch_size)]
        return torch.from_numpy(np.stack(rows).astype(np.int64))

    def state_dict(self) -> dict[str, Any]:
        return {"samples": self._samples}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._samples = state["samples"]

    def close(self) -> None:
        """Nothing to close."""


def _periodic_samples(seq_len: int, vocab_size: int, seed: list[int]) -> Sample:
    def sample(index: int) -> np.ndarray:
        uniform = np.random.default_rng([*seed, index]).random(SYNTHETIC_PERIOD)
        pattern = 1 + (uniform**4 * (vocab_size - 1)).astype(np.int64)  # most tokens are rare, as in text
        return np.resize(pattern, seq_len + 1)

    return sample
