"""Telemetry of a run: heartbeats, gate and selection statistics, fallbacks, memory, data types.

A separate thread writes all files, so heartbeats continue while the main thread is in a long backward. The training
step only sets an attribute per phase and queues small tensors, which are copied to the host asynchronously.

Rank 0 writes `NAME.SUFFIX`, rank N `NAME_rankN.SUFFIX`; heartbeats are `heartbeat_rankN.jsonl` on every rank.
"""

from __future__ import annotations

import csv
import json
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nsa.attention import backends_used
from nsa.config import TelemetryConfig, TrainConfig, make_directory
from nsa.layers.sparse import NSAAttention
from nsa.training.environment import describe_dtypes, describe_environment, memory_dump, memory_now
from nsa.training.statistics import GATE_COLUMNS, K_COLUMNS, layer_statistics
from nsa.training.trackers import numbers_in, open_trackers

COLUMNS = {
    "gate_stats": ("step", "layer", *GATE_COLUMNS),
    "k_stats": ("step", "layer", *K_COLUMNS),
    "fallback_counters": ("step", "kind", "name", "count"),
}
TRACKERS_S = 60.0  # that trackers may take to write what they hold
POLL_S = 0.05  # between two queries of whether the device has finished a copy


@dataclass(frozen=True, kw_only=True)
class StepRecord:
    """One finished step; the tensors may still be computed on the device."""

    step: int
    loss: Tensor
    gradient_norm: Tensor
    tokens: int  # of all ranks
    seconds: float
    fetch_s: float


