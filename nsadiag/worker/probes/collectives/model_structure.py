"""The structure of a model at the moment it is wrapped: the wrapper assumes that all ranks bring the same (wraps.json)."""

from __future__ import annotations

from time import monotonic_ns
from typing import Any

import torch
import torch.distributed as dist

from nsadiag.evidence.layout import write_json
from nsadiag.worker.place import user_place
from nsadiag.worker.probes.autograd import module_tree
from nsadiag.worker.recorder import Recorder

KEPT = 32  # a model whose every layer is wrapped by itself has hundreds
_noted: list[dict[str, Any]] = []


def note(rank: Recorder, wrapper: str, module: torch.nn.Module, group: Any) -> None:
    """Before the wrapper talks to the other ranks: where they disagree it may never return."""
    if len(_noted) >= KEPT:
        return
    ignored = getattr(module, "_ddp_params_and_buffers_to_ignore", ())
    _noted.append(
        {
            "wrapper": wrapper,
            "model": type(module).__name__,
            "place": user_place(),
            "t_mono_ns": monotonic_ns(),
            "ranks": dist.get_process_group_ranks(group or dist.group.WORLD) if dist.is_initialized() else [],
            "parameters": [
                _tensor(n, p)
                for n, p in module_tree.named_parameters(module)
                if p.requires_grad and n not in ignored
            ],
            "buffers": [_tensor(n, b) for n, b in module_tree.named_buffers(module) if n not in ignored],
        }
    )
    write_json(rank.directory.wraps, _noted)


def _tensor(name: str, tensor: torch.Tensor) -> list[Any]:
    return [name, list(tensor.shape), str(tensor.dtype)]
