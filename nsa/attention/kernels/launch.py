"""Launch a compiled kernel again without Triton's own dispatch, which takes longer than a short kernel runs."""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor
from triton.compiler import CompiledKernel
from triton.runtime.jit import JITFunction

_ALIGNMENT = 16  # bytes: what Triton compiles a kernel for, where it can
# What a compiled kernel is called with is no interface of Triton's: only where it was tried on a GPU.
_TRIED = triton.__version__.startswith("3.6.")


class Launcher:
    """One kernel, `launcher[grid](*arguments, **constants, num_warps=...)`, as Triton would launch it.

    The first launch of a kind goes through Triton, which specialises kernels by types, by constants, by which
    integers are 1 or divisible by 16, and by how pointers are aligned. The launches after it find what was
    compiled by the same facts. Runtime arguments come first, in their order; constants by name, in any order,
    but always the same one.
    """

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self._compiled: dict[tuple[object, ...], CompiledKernel] = {}
        self._direct = _TRIED and isinstance(kernel, JITFunction)  # not under the interpreter
        self._special = [not p.do_not_specialize for p in kernel.params] if self._direct else []

    def __getitem__(self, grid: tuple[int, ...]) -> _Launch:
        return _Launch(self, grid)

    def launch(self, grid: tuple[int, ...], arguments: tuple[Any, ...], constants: dict[str, Any]) -> None:
        """`constants` hold num_warps and num_stages too."""
        if not self._direct:
            self.kernel[grid](*arguments, **constants)
            return
        key: list[object] = [torch.cuda.current_device(), *constants.values()]
        values: list[object] = []
        addresses = 0
        for x, special in zip(arguments, self._special, strict=False):
            if isinstance(x, Tensor):
                address = x.data_ptr()
                addresses |= address
                key.append(x.dtype)
                values.append(address)
                continue
            values.append(x)
            if type(x) is int:
                key.append((x >> 31, special and (2 if x == 1 else x % _ALIGNMENT == 0)))
            elif x is None or type(x) is float:
                key.append(x)
            else:  # a tensor descriptor
                self.kernel[grid](*arguments, **constants)
                return
        if addresses % _ALIGNMENT:
            self.kernel[grid](*arguments, **constants)
            return
        found = self._compiled.get(tuple(key))
        if found is None:
            self._compiled[tuple(key)] = self.kernel[grid](*arguments, **constants)
            return
        # The launcher passes constants by, whatever they are: they are in the kernel's code.
        unused = [None] * (len(self._special) - len(values))
        found[(*grid, 1, 1)[:3]](*values, *unused)


class _Launch:
    """A launcher and a grid, to be called."""

    __slots__ = ("_grid", "_launcher")

    def __init__(self, launcher: Launcher, grid: tuple[int, ...]) -> None:
        self._launcher, self._grid = launcher, grid

    def __call__(self, *arguments: Any, **constants: Any) -> None:
        self._launcher.launch(self._grid, arguments, constants)
