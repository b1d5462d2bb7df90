"""Launch a compiled kernel again without Triton's own dispatch, which takes longer than a short kernel runs."""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from triton.compiler import CompiledKernel
from triton.runtime.jit import JITFunction

_ALIGNMENT = 16  # bytes: what Triton compiles a kernel for, where it can
_MOST_KNOWN = 512  # kinds of launch of one kernel that are kept, each some hundred bytes
# What a compiled kernel is called with is no interface of Triton's: only where it was tried on a GPU.
_TRIED = triton.__version__.startswith("3.6.")
if _TRIED:
    from triton import knobs
_current_device = getattr(
    torch._C, "_cuda_getDevice", torch.cuda.current_device
)  # without asking whether CUDA is up


class Launcher:
    """One kernel, `launcher[grid](*arguments, **constants, num_warps=...)`, as Triton would launch it.

    The first launch of a kind goes through Triton, which specialises kernels by types, by constants, by which
    integers are 1 or divisible by 16, and by how pointers are aligned. The launches after it find what was
    compiled by the same facts. Runtime arguments come first, in their order; constants by name, in any order,
    but always the same one.
    """

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self._known: dict[tuple[object, ...], _Known] = {}
        self._direct = _TRIED and isinstance(kernel, JITFunction)  # not under the interpreter
        plain = [p.do_not_specialize for p in kernel.params] if self._direct else []
        self._special = [i for i, is_plain in enumerate(plain) if not is_plain]
        self._n_parameters = len(plain)
        integers = [i for i, is_plain in enumerate(plain) if is_plain]  # any value of 32 bits will do
        self._plain: Callable[[Any], Any] = (
            itemgetter(*integers, *integers[:1]) if integers else lambda _: (0,)
        )

    def __getitem__(self, grid: tuple[int, ...]) -> _Launch:
        return _Launch(self, grid)

    def launch(self, grid: tuple[int, ...], arguments: tuple[Any, ...], constants: dict[str, Any]) -> None:
        """`constants` hold num_warps and num_stages too."""
        if not self._direct or not self._launch_known(grid, arguments, constants):
            self.kernel[grid](*arguments, **constants)

    def _launch_known(
        self, grid: tuple[int, ...], arguments: tuple[Any, ...], constants: dict[str, Any]
    ) -> bool:
        """Launch what is compiled; False if it must go through Triton: profilers' hooks, descriptors and odd pointers."""
        hooked = knobs.runtime.launch_enter_hook.calls or knobs.runtime.launch_exit_hook.calls
        if hooked or max(self._plain(arguments)) >= 2**31:
            return False
        n, device = len(arguments), _current_device()
        special = [arguments[i] for i in self._special if i < n]
        facts = [x.dtype if isinstance(x, Tensor) else x for x in special]
        key = (device, *constants.values(), *facts)
        try:
            known = self._known.get(key)
        except TypeError:  # a tensor descriptor
            return False
        values, addresses = [*arguments], 0
        pointers = known.pointers if known else [i for i, x in enumerate(arguments) if isinstance(x, Tensor)]
        for i in pointers:
            values[i] = address = arguments[i].data_ptr()
            addresses |= address
        if addresses % _ALIGNMENT:
            return False
        if known is None:
            compiled = self.kernel[grid](*arguments, **constants)
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[key] = _Known.of(compiled, pointers, self._n_parameters - n)
            return True
        x, y, z = (*grid, 1, 1)[:3]
        stream = torch._C._cuda_getCurrentRawStream(device)
        known.run(x, y, z, stream, *known.fixed, *values, *known.unused)
        return True


class _Known(NamedTuple):
    """A compiled kernel, ready to be launched."""

    run: Any
    fixed: tuple[object, ...]
    pointers: list[int]  # which arguments are
    unused: list[None]  # the launcher passes constants by, whatever they are: they are in the kernel's code

    @classmethod
    def of(cls, compiled: CompiledKernel, pointers: list[int], n_constants: int) -> _Known:
        """No scratch memory, no hooks: the plain C function does."""
        launcher, unused = compiled.run, [None] * n_constants
        metadata = (compiled.packed_metadata, None, None, None)
        if launcher.global_scratch_size or launcher.profile_scratch_size:
            return cls(launcher, (compiled.function, *metadata), pointers, unused)
        how = (launcher.launch_cooperative_grid, launcher.launch_pdl, None, None)
        return cls(launcher.launch, (compiled.function, *how, *metadata), pointers, unused)


class _Launch:
    """A launcher and a grid, to be called."""

    __slots__ = ("_grid", "_launcher")

    def __init__(self, launcher: Launcher, grid: tuple[int, ...]) -> None:
        self._launcher, self._grid = launcher, grid

    def __call__(self, *arguments: Any, **constants: Any) -> None:
        self._launcher.launch(self._grid, arguments, constants)
