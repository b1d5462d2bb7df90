"""Environment variables of earlier training scripts: each key or file that answers one."""

from __future__ import annotations

from typing import Any

from nsa.config import ConfigError

# By prefix, the longest first of those that share one: what answers it, and more about it for the documentation.
ANSWERS = (
    ("NSA_DDP_SAFE_MODE", "--parallel.ddp.preset safe"),
    ("NSA_DDP_FIND_UNUSED", "--parallel.ddp.find_unused_parameters true"),
    ("NSA_DDP_STATIC_GRAPH", "--parallel.ddp.preset static"),
    ("NSA_DDP_BROADCAST_BUFFERS", "--parallel.ddp.broadcast_buffers false"),
    ("NSA_DDP_BUCKET", "--parallel.ddp.bucket_cap_mb N"),
    ("NSA_DDP_", "one of the keys --parallel.ddp.*"),
    ("NSA_STOPGRAD_GATES", "--attention.gate_gradients false"),
    ("NSA_GRADIENT_CHECKPOINTING", "--parallel.activation_checkpointing full"),
    ("NSA_USE_FA2", "--model.flash true, which the dense control has; sparse layers have kernels of their own"),
    ("NSA_FORCE_", "--attention.backend, one of auto, torch, triton, sequential, reference"),
    ("NSA_MEM_DUMP_EVERY", "--telemetry.memory_every N"),
    ("NSA_HEARTBEAT", "--telemetry.heartbeat_s S"),
    ("NSA_TB", "--telemetry.tensorboard true"),
    ("NSA_TRACE_GRADS", "`nsadiag run`: blackbox.bin of each rank (gradients as they arrive), ungraded.jsonl"),
    ("NSA_TRACE_MODULE", "`nsadiag run`: blackbox.bin of each rank (modules and backward), graph.json"),
    ("NSA_TRACE_BUCKETS", "`nsadiag run`: ddp.json (buckets and their parameters), blackbox.bin (reductions)"),
    ("NSA_TRACE_DDP", "`nsadiag run`: ddp.json (buckets and their parameters), blackbox.bin (reductions)"),
    ("NSA_TRACE_", "`nsadiag run`, whose probes follow gradients, modules and buckets"),
    ("NSA_WATCHDOG", "`nsadiag run`: captures/ of each rank (stacks, twice)"),
    ("NSA_", "a key of the configuration: `python -m nsa.train --help` lists them"),
)  # fmt: skip


def check_environment(environment: Any) -> None:
    """Raise ConfigError for a variable NSA_*, none of which is read; it names what answers it."""
    for name in sorted(environment):
        if name.startswith("NSA_"):
            instead = next(answer for prefix, answer in ANSWERS if name.startswith(prefix))
            raise ConfigError(
                f"{name}={environment[name]} is set, and is not read", f"unset it and give {instead}"
            )
