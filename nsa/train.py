"""Training of the model that a configuration describes, in one process or under torchrun.

    python -m nsa.train tiny --train.steps 20
    torchrun --standalone --nproc-per-node 2 -m nsa.train tiny --parallel.mode fsdp2

Everything that a run uses is imported here, so that the first step is not delayed by imports.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
import torch._dynamo  # the first optimizer step would import it, for half a second
from torch import Tensor

from nsa.config import ConfigError, TrainConfig, make_directory
from nsa.deferred import Deferred
from nsa.model import NSAModel, parameter_count
from nsa.options import help_text, parse_command_line
from nsa.parallel import (
    Placement,
    apply_context,
    apply_parallel,
    clip_gradients,
    context_shard,
    gradient_sync,
    mean_over_ranks,
    process_group,
)
from nsa.restore import check_same_model
from nsa.training.checkpoint import CheckpointWriter, Progress, load_checkpoint, newest_checkpoint
from nsa.training.data import Stream, check_documents, open_stream, pack
from nsa.training.documents import Batch
from nsa.training.environment import attention_backend, guard_environment, memory_now
from nsa.training.optimizer import build_optimizer, learning_rate
from nsa.training.step_graph import StepGraph, check_step_graph
from nsa.training.stopping import EXIT_CODES, Stopping, reason_of
from nsa.training.telemetry import StepRecord, Telemetry
from nsa.training.throughput import flops_per_token, peak_flops
from nsa.training.variables import check_environment


def main(argv: list[str] | None = None) -> int:
    """Run the command line; returns 0 after training, 2 for an invalid configuration."""
    arguments = sys.argv[1:] if argv is None else argv
    if {"-h", "--help"} & set(arguments):
        _print(help_text())
        return 0
    try:
        outcome = run(parse_command_line(arguments))
    except ConfigError as error:
        print(f"error: {error.message}\nhint: {error.hint}", file=sys.stderr)
        return 2
    return EXIT_CODES[outcome.stopped]


class Outcome(NamedTuple):
    """The end of a run."""

    losses: list[float]  # those that were logged, means over all ranks
    stopped: str | None  # the reason to end before the last step: "SIGTERM", "deadline"


def train(config: TrainConfig) -> list[float]:
    """Train, and return the logged losses, which are means over all ranks."""
    return run(config).losses


def run(config: TrainConfig) -> Outcome:
    """Train to the last step, or until SIGTERM or `checkpoint.deadline_s`. ConfigError for what cannot be trained."""
    check_environment(os.environ)
    with process_group(config.parallel) as placement, Stopping(config.checkpoint) as stopping:
        return _train_in_group(config, placement, stopping)


def _train_in_group(config: TrainConfig, placement: Placement, stopping: Stopping) -> Outcome:
    # A frame of its own, so that the model is gone before the process group is left. Where DDP's reducer is the
    # last to hold the group, its destructor joins gloo's thread while holding the GIL, which that thread may
    # want in order to drop a tensor: a deadlock at exit, about once in 250 one-step runs of torch 2.13.
    training = _Run(config, placement)
    try:
        with torch.autograd.set_detect_anomaly(config.train.detect_anomaly):
            return training.all_steps(stopping)
    finally:
        training.close()


class _Run:
    """The model, optimizer, data and telemetry of one run."""

    def __init__(self, config: TrainConfig, placement: Placement) -> None:
        self.config, self.placement = config, placement
        self.attention = attention_backend(config, placement.device)
        deferred = (
            Deferred(lambda: NSAModel(config.model, config.attention)) if _is_deferred(config) else None
        )
        torch.manual_seed(config.train.seed)  # the same on every rank: equal initial weights
        model = _prepared(
            deferred.model if deferred else NSAModel(config.model, config.attention).to(placement.device),
            config,
        )
        self.parameters = parameter_count(model)
        self.flops = flops_per_token(config, self.parameters)
        decayed = {name for name, parameter in model.named_parameters() if parameter.ndim >= 2}
        check_documents(config)
        self.context = context_shard(config.parallel, config.data.seq_len, placement)
        if self.context is not None:
            apply_context(model, self.context, config.data.seq_len, placement.device)
        wrapped = apply_parallel(model, config.parallel, config.train.precision, placement.device)
        if deferred is not None:
            deferred.initialise(placement.device)
        torch.manual_seed(config.train.seed + placement.rank)
        self.progress = Progress(
            model=wrapped,
            optimizer=build_optimizer(wrapped, config, decayed, placement.device),
            stream=self._open_stream(evaluation=False),
        )
        self.telemetry = Telemetry(config, wrapped, rank=placement.rank, device=placement.device)
        self.checkpoints = self._open_checkpoints()
        self.fetch_s = 0.0  # this step's
        self.graph: StepGraph | None = None
        self._lr = torch.zeros((), device=placement.device)  # the learning rate that a graph reads
        if config.train.cuda_graph:
            check_step_graph(config, placement.device)
            self.graph = StepGraph(self._recordable_step)

    def all_steps(self, stopping: Stopping) -> Outcome:
        """Train to the last step, or until `stopping` says so at a step that is logged."""
        self._resume()
        train, losses = self.config.train, []
        started = logged = time.perf_counter()
        logged_step, stopped = self.progress.step, None
        self._print_header()
        while self.progress.step < train.steps and stopped is None:
            record = self._step()
            if record.step % train.log_every == 0 or record.step == train.steps:
                # One collective for both, which every rank joins at the same step.
                means = torch.cat([record.loss.float()[None], stopping.flags(self.placement.device)])
                loss, *flags = mean_over_ranks(means).tolist()
                losses.append(loss)
                stopped = reason_of(flags) if record.step < train.steps else None
                now = time.perf_counter()
                rate = record.tokens * (record.step - logged_step) / (now - logged)
                logged, logged_step = now, record.step
                self._print(f"step {record.step} loss {losses[-1]:.4f} {self._pace(record, rate)}")
            if stopped is None:
                self._evaluate_if_due()
            self._save_if_due(stops=stopped is not None)
        self.checkpoints.close()
        finished = "done" if stopped is None else f"stopped ({stopped})"
        self._print(f"{finished}: {self.progress.step} steps in {time.perf_counter() - started:.2f} s")
        return Outcome(losses, stopped)

    def _pace(self, record: StepRecord, rate: float) -> str:
        """Tokens per second, tokens so far, MFU on a known GPU, and memory of this rank."""
        memory = memory_now(self.placement.device)
        mib = memory.get("peak_allocated_mib", memory["peak_rss_mib"])
        peak = peak_flops(self.placement.device)
        share = f" MFU {rate * self.flops / (peak * self.placement.world_size):.1%}" if peak else ""
        return f"tok/s {rate:.0f} tokens {record.tokens * record.step}{share} mem {mib:.0f} MiB"

    def close(self) -> None:
        """Close files and end threads."""
        self.telemetry.close()
        self.progress.stream.close()

    def _step(self) -> StepRecord:
        config, progress = self.config, self.progress
        progress.step += 1
        started = time.perf_counter()
        self.fetch_s = 0.0
        self._set_learning_rate(learning_rate(config.optimizer, progress.step, config.train.steps))
        with self.telemetry.statistics(progress.step) as watched:
            if self.graph is None or watched:
                loss, norm = self._update(self._fetch)
            else:
                batches = [self._fetch() for _ in range(config.train.accumulate)]
                self.telemetry.phase("replay")
                loss, norm = self.graph(torch.stack([torch.stack(batch[:2]) for batch in batches]))
        record = StepRecord(
            step=progress.step,
            loss=loss,
            gradient_norm=norm,
            tokens=_tokens_a_step(config, self.placement),
            seconds=time.perf_counter() - started,
            fetch_s=self.fetch_s,
        )
        self.telemetry.step(record)
        return record

    def _set_learning_rate(self, rate: float) -> None:
        if self.graph is not None:
            self._lr.fill_(rate)  # a graph reads the tensor; a number would stay as recorded
        for group in self.progress.optimizer.param_groups:
            group["lr"] = rate if self.graph is None else self._lr

    def _fetch(self) -> Batch:
        self.telemetry.phase("data", self.progress.step)
        fetching = time.perf_counter()
        batch = self._next_batch(self.progress.stream)
        self.fetch_s += time.perf_counter() - fetching
        return batch

    def _next_batch(self, stream: Stream) -> Batch:
        batch = pack(stream.next_batch(), self.config.data, stream.end_of_document)
        if self.context is None:
            return batch.to(self.placement.device)
        # The borders stay here, where the layers read them without waiting for a device.
        own = Batch(*(self.context.take(x, 1) for x in batch[:2])).to(self.placement.device)
        return own._replace(cu_seqlens=batch.cu_seqlens)

    def _recordable_step(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        batches = iter(tokens)  # [accumulate, 2, batch, T]
        return self._update(lambda: Batch(*next(batches)))

    def _update(self, next_batch: Callable[[], Batch]) -> tuple[Tensor, Tensor]:
        """Take one optimizer step; returns the mean loss of its batches and the gradient norm before clipping."""
        progress = self.progress
        loss = self._gradients(next_batch)
        self.telemetry.phase("optimizer")
        norm = clip_gradients(progress.model, self.config.optimizer.clip_norm)
        progress.optimizer.step()
        self.telemetry.dtypes(progress.model, progress.optimizer)
        progress.optimizer.zero_grad(set_to_none=True)
        return loss, norm

    def _gradients(self, next_batch: Callable[[], Batch]) -> Tensor:
        """Run forward and backward over this step's batches; returns their mean loss."""
        accumulate = self.config.train.accumulate
        batches = [next_batch() for _ in range(accumulate)]
        shares = self._shares(batches)
        total = torch.zeros((), device=self.placement.device)
        for index, (batch, share) in enumerate(zip(batches, shares, strict=True)):
            with gradient_sync(self.progress.model, enabled=index == accumulate - 1):
                self.telemetry.phase("forward")
                loss = self._loss(batch) * share
                self.telemetry.phase("backward")
                loss.backward()
            total += loss.detach()
        return total

    def _shares(self, batches: list[Batch]) -> list[float | Tensor]:
        """The weight of each batch's mean loss: equal, or by the number of targets if documents are separate."""
        if batches[0].cu_seqlens is None:
            return [1 / len(batches)] * len(batches)
        counts = torch.stack([batch.counted() for batch in batches]).float()
        return list(counts / (mean_over_ranks(counts.sum())))

    def _loss(self, batch: Batch) -> Tensor:
        with _autocast(self.config, self.placement.device):
            return self.progress.model(*batch)

    def _evaluate_if_due(self) -> None:
        train = self.config.train
        if not train.eval_every or self.progress.step % train.eval_every:
            return
        self.telemetry.phase("evaluate")
        stream = self._open_stream(evaluation=True)
        with torch.no_grad():
            batches = [self._next_batch(stream) for _ in range(train.eval_batches)]
            shares = self._shares(batches)
            loss = sum(self._loss(batch) * share for batch, share in zip(batches, shares, strict=True))
        stream.close()
        mean = mean_over_ranks(loss).item()
        self.telemetry.evaluated(self.progress.step, mean)
        self._print(f"eval {self.progress.step} loss {mean:.4f}")

    def _resume(self) -> None:
        checkpoint = self.config.checkpoint
        if checkpoint.dir is None:
            return
        directory = make_directory("checkpoint.dir", checkpoint.dir)
        newest = newest_checkpoint(directory) if checkpoint.resume else None
        if newest is not None:
            check_same_model(newest, self.config)
            load_checkpoint(self.progress, newest)
            self._print(f"resumed from {newest}")

    def _save_if_due(self, *, stops: bool) -> None:
        checkpoint, step = self.config.checkpoint, self.progress.step
        due = stops or step == self.config.train.steps
        due = due or (checkpoint.every and step % checkpoint.every == 0)
        if checkpoint.dir and due:
            self.telemetry.phase("checkpoint")
            path = self.checkpoints.save(self.progress)
            self._print(f"{'writing' if checkpoint.background else 'saved'} {path}")

    def _open_checkpoints(self) -> CheckpointWriter:
        checkpoint = self.config.checkpoint
        background = checkpoint.background and bool(checkpoint.dir)
        if background and self.config.parallel.mode == "fsdp1":
            raise ConfigError(
                "checkpoint.background with parallel.mode fsdp1, whose shards torch cannot copy",
                "choose fsdp2, or write in the foreground",
            )
        return CheckpointWriter(
            checkpoint.dir or ".", self.config, background=background, keep=checkpoint.keep
        )

    def _open_stream(self, *, evaluation: bool) -> Stream:
        return open_stream(
            self.config.data,
            vocab_size=self.config.model.vocab_size,
            seed=self.config.train.seed,
            rank=self.placement.rank // self.config.parallel.context.ranks,
            world_size=self.placement.world_size // self.config.parallel.context.ranks,
            evaluation=evaluation,
        )

    def _print_header(self) -> None:
        config, placement = self.config, self.placement
        for warning in guard_environment(os.environ) if placement.rank == 0 else ():
            print(f"warning: {warning}", file=sys.stderr)
        settings = config.preset_settings()
        if settings:
            named = ", ".join(f"{key}={value}" for key, value in settings.items())
            self._print(f"preset {config.parallel.ddp.preset}: {named}")
        self._print(
            f"{self.parameters / 1e6:.2f} M parameters, {self.attention} attention, "
            f"{config.parallel.mode} on {placement.world_size} x {placement.device.type}, "
            f"{config.train.precision}, {_tokens_a_step(config, placement)} tokens a step"
        )

    def _print(self, line: str) -> None:
        if self.placement.rank == 0:
            print(line, flush=True)


