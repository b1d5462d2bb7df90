"""Masks secrets in whatever is written down: environment, command lines, addresses."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence

MASK = "***"
SECRET_NAME = re.compile(r"key|token|secret|passw|credential|auth|cookie", re.IGNORECASE)
PREFIXES = (
    "hf_oauth_", "hf_jwt_", "sk-", "github_pat_", "xoxa-", "xoxb-", "xoxp-", "xoxr-", "xoxs-",
    "AKIA", "ASIA", "AIza", "glpat-", "pypi-",
)  # fmt: skip
# Behind these come letters and digits alone, and files are called `hf_trainer_eval.py` and `npm_packages.json`.
PLAIN_PREFIXES = ("hf_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "npm_")
PLAIN = r"(?:[A-Za-z0-9]{16,}|(?=[a-z]*[A-Z0-9])[A-Za-z0-9]{8,}(?![\w-]))"
# By words one of which is in every text that it matches: looking for those is ten times as fast. None crosses a
# quote or a backslash: a document stays JSON when secrets are masked in its text.
SECRETS: tuple[tuple[tuple[str, ...], re.Pattern[str], str], ...] = (
    (PREFIXES, re.compile(rf"\b(?:{'|'.join(PREFIXES)})[\w-]{{8,}}"), MASK),
    (PLAIN_PREFIXES, re.compile(rf"\b(?:{'|'.join(PLAIN_PREFIXES)}){PLAIN}"), MASK),
    (("eyJ",), re.compile(r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"), MASK),  # a JSON web token
    (("://",), re.compile(r"(?<=://)[^/@\s\"\\?#]+(?=@)"), MASK),  # user and password in an address
    (("earer ",), re.compile(r"(?<=[Bb]earer )[\w.~+/=-]{8,}"), MASK),
    (
        ("?", "&"),
        re.compile(
            r"([?&][\w.-]*(?:key|token|secret|passw|credential|auth|sig)[\w.-]*=)[^&\s\"'\\#]+", re.IGNORECASE
        ),
        rf"\1{MASK}",
    ),
)
# Shorter ones, words, numbers and paths are found in texts that hold no secret.
MIN_SECRET = 8
NO_SECRET = re.compile(r"[./~].*|[\d.,:]+|[A-Za-z_-]{1,15}|.*\s.*", re.DOTALL)
# Enough of the environment to explain a run; the rest is nobody's business.
RELEVANT = re.compile(
    r"^(NCCL|TORCH|PYTORCH|CUDA|GLOO|OMP|MKL|MASTER|SLURM|FI|UCX|NSADIAG|TRITON|PYTHON|ACCELERATE|DEEPSPEED)(_|[A-Z]*)"
    r"|^(RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|GROUP_RANK|LD_LIBRARY_PATH|VIRTUAL_ENV|HOSTNAME)$"
)


# Secrets of commands that this process starts for others: they are in neither its environment nor its arguments.
_told: set[str] = set()


def hide(environment: Mapping[str, str], command: Sequence[str]) -> None:
    """From here on, what is secret in these is masked in every text of this process."""
    _told.update(secret_values(environment, command))


def mask_text(text: str) -> str:
    """The text without well-known tokens, passwords in addresses, and the secrets that this process was given."""
    for value in _given_to_this_process():
        text = text.replace(value, MASK)
    for hints, pattern, shown in SECRETS:
        if any(hint in text for hint in hints):
            text = pattern.sub(shown, text)
    return text


def _given_to_this_process() -> tuple[str, ...]:
    """Asked anew for each text: a script may log in half-way, and a forked rank becomes another command."""
    commands = (getattr(sys, "orig_argv", []), sys.argv)
    values = {value for words in commands for value in secret_values(os.environ, words)}
    return tuple(sorted(values | _told, key=len, reverse=True))


def secret_values(environment: Mapping[str, str], command: Sequence[str]) -> tuple[str, ...]:
    """Values of variables and arguments that are secret by their name, longest first, as JSON spells them too."""
    found = {value for name, value in environment.items() if SECRET_NAME.search(name)}
    found |= set(_hidden_words(command))
    told = {value for value in found if len(value) >= MIN_SECRET and not NO_SECRET.fullmatch(value)}
    spelled = told | {json.dumps(value)[1:-1] for value in told}
    return tuple(sorted(spelled, key=len, reverse=True))


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
    return {k: MASK if SECRET_NAME.search(k) else mask_text(v) for k, v in variables.items()}


def mask_line(text: str) -> str:
    """A command line in one string, masked as `mask_command` masks its words."""
    return shlex.join(mask_command(shlex.split(text)))


def mask_command(words: Sequence[str], *, texts: bool = True) -> list[str]:
    """The command line with `--token X`, `--api-key=X` and the like masked, and with `texts` all that mask_text finds."""
    masked, hide_next = [], False
    for word in words:
        name, equals, _ = word.partition("=")
        is_option = word.startswith("-") or bool(equals)
        secret = is_option and bool(SECRET_NAME.search(name))
        if hide_next and not word.startswith("-"):
            masked.append(MASK)
        else:
            plain = mask_text(word) if texts else word
            masked.append(f"{name}={MASK}" if secret and equals else plain)
        hide_next = secret and not equals
    return masked
