"""Results of calls that come with the wait for them: what is read before is poison, as it might be on a network.

A backend fills a buffer at any time between call and wait, so that a script that reads too early is right by luck. Here
nothing is there before somebody waits, asks whether the work is done, or takes its future. Every second rank finds what its
buffer held before: poison alone would lead all ranks into the same branch.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from types import FunctionType
from typing import Any, TypeAlias, TypeVar

import torch
import torch.distributed as dist

from nsadiag.worker import numbering
from nsadiag.worker.interruptions import tolerated
from nsadiag.worker.probes.patch import not_compiled
from nsadiag.worker.rehearsal.values import write

Tensors = Sequence[torch.Tensor]
Values: TypeAlias = Any  # a torch.futures.Future of flat tensors, one for each output
C = TypeVar("C", bound=type)
# C++ that is given a work (DDP under Join) finds its methods only as long as the Python object lives.
_kept: deque[Result] = deque(maxlen=256)
MOST_KEPT = 1024  # elements of a kept work's outputs: what Join asks is one number


def uncompiled(kind: C) -> C:
    """The class, none of whose methods torch's compiler compiles: a backend's are C++, where it does not look."""
    for function in vars(kind).values():
        if isinstance(function, FunctionType):
            not_compiled(function, what_it_calls=True)
    return kind


@uncompiled
class Result(dist.Work):  # type: ignore[misc]
    """The work of one call. C++ (DDP, functional collectives) asks it through the same methods."""

    def __init__(self, met: Values, outputs: Tensors, result: Any = None, sender: int = -1) -> None:
        """`result` is what its future holds, in the place of the outputs; `sender` the rank that sent, where it is known."""
        super().__init__()
        self._met, self._outputs, self._sender = met, list(outputs), sender
        self._result = self._outputs if result is None else result
        self._lock, self._future = threading.Lock(), None
        if sum(output.numel() for output in self._outputs) <= MOST_KEPT:
            _kept.append(self)
        if (numbering.number_in("RANK") or 0) % 2 == 0:
            for output in self._outputs:
                poison(output)

    def _deliver(self, values: Tensors) -> None:
        with self._lock:
            for output, value in zip(self._outputs, values, strict=False):
                write(output, value)
            self._outputs = []

    def wait(self, *_: Any, **__: Any) -> bool:
        self._deliver(self._met.wait())
        return True

    def get_future(self) -> Values:
        if self._future is None:
            result = self._result

            def delivered(met: Values) -> Any:
                self._deliver(met.value())
                return result

            self._future = self._met.then(delivered)
        return self._future

    def is_completed(self) -> bool:
        if self._met.done():
            self.wait()
        return bool(self._met.done())

    def is_success(self) -> bool:
        return self.is_completed()

    def exception(self) -> None:
        return None

    def result(self) -> Any:
        self.wait()
        return self._result

    def synchronize(self) -> None:
        self.wait()

    def block_current_stream(self) -> None:
        self.wait()

    def source_rank(self) -> int:
        return self._sender

    _source_rank = source_rank


@uncompiled
class FromAnybody(Result):
    """The same of a receive from any rank: its value begins with the sender."""

    def _deliver(self, values: Tensors) -> None:
        self._sender = int(values[0])
        super()._deliver(values[1:])


def poison(tensor: torch.Tensor) -> None:
    """Values that nobody can take for a result."""
    with tolerated(RuntimeError, TypeError, NotImplementedError):  # a dtype that cannot be filled
        if tensor.is_floating_point() or tensor.is_complex():
            tensor.data.fill_(float("nan"))
        elif tensor.dtype is not torch.bool:
            tensor.data.fill_(torch.iinfo(tensor.dtype).max)
