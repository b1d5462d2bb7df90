"""A whole training step as one CUDA graph, for steps whose launches take longer than their kernels."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from nsa.config import ConfigError, TrainConfig

# Steps before the recording: they initialise cuBLAS, compiled blocks and the optimizer's state.
WARM_UP_STEPS = 3

Step = Callable[[Tensor], tuple[Tensor, Tensor]]


class StepGraph:
    """Call `step` for the first batches, record the next call, and replay it from then on.

    Tensors that `step` reads besides its argument must keep their addresses, and its control flow must not depend on
    values on the device. Python inside it, hooks included, does not run in a replay.
    """

    def __init__(self, step: Step) -> None:
        self._step = step
        self._calls = 0
        self._graph = torch.cuda.CUDAGraph()
        self._tokens: Tensor | None = None
        self._results: tuple[Tensor, Tensor] | None = None

    def __call__(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """The result of `step(tokens)`, as new tensors; every call takes the same shape."""
        self._calls += 1
        if self._calls <= WARM_UP_STEPS:
            return self._warm_up(tokens)
        if self._tokens is None:
            self._record(tokens)
        self._tokens.copy_(tokens)
        self._graph.replay()
        loss, norm = self._results
        return loss.clone(), norm.clone()

    def _warm_up(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        # On a side stream: autograd runs backward on forward's stream, and the default one cannot be recorded.
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            results = self._step(tokens)
        torch.cuda.current_stream().wait_stream(stream)
        return results

    def _record(self, tokens: Tensor) -> None:
        self._tokens = tokens.clone()
        torch.cuda.empty_cache()  # the graph has a memory pool of its own: return what earlier steps cached
        # Restricted to this thread: that of telemetry continues to query its events.
        with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            self._results = self._step(self._tokens)


def check_step_graph(config: TrainConfig, device: torch.device) -> None:
    """Raise ConfigError if a step cannot be recorded."""
    if device.type != "cuda":
        raise ConfigError("train.cuda_graph is true, and there is no GPU", "leave train.cuda_graph out")
    if config.parallel.mode != "single":
        raise ConfigError(
            f"train.cuda_graph is true with parallel.mode {config.parallel.mode}",
            "record steps in mode single; across ranks, train.compile takes most of the launches away",
        )
    if config.train.detect_anomaly:
        raise ConfigError(
            "train.cuda_graph and train.detect_anomaly", "give one: anomalies are found in Python"
        )
