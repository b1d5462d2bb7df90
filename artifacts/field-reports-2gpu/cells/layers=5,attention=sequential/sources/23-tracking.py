

from __future__ import annotations

import importlib.util
from typing import Any

from nsa.config import ConfigError, TelemetryConfig


class NoTracker:
    """Draws nothing."""

    def write(self, step: int, values: dict[str, Any]) -> None:
        """Add the numbers in `values` at `step`; dicts within it become groups of curves."""

    def close(self) -> None:
        """Finish the file."""


class TensorBoard(NoTracker):
    """Curves in `directory`/tensorboard."""

    def __init__(self, directory: str) -> None:
        # Imported late: optional, and a second's work.
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(f"{directory}/tensorboard")

    def write(self, step: int, values: dict[str, Any]) -> None:
        for name, value in values.items():
            if isinstance(value, dict):
                self.write(step, {f"{name}/{key}": number for key, number in value.items()})
            elif isinstance(value, (int, float)):
                self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


def open_tracker(config: TelemetryConfig, rank: int) -> NoTracker:
    """What `config` asks for; ConfigError where it isn't installed. Only rank 0 draws."""
    if not config.tensorboard or config.dir is None or rank:
        return NoTracker()
    if importlib.util.find_spec("tensorboard") is None:
        raise ConfigError("telemetry.tensorboard needs tensorboard", "pip install nsadiag[track]")
    return TensorBoard(config.dir)
