"""Puts rehearsed groups in the place of those that a script creates, by whatever function and backend."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

from nsadiag.evidence.rehearsal import CUDA, SOCKET
from nsadiag.worker.rehearsal import clock, compiler, cuda, epochs, limits
from nsadiag.worker.rehearsal.group import RehearsedGroup
from nsadiag.worker.rehearsal.link import Link

BACKEND = "nsadiag"
_link: Link | None = None
_asked: dict[str, str] = {}  # the backend that the script asked for, by group
_described: dict[str, str] = {}  # each group's description


def install() -> None:
    """From here on groups are rehearsed. Raises OSError where the coordinator does not answer."""
    dist.Backend.register_backend(BACKEND, _created, extended_api=True, devices=["cpu", "cuda"])
    original = distributed_c10d._new_process_group_helper

    @functools.wraps(original)
    def helper(
        size: int, rank: int, members: Any, backend: Any, store: Any, group_name: Any, *args: Any, **more: Any
    ) -> Any:
        _asked[str(group_name)] = str(backend) if backend else ""
        _described[str(group_name)] = str(more.get("group_desc") or "")
        more |= {"backend_options": None, "device_id": None}
        return original(size, rank, members, BACKEND, store, group_name, *_without_options(args), **more)

    _everywhere(original, helper)
    _everywhere(distributed_c10d._new_group_with_tag, _announced(distributed_c10d._new_group_with_tag))
    _everywhere(distributed_c10d.get_backend, _backend_of)
    compiler.postpone()
    limits.install()
    epochs.install()
    if os.environ.get(CUDA):
        cuda.install(_everywhere)


def _announced(create: Any) -> Any:
    """Every rank has to create every group, member or not, unless it is asked to meet the members alone."""
    parameters = inspect.signature(create)

    @functools.wraps(create)
    def new_group(*args: Any, **more: Any) -> Any:
        given = parameters.bind(*args, **more).arguments
        everyone = distributed_c10d._get_default_group()
        if isinstance(everyone, RehearsedGroup) and not given.get("use_local_synchronization"):
            ranks = list(given.get("ranks") or range(everyone.size()))
            members = sorted(ranks) if given.get("sort_ranks", True) else ranks
            everyone.meet(f"of ranks {', '.join(map(str, members))}")
        return create(*args, **more)

    return new_group


def _without_options(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Options of another backend would be refused; they come first, where they are given by position."""
    return args[1:] and (None, *args[1:])


def _created(options: Any, _: Any) -> RehearsedGroup:
    global _link
    members = list(options.global_ranks_in_group) or list(range(options.group_size))
    name = str(options.group_id)
    if _link is None:
        _link = Link(Path(os.environ[SOCKET]), members[options.group_rank])
        clock.install(_link)
    group = RehearsedGroup(_link, name, _described.get(name, ""), members, options.group_rank)
    group.meet()
    return group


def _backend_of(group: Any = None) -> str:
    """`get_backend`: what the script asked for, as it may branch on it."""
    chosen = group or distributed_c10d._get_default_group()
    asked = _asked.get(distributed_c10d._world.pg_names.get(chosen, ""), "")
    return (asked.partition(":")[2].partition(",")[0] if ":" in asked else asked) or "gloo"


def _everywhere(original: Any, replacement: Any) -> None:
    """In every module of torch.distributed that has imported it by name."""
    for name, module in list(sys.modules.items()):
        if name.startswith("torch.distributed") and module is not None:
            for attribute, value in list(vars(module).items()):
                if value is original:
                    setattr(module, attribute, replacement)
