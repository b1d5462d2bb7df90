"""Text as token ids and back, as the data of a checkpoint had it: bytes, or a tokenizer of Hugging Face."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from nsa.config import ConfigError
from nsa.tokenize import load_tokenizer
from nsa.training.corpus import DESCRIPTION, TOKENIZER, read_description
from nsa.training.documents import END_OF_DOCUMENT

BYTES = 256
_CUT = "\ufffd"  # how a decoder shows the first bytes of a character


class Codec(Protocol):
    """Text to token ids and back."""

    end_of_document: int | None

    def encode(self, text: str) -> list[int]:
        """The ids of `text`, without an end of document."""

    def decode(self, ids: list[int]) -> str:
        """The text of `ids`; bytes that are no character yet become U+FFFD."""


class Bytes:
    """Bytes as ids."""

    end_of_document: int | None = END_OF_DOCUMENT

    def encode(self, text: str) -> list[int]:
        return list(text.encode("utf-8"))

    def decode(self, ids: list[int]) -> str:
        return bytes(i for i in ids if i < BYTES).decode("utf-8", errors="replace")


class Tokenizer:
    """The ids of a tokenizer.json."""

    def __init__(self, file: Path, end_of_document: int | None) -> None:
        self._tokenizer: Any = load_tokenizer(file)
        self.end_of_document = end_of_document

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=False)

    def token(self, number: int) -> str:
        """The token with this id."""
        return self._tokenizer.id_to_token(number)


def codec_of(checkpoint: Path, vocab_size: int) -> Codec:
    """The codec of the text that a model of `vocab_size` was trained on: by the tokenizer.json beside it, else bytes.

    ConfigError for a vocabulary that is not of bytes, and without a tokenizer.
    """
    file = checkpoint / TOKENIZER
    if file.is_file():
        described = (checkpoint / DESCRIPTION).is_file()
        return Tokenizer(file, read_description(checkpoint).end_of_document if described else None)
    if vocab_size > BYTES:
        raise ConfigError(
            f"{checkpoint} has a vocabulary of {vocab_size}, and no {TOKENIZER}",
            "copy that of its data into it",
        )
    return Bytes()


class Unfolding:
    """Text that grows by tokens: what can be printed of it so far, characters whole."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._ids: list[int] = []
        self._printed = 0

    def take(self, token: int) -> str:
        """The characters that `token` completes."""
        self._ids.append(token)
        text = self._codec.decode(self._ids)
        return "" if text.endswith(_CUT) else self._rest(text)

    def end(self) -> str:
        """The characters that are left, whole or not."""
        return self._rest(self._codec.decode(self._ids))

    def _rest(self, text: str) -> str:
        new, self._printed = text[self._printed :], len(text)
        return new
