"""Conversion of text to files of token ids, which `data.source tokens` reads.

python -m nsa.tokenize books/ --out tokens/ --tokenizer tokenizer.json
python -m nsa.train tiny --data.source tokens --data.path tokens/ --model.vocab_size 50257
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from nsa.config import ConfigError
from nsa.training.corpus import DATA, DESCRIPTION, TOKENIZER, Description

BATCH = 256  # documents that are encoded at once, on all cores
# Names of the token that ends a document, in the order in which they are looked for.
ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "[SEP]")


def main(argv: list[str] | None = None) -> int:
    """Run the command line; returns 0, or 2 where the input cannot be used."""
    parser = argparse.ArgumentParser(prog="python -m nsa.tokenize", description=__doc__.splitlines()[0])
    parser.add_argument(
        "text",
        nargs="+",
        type=Path,
        help="files or directories: each file a document, of .jsonl each line's 'text'",
    )
    parser.add_argument("--out", type=Path, required=True, help="directory to write; it may not exist yet")
    parser.add_argument(
        "--tokenizer", type=Path, required=True, help="tokenizer.json of Hugging Face tokenizers"
    )
    parser.add_argument(
        "--end", help=f"token that ends a document; by default the first known of {', '.join(ENDS)}"
    )
    given = parser.parse_args(argv)
    try:
        description = convert(given.text, given.out, given.tokenizer, end=given.end)
    except ConfigError as error:
        print(f"error: {error.message}\nhint: {error.hint}", file=sys.stderr)
        return 2
    print(
        f"{given.out}: {description.tokens} tokens, {description.dtype}; --model.vocab_size {description.vocab_size}"
    )
    return 0


def convert(text: list[Path], out: Path, tokenizer: Path, *, end: str | None = None) -> Description:
    """Write the documents below the paths `text`, in the order of names, to the directory `out`; returns its description.

    The directory appears when it is complete. ConfigError for a tokenizer or text that cannot be read, for one without a
    token that ends documents, and if `out` exists.
    """
    encoder = load_tokenizer(tokenizer)
    end_id = _end_of_document(encoder, end)
    if out.exists():
        raise ConfigError(f"{out} exists", "name a new directory")
    unfinished = out.with_name(f".{out.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    try:
        description = _write(text, unfinished, encoder, end_id)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    (unfinished / DESCRIPTION).write_text(
        json.dumps(description._asdict(), indent=1) + "\n", encoding="utf-8"
    )
    shutil.copyfile(tokenizer, unfinished / TOKENIZER)
    unfinished.rename(out)
    return description


def _write(text: list[Path], directory: Path, encoder: Any, end_id: int) -> Description:
    """Write the token ids of the documents to `directory`; returns their description."""
    vocab_size = encoder.get_vocab_size(with_added_tokens=True)
    dtype = "uint16" if vocab_size <= 2**16 else "uint32"
    count = 0
    with (directory / DATA).open("wb") as file:
        for batch in _batches(_documents(text)):
            for each in encoder.encode_batch(batch, add_special_tokens=False):
                ids = np.array([*each.ids, end_id], dtype=f"<{np.dtype(dtype).str[1:]}")
                file.write(ids.tobytes())
                count += len(ids)
    return Description(dtype=dtype, tokens=count, vocab_size=vocab_size, end_of_document=end_id)


def load_tokenizer(path: Path) -> Any:
    """The tokenizer in the file `path`; ConfigError if it, or the package tokenizers, is not there."""
    if importlib.util.find_spec("tokenizers") is None:
        raise ConfigError(f"{path} needs the package tokenizers", "pip install tokenizers")
    from tokenizers import Tokenizer  # optional

    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # of no type but Exception, for a missing file too
        raise ConfigError(f"{path} is no tokenizer: {error}", "give the tokenizer.json of a model") from None


def _end_of_document(encoder: Any, end: str | None) -> int:
    for name in (end,) if end is not None else ENDS:
        number = encoder.token_to_id(name)
        if number is not None:
            return number
    known = end or f"none of {', '.join(ENDS)}"
    raise ConfigError(f"the tokenizer has no token {known}", "name the one that ends documents by --end")


def _documents(paths: list[Path]) -> Iterator[str]:
    for path in paths:
        if not path.exists():
            raise ConfigError(f"{path} does not exist", "name a file or a directory of text")
        files = [path] if path.is_file() else sorted(each for each in path.rglob("*") if each.is_file())
        for file in files:
            try:
                yield from _documents_of(file)
            except (
                ValueError,
                KeyError,
                TypeError,
            ) as error:  # UnicodeDecodeError and JSONDecodeError are the first
                raise ConfigError(
                    f"{file} cannot be read: {error}", "give UTF-8 text, or lines of {'text': ...}"
                ) from None


def _documents_of(file: Path) -> Iterator[str]:
    if file.suffix != ".jsonl":
        yield file.read_text(encoding="utf-8")
        return
    with file.open(encoding="utf-8") as lines:
        for line in lines:
            if line.strip():
                yield json.loads(line)["text"]


def _batches(documents: Iterator[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    for document in documents:
        batch.append(document)
        if len(batch) == BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


if __name__ == "__main__":
    sys.exit(main())
