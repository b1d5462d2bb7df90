"""Repeated launches of a compiled kernel without Triton's own dispatch, which takes longer than short kernels run."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from operator import itemgetter
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton import knobs
from triton.compiler import CompiledKernel
from triton.runtime.jit import JITFunction
from triton.tools.tensor_descriptor import TensorDescriptor

_ALIGNMENT = 16  # bytes: what Triton compiles a kernel for, where it can
_MOST_KNOWN = 512  # kinds of launch that are kept per kernel, each some hundred bytes
_current_device = getattr(
    torch._C, "_cuda_getDevice", torch.cuda.current_device
)  # which does not check that CUDA is initialised


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
        self._direct: bool | None = None if isinstance(kernel, JITFunction) else False  # None: not tried yet
        plain = [p.do_not_specialize for p in kernel.params] if self._direct is None else []
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
        if self._direct is None and not torch.cuda.is_current_stream_capturing():
            self._direct = direct_launches_work()
        if not self._direct or not self._launch_known(grid, arguments, constants):
            self.kernel[grid](*arguments, **constants)

    def _launch_known(
        self, grid: tuple[int, ...], arguments: tuple[Any, ...], constants: dict[str, Any]
    ) -> bool:
        """Launch the compiled kernel; False if the launch must go through Triton, for profilers' hooks or unaligned pointers."""
        if _hooked() or max(self._plain(arguments)) >= 2**31:
            return False
        n, device = len(arguments), _current_device()
        special = [arguments[i] for i in self._special if i < n]
        kinds = [
            x.dtype if isinstance(x, Tensor) else _tile(x) if isinstance(x, TensorDescriptor) else x
            for x in special
        ]
        key = (device, *constants.values(), *kinds)
        known = self._known.get(key)
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
        known.launch(x, y, z, stream, values)
        return True


class _Known(NamedTuple):
    """A compiled kernel, ready to be launched."""

    run: Any
    fixed: tuple[object, ...]
    pointers: list[int]  # which arguments are
    unused: list[None]  # the values of constants are not used: they are compiled into the kernel
    packed: bool  # whether `run` takes its arguments as one tuple, as since Triton 3.7

    @classmethod
    def of(cls, compiled: CompiledKernel, pointers: list[int], n_constants: int) -> _Known:
        """Prepare `compiled` for direct launches, by the plain C function if it needs no scratch memory."""
        launcher, unused = compiled.run, [None] * n_constants
        metadata = (compiled.packed_metadata, None, None, None)
        scratch = launcher.global_scratch_size or launcher.profile_scratch_size
        if scratch or getattr(launcher, "gsan_enabled", False):
            return cls(launcher, (compiled.function, *metadata), pointers, unused, False)
        how = (launcher.launch_cooperative_grid, launcher.launch_pdl)
        if hasattr(launcher, "kernel_signature"):
            kinds = (launcher.arg_annotations, launcher.kernel_signature)
            fixed = (compiled.function, *how, *metadata, None, None, *kinds)
            return cls(launcher.launch, fixed, pointers, unused, True)
        return cls(launcher.launch, (compiled.function, *how, None, None, *metadata), pointers, unused, False)

    def launch(self, x: int, y: int, z: int, stream: int, values: list[Any]) -> None:
        if self.packed:
            self.run(x, y, z, stream, *self.fixed, (*values, *self.unused))
        else:
            self.run(x, y, z, stream, *self.fixed, *values, *self.unused)


class _Launch:
    """A launcher and a grid, to be called."""

    __slots__ = ("_grid", "_launcher")

    def __init__(self, launcher: Launcher, grid: tuple[int, ...]) -> None:
        self._launcher, self._grid = launcher, grid

    def __call__(self, *arguments: Any, **constants: Any) -> None:
        self._launcher.launch(self._grid, arguments, constants)


def _tile(x: TensorDescriptor) -> tuple[object, ...]:
    """The part of a descriptor that a kernel is specialized on."""
    return (x.base.dtype, *x.block_shape)


def _hooked() -> bool:
    """Whether a profiler has hooked launches."""
    enter, leave = knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook
    return bool(getattr(enter, "calls", enter) or getattr(leave, "calls", leave))


@triton.jit(do_not_specialize=["plain"])
def _trial(OUT, ROWS, special, plain, factor, NOTHING, CONSTANT: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = tl.reshape(ROWS.load([tl.program_id(0), 0]), (BLOCK,))
    tl.store(OUT + at, row * factor + special * 1000.0 + plain + CONSTANT)


@lru_cache(maxsize=1)
def direct_launches_work() -> bool:
    """Whether a kernel that is launched directly computes what it should.

    How a compiled kernel is called is no public interface of Triton and changes between its releases, so it is tried
    once per process, with every kind of argument. If that fails in any way, launches go through Triton.
    """
    try:
        launcher, out = Launcher(_trial), torch.zeros(3, 32, device="cuda")
        launcher._direct = True
        rows = TensorDescriptor.from_tensor(torch.arange(32.0, device="cuda").view(2, 16), [1, 16])
        expected = torch.arange(32.0) * 0.5 + 48000 + 3
        for row, plain in enumerate((5, 6, 2**20)):  # the first is compiled, so goes through Triton
            launcher[(2,)](out[row], rows, 48, plain, 0.5, None, CONSTANT=3, BLOCK=16, num_warps=1)
            if not torch.equal(out[row].cpu(), expected + plain):
                return False
        return len(launcher._known) == 1  # none was left to Triton
    except Exception:  # any failure means that launches go through Triton
        return False
