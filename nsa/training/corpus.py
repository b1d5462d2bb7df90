"""Tokens on disk that ranks read in windows, in a shuffled order, without holding them: text as bytes, or files of token ids.

A directory of token ids (`python -m nsa.tokenize` writes one) holds `tokens.bin`, little-endian uint16 or uint32, and
`tokens.json`: dtype, tokens, vocab_size, and end_of_document, the id behind each document. A copy of the tokenizer may lie
beside them as `tokenizer.json`.
"""

from __future__ import annotations

import bisect
import hashlib
import json
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from nsa.config import ConfigError
from nsa.training.documents import END_OF_DOCUMENT

DATA, DESCRIPTION, TOKENIZER = "tokens.bin", "tokens.json", "tokenizer.json"
EVAL_SHARE = 20  # one window in so many is kept for evaluation
ROUNDS = 4  # of the Feistel network: from three on, orders look random


class Corpus(Protocol):
    """A sequence of tokens."""

    n_tokens: int
    end_of_document: int
    vocab_size: int

    def read(self, first: int, n: int) -> np.ndarray:
        """The n tokens from the first on, [n], of any unsigned dtype."""


class TokensFile:
    """A memory-mapped directory of token ids: the operating system holds the pages that are read, once for all ranks."""

    def __init__(self, path: str | Path | None) -> None:
        """ConfigError for a directory that is missing, incomplete, or not what its description says."""
        description = read_description(path)
        self.n_tokens, self.vocab_size = description.tokens, description.vocab_size
        self.end_of_document = description.end_of_document
        file = Path(path or "") / DATA
        size = file.stat().st_size if file.is_file() else 0
        needed = self.n_tokens * np.dtype(description.dtype).itemsize
        if size != needed:
            raise ConfigError(
                f"{file} holds {size} bytes, and {DESCRIPTION} needs {needed}", "write it again"
            )
        self._tokens = np.memmap(file, dtype=np.dtype(description.dtype).newbyteorder("<"), mode="r")

    def read(self, first: int, n: int) -> np.ndarray:
        return self._tokens[first : first + n]


class Description(NamedTuple):
    """The contents of `tokens.json`."""

    dtype: str  # uint16 or uint32
    tokens: int
    vocab_size: int
    end_of_document: int


def read_description(path: str | Path | None) -> Description:
    """The description of the token ids in the directory `path`; ConfigError that names what is wrong with it."""
    file = Path(path or "") / DESCRIPTION
    hint = "set data.path to a directory that `python -m nsa.tokenize` wrote"
    try:
        values: Any = json.loads(file.read_text(encoding="utf-8"))
        description = Description(**{name: values[name] for name in Description._fields})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{file} cannot be used: {type(error).__name__}: {error}", hint) from None
    numbers = description[1:]
    if description.dtype not in ("uint16", "uint32") or not all(
        isinstance(n, int) and n >= 0 for n in numbers
    ):
        raise ConfigError(
            f"{file} holds {description}", "dtype is uint16 or uint32, the others are whole numbers"
        )
    return description


class TextFiles:
    """The bytes of all files below a path in the order of their names, an end of document behind each."""

    end_of_document = END_OF_DOCUMENT
    vocab_size = 256

    def __init__(self, path: str | Path | None) -> None:
        """ConfigError if there is nothing at `path`."""
        if path is None or not Path(path).exists():
            raise ConfigError(
                f"data.path is {path}, where no text is", "set data.path to a file or a directory"
            )
        root = Path(path)
        self._files = [root] if root.is_file() else sorted(each for each in root.rglob("*") if each.is_file())
        self._ends = list(accumulate(file.stat().st_size + 1 for file in self._files))
        self.n_tokens = self._ends[-1] if self._ends else 0

    def read(self, first: int, n: int) -> np.ndarray:
        out = np.full(n, END_OF_DOCUMENT, dtype=np.uint8)
        done, index = 0, bisect.bisect_right(self._ends, first)
        while done < n and index < len(self._files):
            end = self._ends[index]
            start = end - self._files[index].stat().st_size - 1
            with self._files[index].open("rb") as file:
                file.seek(first + done - start)
                part = file.read(min(n - done, end - 1 - first - done))
            out[done : done + len(part)] = np.frombuffer(part, dtype=np.uint8)
            done, index = end - first, index + 1
        return out


class Windows:
    """Windows of seq_len tokens, and one more, the last target, in a new order each epoch; by number, in constant memory."""

    def __init__(self, corpus: Corpus, seq_len: int, seed: int, *, evaluation: bool) -> None:
        """ConfigError for a corpus without a window."""
        self._corpus, self._seq_len, self._seed, self._evaluation = corpus, seq_len, seed, evaluation
        everything = max(0, corpus.n_tokens - 1) // seq_len
        held_out = everything // EVAL_SHARE
        self.count = held_out if evaluation else everything - held_out
        if not self.count:
            raise ConfigError(
                f"data.path holds {corpus.n_tokens} tokens, too few for {'evaluation' if evaluation else 'training'} "
                f"in sequences of {seq_len}",
                "give more data or a smaller data.seq_len",
            )

    def __call__(self, index: int) -> np.ndarray:
        epoch, place = divmod(index, self.count)
        number = shuffled(place, self.count, f"{self._seed} {epoch}")
        # Of every EVAL_SHARE windows the last is held out.
        rest = EVAL_SHARE - 1
        window = number * EVAL_SHARE + rest if self._evaluation else number + number // rest
        return self._corpus.read(window * self._seq_len, self._seq_len + 1)


def shuffled(index: int, n: int, key: str) -> int:
    """The place of `index` in an order of range(n) that `key` determines: a Feistel network, walked until it is below n."""
    half = max(1, (n - 1).bit_length() + 1 >> 1)
    mask, keys = (1 << half) - 1, _round_keys(key)
    while True:
        left, right = index >> half, index & mask
        for round_key in keys:
            mixed = (right + round_key) * 0x9E3779B97F4A7C15 & (1 << 64) - 1
            mixed = (mixed ^ mixed >> 29) * 0xBF58476D1CE4E5B9 & (1 << 64) - 1
            left, right = right, left ^ (mixed >> 32 & mask)
        index = left << half | right
        if index < n:
            return index


@lru_cache(maxsize=4)
def _round_keys(key: str) -> tuple[int, ...]:
    digest = hashlib.sha256(key.encode()).digest()
    return tuple(int.from_bytes(digest[8 * i : 8 * i + 8], "little") for i in range(ROUNDS))
