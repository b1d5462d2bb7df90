"""Masks secrets in whatever is written down: environment, command lines, addresses."""

from __future__ import annotations

import functools
import json
import os
import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nsadiag.evidence.secrets.command_line import shortened
from nsadiag.evidence.secrets.published import MASK, is_secret_name, mask_forms

# Shorter ones are found in texts that hold no secret.
MIN_SECRET = 6
# Not where a document of JSON has a number.
BARE = r'(?<!":)(?<!": )(?<![\[,\n.-])(?<!, )(?<!\n )(?<!  )'
MIN_LINE = 16  # of a secret of several lines, such as a key: texts are often read line by line
# Enough of the environment to explain a run; the rest is nobody's business.
RELEVANT = re.compile(
    r"^(NCCL|TORCH|PYTORCH|CUDA|GLOO|OMP|MKL|MASTER|SLURM|FI|UCX|NSADIAG|TRITON|PYTHON|ACCELERATE|DEEPSPEED)(_|[A-Z]*)"
    r"|^(RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|GROUP_RANK|LD_LIBRARY_PATH|VIRTUAL_ENV|HOSTNAME)$"
)


# Secrets of commands that this process starts for others: they are in neither its environment nor its arguments.
_told: set[str] = set()
# What this process was given when a text was last masked, and the secrets in it.
_Given = tuple[dict[Any, Any], tuple[list[str], list[str]], set[str]]
_last: tuple[_Given, tuple[str, ...]] | None = None


def hide(environment: Mapping[str, str], command: Sequence[str]) -> None:
    """From here on, what is secret in these is masked in every text of this process."""
    _told.update(secret_values(environment, command))


def mask_text(text: str) -> str:
    """The text without well-known tokens, passwords in addresses, and the secrets that this process was given."""
    for value in _given_to_this_process():
        if value in text:
            text = _without(text, value)
    return mask_forms(text)


def _without(text: str, value: str) -> str:
    """A word stays where it is part of another; a bare number of a JSON document stays a number."""
    if not value.replace("_", "").isalnum():
        return text.replace(value, MASK)
    pattern = rf"(?<!\w){re.escape(value)}(?!\w)"
    if value.isdigit():
        text = re.sub(rf"(?<=, ){pattern}(?!\s*[,\]}}\d.])", MASK, text)
        pattern = BARE + pattern
    return re.sub(pattern, MASK, text)


def _given_to_this_process() -> tuple[str, ...]:
    """Compared anew for each text: a script may log in half-way, and a forked rank becomes another command."""
    global _last
    # A copy of what lies below `os.environ` costs a thousandth of decoding each variable.
    environment = dict(getattr(os.environ, "_data", os.environ))
    given = environment, (list(getattr(sys, "orig_argv", [])), list(sys.argv)), set(_told)
    known = _last
    if known is None or known[0] != given:
        values = {value for words in given[1] for value in secret_values(os.environ, words)}
        known = _last = given, tuple(sorted(values | _told, key=len, reverse=True))
    return known[1]


def secret_values(environment: Mapping[str, str], command: Sequence[str]) -> tuple[str, ...]:
    """Values of variables and arguments that are secret by their name, longest first, as JSON spells them too."""
    found = {value for name, value in environment.items() if is_secret_name(name)}
    found |= set(_hidden_words(command))
    told = {value for value in found if len(value) >= MIN_SECRET and not _is_path(value)}
    told |= {line for value in told for line in value.split() if len(line) >= MIN_LINE}
    spelled = told | {json.dumps(value)[1:-1] for value in told}
    return tuple(sorted(spelled, key=len, reverse=True))


@functools.lru_cache(maxsize=256)
def _is_path(value: str) -> bool:
    """Whether it says where a secret lies: one in base64 may begin with a slash as well.

    Asked once: its file system may not answer. And by `access`, since `exists` keeps what a signal handler raises in it.
    """
    return value[0] in "/.~" and "\0" not in value and os.access(os.path.expanduser(value), os.F_OK)  # noqa: PTH111 - of any length


def _hidden_words(command: Sequence[str]) -> Iterable[str]:
    for word, shown in zip(command, mask_command(command, texts=False), strict=True):
        if shown != word:
            yield word if shown == MASK else word.partition("=")[2]


def mask_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that explain a run, secrets masked by name and by value."""
    shown = {k: v for k, v in sorted(environment.items()) if RELEVANT.search(k)}
    return mask_variables(shown)


def mask_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """All of them, secrets masked by name and by value."""
    return {k: MASK if is_secret_name(k) else mask_text(v) for k, v in variables.items()}


def mask_line(text: str) -> str:
    """A command line in one string, masked as `mask_command` masks its words."""
    return shlex.join(mask_command(shlex.split(text)))


def mask_command(words: Sequence[str], *, texts: bool = True) -> list[str]:
    """The command line with `--token X`, `--api-key=X` and the like masked, and with `texts` all that mask_text finds.

    With `texts` a very long one is shortened as well.
    """
    masked: list[str] = []
    hide_next = False
    for word in words:
        name, equals, _ = word.partition("=")
        is_option = word.startswith("-") or bool(equals)
        secret = is_option and is_secret_name(name)
        if hide_next and not word.startswith("-") and not (word and _is_path(word)):
            masked.append(MASK)
        else:
            plain = mask_text(word) if texts else word
            masked.append(f"{name}={MASK}" if secret and equals else plain)
        hide_next = secret and not equals
    return shortened(masked) if texts else masked