def _is_deferred(config: TrainConfig) -> bool:
    """Whether parameters are made when they are sharded, so that no rank ever holds the whole model."""
    return config.parallel.mode == "fsdp2"


def _prepared(model: NSAModel, config: TrainConfig) -> NSAModel:
    """The model in its precision, with the loss of its selection, and its blocks compiled, if so configured."""
    if config.train.precision == "bf16_pure":
        model = model.to(torch.bfloat16)
    for block in model.blocks:
        if config.train.selection_loss:
            # Each batch of a step adds its own gradients of it, which are to be a mean too.
            block.attn.selection_loss = config.train.selection_loss / config.train.accumulate
        if config.train.compile:
            block.compile()  # all blocks share one compiled graph; in place, so that names stay
    return model


def _print(text: str) -> None:
    """To stdout, whose reader may be `head`, and has then read enough."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        # Python flushes once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _autocast(config: TrainConfig, device: torch.device) -> AbstractContextManager[None]:
    """bf16 autocast, except under FSDP, which has its own mixed precision."""
    ours = config.train.precision == "bf16" and config.parallel.mode in ("single", "ddp")
    return torch.autocast(device.type, dtype=torch.bfloat16) if ours else nullcontext()


def _tokens_a_step(config: TrainConfig, placement: Placement) -> int:
    """The tokens of one step, of all ranks together."""
    sequences = config.data.batch_size * config.train.accumulate * placement.world_size
    return sequences * config.data.seq_len // config.parallel.context.ranks


if __name__ == "__main__":
    sys.exit(main())
