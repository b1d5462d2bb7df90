"""Elements of each parameter that lie on this rank: whole, in FSDP1's flat parameters, or in DTensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from nsadiag.worker.probes.autograd import module_tree
from nsadiag.worker.probes.autograd.module_calls import qualified
from nsadiag.worker.probes.correctness.sketches import Box, run_of


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A part of one parameter, and of its gradient."""

    name: str
    shape: tuple[int, ...]  # of the full parameter
    box: Box | None  # where the part lies in it; None: a run of its flattened elements
    run: tuple[int, int] | None
    value: torch.Tensor
    gradient: torch.Tensor | None


class Unreadable(Exception):
    """A parameter that cannot be laid out; the text says why."""


Named = dict[int, tuple[torch.Tensor, str]]  # by address: a tensor has no other key


def pieces_of(
    parameters: Iterable[torch.Tensor], roots: Iterable[torch.nn.Module], known: Named
) -> tuple[list[Piece], list[str]]:
    """The parts of these parameters that are here, by names as the model has them; and what could not be read.

    `known`: names from earlier.
    """
    roots = list(roots)
    names, flattened = named(roots, known), _flattened(roots)
    found: list[Piece] = []
    gaps: list[str] = []
    for number, parameter in enumerate(parameters):
        name = names[id(parameter)][1] if id(parameter) in names else f"parameter {number}"
        try:
            if id(parameter) in flattened:
                found += _of_handle(parameter, *flattened[id(parameter)])
            else:
                found.append(_piece(name, parameter))
        except Unreadable as error:
            gaps.append(f"{name}: {error}")
    return found, gaps


def named(roots: Iterable[torch.nn.Module], known: Named | None = None) -> Named:
    """Parameters with names: the longest, since a part of a model that was called by itself knows less of it."""
    names = dict(known or {})
    for root in roots:
        for name, parameter in module_tree.named_parameters(root):
            text = qualified(name)
            if text.count(".") >= names.get(id(parameter), (None, ""))[1].count("."):
                names[id(parameter)] = (parameter, text)
    return names


def _piece(name: str, parameter: torch.Tensor) -> Piece:
    gradient = parameter.grad
    if hasattr(parameter, "_local_tensor"):
        return _of_dtensor(name, parameter, gradient)
    if gradient is not None and gradient.layout != torch.strided:
        raise Unreadable("its gradient is sparse")
    shape = tuple(parameter.shape)
    return Piece(
        name=name, shape=shape, box=None, run=(0, parameter.numel()), value=parameter, gradient=gradient
    )


def _of_dtensor(name: str, parameter: Any, gradient: Any) -> Piece:
    if any(p.is_partial() for p in parameter.placements):
        raise Unreadable("it is a partial sum")
    if gradient is not None and tuple(gradient.placements) != tuple(parameter.placements):
        raise Unreadable("its gradient is placed in another way than itself")
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    # Uneven shards, several mesh dimensions, FSDP inside tensor parallelism: torch knows where they begin.
    sizes, offsets = compute_local_shape_and_global_offset(
        parameter.shape, parameter.device_mesh, parameter.placements
    )
    shape = tuple(parameter.shape)
    value = parameter._local_tensor
    if tuple(value.shape) != tuple(sizes):
        raise Unreadable(f"its shard is {tuple(value.shape)}, not {tuple(sizes)}")
    box = tuple(zip(offsets, sizes, strict=True))
    run = run_of(shape, box) if value.numel() else (0, 0)
    return Piece(
        name=name,
        shape=shape,
        box=None if run else box,
        run=run,
        value=value,
        gradient=None if gradient is None else gradient._local_tensor,
    )


# -- FSDP1 -------------------------------------------------------------------------------------------------


def _flattened(roots: list[torch.nn.Module]) -> dict[int, tuple[Any, str, int | None]]:
    """By id of a parameter that an optimizer may hold: handle, prefix, and its number in the handle (None: the flat one)."""
    found: dict[int, tuple[Any, str, int | None]] = {}
    for root in roots:
        for prefix, module in module_tree.named_modules(root):
            handle = getattr(module, "_handle", None)
            flat = getattr(handle, "flat_param", None)
            if flat is None:
                continue
            found[id(flat)] = (handle, prefix, None)
            for number, parameter in enumerate(getattr(flat, "_params", None) or ()):
                found[id(parameter)] = (handle, prefix, number)
    return found


def _of_handle(parameter: Any, handle: Any, prefix: str, number: int | None) -> Iterator[Piece]:
    flat = handle.flat_param
    if number is not None:
        yield from _of_original(parameter, handle, prefix, number)
        return
    start = 0
    for n, info in enumerate(flat._shard_param_infos):
        if handle.uses_sharded_strategy and info.in_shard:
            part = slice(info.offset_in_shard, info.offset_in_shard + info.numel_in_shard)
            yield _run(flat, prefix, n, _span(info), parameter[part], parameter.grad, part)
        elif not handle.uses_sharded_strategy:
            count = flat._shapes[n].numel()
            part = slice(start, start + count)
            start += count
            yield _run(flat, prefix, n, (0, count), parameter[part], parameter.grad, part)


def _of_original(parameter: Any, handle: Any, prefix: str, number: int) -> Iterator[Piece]:
    """With use_orig_params: a view of the shard, or of the whole where nothing is sharded."""
    flat = handle.flat_param
    info = flat._shard_param_infos[number]
    span = _span(info) if handle.uses_sharded_strategy else (0, flat._shapes[number].numel())
    if span[0] == span[1]:
        return
    if parameter.numel() != span[1] - span[0]:
        raise Unreadable(f"its shard has {parameter.numel()} elements, not {span[1] - span[0]}")
    yield _run(flat, prefix, number, span, parameter, parameter.grad, slice(None))


def _span(info: Any) -> tuple[int, int]:
    return (info.intra_param_start_idx, info.intra_param_end_idx + 1) if info.in_shard else (0, 0)


def _run(
    flat: Any, prefix: str, number: int, span: tuple[int, int], value: Any, gradient: Any, part: slice
) -> Piece:
    name = flat._fqns[number]
    return Piece(
        name=qualified(f"{prefix}.{name}" if prefix else name),
        shape=tuple(flat._shapes[number]),
        box=None,
        run=span,
        value=value.detach(),
        gradient=None if gradient is None else gradient.reshape(-1)[part],
    )
