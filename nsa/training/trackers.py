"""Curves of a run in other programs: TensorBoard, Weights & Biases. Both are optional, and written by rank 0 alone."""

from __future__ import annotations

import importlib.util
from typing import Any, Protocol

from nsa.config import ConfigError, TrainConfig


class Tracker(Protocol):
    """Takes numbers by step."""

    def log(self, step: int, values: dict[str, float]) -> None:
        """Add a point to each curve that `values` names."""

    def close(self) -> None:
        """Write all that is left."""


def open_trackers(config: TrainConfig, rank: int) -> list[Tracker]:
    """The trackers that `config` asks for; ConfigError for one that is not installed."""
    telemetry = config.telemetry
    if rank or telemetry.dir is None:
        return []
    trackers: list[Tracker] = []
    if telemetry.tensorboard:
        _check_installed("tensorboard", "telemetry.tensorboard")
        trackers.append(_TensorBoard(telemetry.dir))
    if telemetry.wandb is not None:
        _check_installed("wandb", "telemetry.wandb")
        trackers.append(_Wandb(telemetry.wandb, config))
    return trackers


def numbers_in(values: dict[str, Any], prefix: str = "") -> dict[str, float]:
    """The numbers in `values`; those of dicts within have names such as gate_stats/entropy."""
    numbers: dict[str, float] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            numbers |= numbers_in(value, f"{prefix}{name}/")
        elif isinstance(value, (int, float)):
            numbers[prefix + name] = value
    return numbers


class _TensorBoard:
    def __init__(self, directory: str) -> None:
        # Imported late: optional, and a second's work.
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(f"{directory}/tensorboard")

    def log(self, step: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class _Wandb:
    def __init__(self, project: str, config: TrainConfig) -> None:
        import wandb

        self._run = wandb.init(project=project, dir=config.telemetry.dir, config=config.model_dump())

    def log(self, step: int, values: dict[str, float]) -> None:
        self._run.log(values, step=step)

    def close(self) -> None:
        self._run.finish()


def _check_installed(package: str, key: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise ConfigError(f"{key} needs the package {package}", f"pip install {package}")
