"""Regions in which a rank only accumulates gradients: `no_sync` of DDP and FSDP1, `set_requires_gradient_sync` of FSDP2.

An event on the way in and one on the way out: forwards between them reduce nothing, and jobs that always reduce pay nothing.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import torch
import torch.distributed as dist

from nsadiag.evidence.ring.blackbox import Kind, Phase
from nsadiag.worker import session
from nsadiag.worker.imports.on_import import when_imported
from nsadiag.worker.place import user_place
from nsadiag.worker.probes.patch import harmless, replaced, stands_for

FSDP1 = "torch.distributed.fsdp.fully_sharded_data_parallel"
# FSDP2 moved in torch 2.6.
FSDP2 = ("torch.distributed.fsdp._fully_shard._fully_shard", "torch.distributed._composable.fsdp.fully_shard")
SWITCH = "set_requires_gradient_sync"


@harmless
def _say(phase: int, what: str) -> None:
    rank = session.current()
    if rank is not None:
        rank.emit(int(Kind.GRAD_SYNC), phase, rank.names(what), 0, 0, rank.names("\t" + user_place()))


def _observed_no_sync(call: Callable[..., Any]) -> Callable[..., Any]:
    @contextlib.contextmanager
    def no_sync(self: Any, *args: Any, **kwargs: Any) -> Iterator[None]:
        _say(int(Phase.BEGIN), "no_sync")
        try:
            with call(self, *args, **kwargs):
                yield
        finally:
            _say(int(Phase.END), "no_sync")

    return stands_for(call)(no_sync)


def _observed_switch(call: Callable[..., Any]) -> Callable[..., Any]:
    @stands_for(call)
    def set_requires_gradient_sync(self: Any, requires_gradient_sync: bool, *args: Any, **kwargs: Any) -> Any:
        _say(int(Phase.END if requires_gradient_sync else Phase.BEGIN), SWITCH)
        return call(self, requires_gradient_sync, *args, **kwargs)

    return set_requires_gradient_sync


def _wrap(stack: ExitStack, owner: Any, name: str, observed: Callable[[Any], Any]) -> None:
    call = vars(owner).get(name) if owner is not None else None
    if call is not None:
        stack.enter_context(replaced(owner, name, observed(call)))


def _wrap_in(stack: ExitStack, module: str, owner: str, name: str, observed: Callable[[Any], Any]) -> None:
    _wrap(stack, getattr(sys.modules[module], owner, None), name, observed)


@contextlib.contextmanager
def grad_sync() -> Iterator[None]:
    """Stretches in which gradients are accumulated and not reduced, with the line that asked for it."""
    if not dist.is_available():
        yield
        return
    with ExitStack() as stack:
        _wrap(stack, torch.nn.parallel.DistributedDataParallel, "no_sync", _observed_no_sync)
        of_fsdp1 = functools.partial(
            _wrap_in, stack, FSDP1, "FullyShardedDataParallel", "no_sync", _observed_no_sync
        )
        when_imported(FSDP1, of_fsdp1)
        for module in FSDP2:
            when_imported(
                module, functools.partial(_wrap_in, stack, module, "FSDPModule", SWITCH, _observed_switch)
            )
        yield
