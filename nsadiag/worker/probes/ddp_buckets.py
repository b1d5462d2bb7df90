"""What DDP reduces together: parameters by index, bucket sizes, settings. No communication hook is touched."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Iterator
from typing import Any

import torch

from nsadiag.evidence.blackbox import Kind, Phase
from nsadiag.evidence.layout import write_json
from nsadiag.worker import runtime
from nsadiag.worker.place import user_place
from nsadiag.worker.probes.patch import harmless, replaced

SETTINGS = ("find_unused_parameters", "gradient_as_bucket_view", "broadcast_buffers", "static_graph")
_wrapped: list[weakref.ref[Any]] = []


@harmless
def _begin() -> None:
    rank = runtime.ensure_rank()
    if rank is not None:
        rank.emit(
            Kind.WRAP,
            Phase.BEGIN,
            rank.names("DistributedDataParallel"),
            0,
            0,
            rank.names("\t" + user_place()),
        )


@harmless
def _end(model: Any) -> None:
    rank = runtime.current()
    if rank is not None:
        rank.emit(Kind.WRAP, Phase.END, rank.names("DistributedDataParallel"))
        _wrapped.append(weakref.ref(model))
        write_json(rank.directory.ddp, [describe(m()) for m in _wrapped if m() is not None])


def describe(model: Any) -> dict[str, Any]:
    """Parameters in the order of DDP's own indices, as its error messages count them."""
    ignored = model.parameters_to_ignore
    named = [(n, p) for n, p in model.module.named_parameters() if p.requires_grad and n not in ignored]
    logged = model._get_ddp_logging_data()
    return {
        "parameters": [{"name": n, "shape": list(p.shape), "dtype": str(p.dtype)} for n, p in named],
        "settings": {name: bool(getattr(model, name, False)) for name in SETTINGS},
        "bucket_cap_mb": getattr(model, "bucket_bytes_cap", 0) / 2**20,
        "bucket_sizes": str(logged.get("bucket_sizes", "")),
    }


@contextlib.contextmanager
def ddp_buckets() -> Iterator[None]:
    """Wraps the constructor of DistributedDataParallel."""
    wrap = torch.nn.parallel.DistributedDataParallel
    construct = wrap.__init__

    @functools.wraps(construct)
    def observed(self: Any, *args: Any, **kwargs: Any) -> None:
        _begin()
        construct(self, *args, **kwargs)
        _end(self)

    with replaced(wrap, "__init__", observed):
        yield
