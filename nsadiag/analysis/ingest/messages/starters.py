"""The launcher or scheduler of a job, by what its logs and command lines show."""

from __future__ import annotations

import re

# Schedulers first: they say where and how to ask, whatever they started.
LAUNCHERS = (
    ("kubernetes", re.compile(r"\[pod/|\bkubelet\b|OOMKilled|kubectl|PyTorchJob|KUBERNETES_|\bpod/\S+")),
    ("slurm", re.compile(r"^srun: |slurm-\d+\S*\.(?:out|err|log)|slurmstepd: |\bSLURM_\w+|\bsbatch\b", re.MULTILINE)),
    ("ray", re.compile(r"\(\w+ pid=\d+(?:, ip=[\d.]+)?\)|\braylet\b|ray\.exceptions\.|/ray/_private/|\bray::")),
    ("accelerate", re.compile(r"accelerate/commands/launch\.py|\baccelerate launch\b|bin/accelerate\b")),
    ("deepspeed", re.compile(r"\[launch\.py:\d+|deepspeed/launcher/|bin/deepspeed\b|\bdeepspeed --")),
    (
        "torchrun",
        re.compile(r"\btorchrun\b|torch/distributed/(?:run|launcher|elastic)\b|torch\.distributed\.(?:run|launch|elastic)\b"),
    ),
)  # fmt: skip


def launcher_in(text: str) -> str:
    """Its name; empty where nothing in the text shows one."""
    return next((name for name, pattern in LAUNCHERS if pattern.search(text)), "")


def first_known(names: list[str]) -> str:
    """The one of several names that stands first in the table."""
    return next((name for name, _ in LAUNCHERS if name in names), "")