class Telemetry:
    """The telemetry of one rank, written to `config.telemetry.dir` until closed; without a directory it does nothing."""

    def __init__(self, config: TrainConfig, model: nn.Module, *, rank: int, device: torch.device) -> None:
        self._config: TelemetryConfig = config.telemetry
        self._mode = {"mode": config.parallel.mode, "preset": config.parallel.ddp.preset}
        self._rank, self._device = rank, device
        self._attentions = [module for module in model.modules() if isinstance(module, NSAAttention)]
        self._queue: queue.Queue[Callable[[], None] | None] = queue.Queue()  # None ends the thread
        self._written = threading.Event()  # all that was queued is in our files
        self._dtypes: str | None = None
        self._now = ("boot", 0, time.monotonic())  # phase, step, since: one tuple, so never half updated
        self._on = config.telemetry.dir is not None
        if not self._on:
            return
        self._files = _Files(make_directory("telemetry.dir", config.telemetry.dir), rank)
        self._trackers = open_trackers(config, rank)
        self._files.write_json("env", describe_environment(config, device))
        self._files.write_json("mem_boot", memory_dump(device))
        self._thread = threading.Thread(target=self._write_all, name="telemetry", daemon=True)
        self._thread.start()

    def phase(self, name: str, step: int | None = None) -> None:
        """Record that the main thread enters phase `name`: data, forward, backward, optimizer, replay, evaluate, checkpoint."""
        self._now = (name, self._now[1] if step is None else step, time.monotonic())

    @contextmanager
    def statistics(self, step: int) -> Iterator[bool]:
        """Collect gates and selection of the forward passes in this context if `step` is due; yields whether it is."""
        wanted = self._wants_statistics(step)
        for attention in self._attentions:
            attention.collect_stats = wanted
        yield wanted
        for attention in self._attentions:
            attention.collect_stats = False

    def dtypes(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Write the data types of parameters, gradients and optimizer state, once."""
        if self._on and self._dtypes is None:
            self._dtypes = describe_dtypes(model, optimizer)
            self._queue.put(partial(self._files.write_text, "dtypes_report.txt", self._dtypes))

    def step(self, record: StepRecord) -> None:
        """Write a finished step."""
        if not self._on:
            return
        tensors = {"scalars": torch.stack([record.loss.detach().float(), record.gradient_norm.float()])}
        if self._wants_statistics(record.step):
            tensors |= layer_statistics(self._attentions)
        memory = memory_dump(self._device) if self._wants_memory(record.step) else None
        statistics = {name: value.to("cpu", non_blocking=True) for name, value in tensors.items()}
        ready = None
        if self._device.type == "cuda":
            ready = torch.cuda.Event()
            ready.record()
        self._queue.put(partial(self._write_step, record, statistics, memory, ready))

    def evaluated(self, step: int, loss: float) -> None:
        """Write the validation loss after `step`, the mean over all ranks."""
        if self._on:
            self._queue.put(partial(self._write_evaluation, step, loss))

    def close(self) -> None:
        """Write everything queued, and end."""
        if not self._on:
            return
        self.phase("done")
        self._queue.put(None)
        # With a timeout: the thread may be waiting for a stuck device. It is a daemon.
        if self._written.wait(timeout=self._config.heartbeat_s + 1):
            self._thread.join(timeout=TRACKERS_S)

    def _wants_memory(self, step: int) -> bool:
        every = self._config.memory_every
        return step in self._config.memory_steps or bool(every and step % every == 0)

    def _wants_statistics(self, step: int) -> bool:
        return self._on and (step == 1 or step % self._config.every == 0)

    def _write_all(self) -> None:
        try:
            self._beat({"event": "beat"})
            while self._write_next():
                pass
            self._files.append("fallback_counters", _fallback_rows(self._now[1]))
            self._beat({"event": "beat"})
            self._files.close()
            self._written.set()
            for tracker in self._trackers:
                tracker.close()
        except OSError as error:  # a full disk ends telemetry, not the training
            print(f"warning: telemetry of rank {self._rank} has stopped: {error}", file=sys.stderr)
        finally:
            self._written.set()

    def _write_next(self) -> bool:
        """Write the next item of the queue, or a heartbeat if none comes in time; False at the end of the queue."""
        try:
            item = self._queue.get(timeout=self._config.heartbeat_s)
        except queue.Empty:
            self._beat({"event": "beat"})
            return True
        if item is not None:
            item()
        return item is not None

    def _await(self, ready: torch.cuda.Event | None) -> None:
        """Wait until the device has finished a copy, by polling, so that heartbeats continue when the device is stuck."""
        last_beat = time.monotonic()
        while ready is not None and not ready.query():
            if time.monotonic() - last_beat > self._config.heartbeat_s:
                self._beat({"event": "beat"})
                last_beat = time.monotonic()
            time.sleep(POLL_S)

    def _write_evaluation(self, step: int, loss: float) -> None:
        self._beat({"event": "eval", "done": step, "eval_loss": loss})
        self._draw(step, {"eval_loss": loss})

    def _write_step(
        self,
        record: StepRecord,
        statistics: dict[str, Tensor],  # by CSV's name: [layers, columns]; copied once `ready`
        memory: dict[str, Any] | None,
        ready: torch.cuda.Event | None,
    ) -> None:
        self._await(ready)
        loss, gradient_norm = statistics.pop("scalars").tolist()
        line = {
            "event": "step",
            "done": record.step,
            "loss": loss,
            "gradient_norm": gradient_norm,
            "tokens_per_s": round(record.tokens / record.seconds, 1),
            "step_s": round(record.seconds, 6),
            "fetch_s": round(record.fetch_s, 6),
        }
        for name, table in statistics.items():
            self._files.append(name, ([record.step, layer, *row] for layer, row in enumerate(table.tolist())))
            line[name] = dict(zip(COLUMNS[name][2:], table.mean(dim=0).tolist(), strict=True))
        if statistics:
            self._files.append("fallback_counters", _fallback_rows(record.step))
        if memory is not None:
            self._files.write_json(f"mem_step{record.step}", memory)
        self._beat(line)
        self._draw(record.step, line)

    def _draw(self, step: int, values: dict[str, Any]) -> None:
        for tracker in self._trackers:
            tracker.log(step, numbers_in(values))

    def _beat(self, line: dict[str, Any]) -> None:
        phase, step, since = self._now
        beat = {"time": round(time.time(), 3), "rank": self._rank, "step": step, "phase": phase}
        beat |= {"phase_s": round(time.monotonic() - since, 3), **self._mode}
        self._files.beat({**beat, **line, "memory": memory_now(self._device)})


class _Files:
    """The files of one rank; a CSV gets its header when it is made."""

    def __init__(self, directory: Path, rank: int) -> None:
        self._directory = directory
        self._suffix = f"_rank{rank}" if rank else ""
        self._heartbeat = (directory / f"heartbeat_rank{rank}.jsonl").open("a", encoding="utf-8")
        for name, columns in COLUMNS.items():
            if not self._path(f"{name}.csv").exists():
                self.append(name, [columns])

    def beat(self, line: dict[str, Any]) -> None:
        self._heartbeat.write(json.dumps(line) + "\n")
        self._heartbeat.flush()

    def append(self, name: str, rows: Any) -> None:
        with self._path(f"{name}.csv").open("a", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(rows)

    def write_json(self, name: str, values: dict[str, Any]) -> None:
        self.write_text(f"{name}.json", json.dumps(values, indent=1) + "\n")

    def write_text(self, name: str, text: str) -> None:
        self._path(name).write_text(text, encoding="utf-8")

    def close(self) -> None:
        self._heartbeat.close()

    def _path(self, name: str) -> Path:
        stem, _, suffix = name.rpartition(".")
        return self._directory / f"{stem}{self._suffix}.{suffix}"


def _fallback_rows(step: int) -> list[tuple[int, str, str, int]]:
    use = backends_used()
    kinds = (("call", use.calls), ("fallback", use.fallbacks))
    return [(step, kind, name, count) for kind, counters in kinds for name, count in sorted(counters.items())]
