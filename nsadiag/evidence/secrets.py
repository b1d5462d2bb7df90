"""Masks secrets in whatever is written down: environment, command lines, addresses."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

MASK = "***"
SECRET_NAME = re.compile(r"key|token|secret|passw|credential|auth|cookie", re.IGNORECASE)
SECRET_VALUE = re.compile(r"\b(hf_|sk-|ghp_|gho_|github_pat_|xox[bp]-|AKIA|glpat-)[\w-]{8,}")
USER_IN_ADDRESS = re.compile(r"(?<=://)[^/@\s:]+:[^/@\s]+(?=@)")
# Enough of the environment to explain a run; the rest is nobody's business.
RELEVANT = re.compile(
    r"^(NCCL|TORCH|PYTORCH|CUDA|GLOO|OMP|MKL|MASTER|SLURM|FI|UCX|NSADIAG|TRITON|PYTHON|ACCELERATE|DEEPSPEED)(_|[A-Z]*)"
    r"|^(RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|GROUP_RANK|LD_LIBRARY_PATH|VIRTUAL_ENV|HOSTNAME)$"
)


def mask_text(text: str) -> str:
    """The text with well-known tokens and passwords in addresses masked."""
    return USER_IN_ADDRESS.sub(MASK, SECRET_VALUE.sub(MASK, text))


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


def mask_command(words: Sequence[str]) -> list[str]:
    """The command line with `--token X`, `--api-key=X` and the like masked."""
    masked, hide_next = [], False
    for word in words:
        name, equals, _ = word.partition("=")
        is_option = word.startswith("-") or bool(equals)
        secret = is_option and bool(SECRET_NAME.search(name))
        if hide_next and not word.startswith("-"):
            masked.append(MASK)
        else:
            masked.append(f"{name}={MASK}" if secret and equals else mask_text(word))
        hide_next = secret and not equals
    return masked
