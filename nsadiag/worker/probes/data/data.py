"""Waiting for the next batch: which loader, which line asked, and the pids of its workers."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from time import time_ns
from typing import Any

from nsadiag.evidence.layout import write_json
from nsadiag.evidence.ring.blackbox import Kind, Phase
from nsadiag.worker import session
from nsadiag.worker.imports.on_import import when_imported
from nsadiag.worker.place import user_place
from nsadiag.worker.probes import suppressed_exceptions
from nsadiag.worker.probes.patch import harmless, replaced, stands_for
from nsadiag.worker.recorder import Recorder

KEPT = 32  # loaders in loaders.json, newest last
# A loader's iterators share most, but not the workers: what is known of one lives as long as it does.
_known: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
_loaders: OrderedDict[tuple[Any, ...], dict[str, Any]] = OrderedDict()


class _Here(threading.local):
    inside = False  # one `next` may call another's


_here = _Here()


def _dataset_of(iterator: Any) -> str:
    return type(getattr(iterator, "_dataset", None)).__name__


def _sampler_of(iterator: Any) -> str | None:
    """The type of what draws the indices; None of a dataset that is only iterated, or where the user's own draws whole batches."""
    batches = getattr(iterator, "_index_sampler", None)
    if type(batches).__name__ == "_InfiniteConstantSampler":
        return None
    sampler = getattr(batches, "sampler", batches)
    return None if type(sampler).__name__ == "_InfiniteConstantSampler" else type(sampler).__name__


def _describe(iterator: Any, place: str) -> dict[str, Any]:
    workers = getattr(iterator, "_workers", None) or []
    return {
        "dataset": _dataset_of(iterator),
        "iterator": type(iterator).__name__,
        "sampler": _sampler_of(iterator),
        "place": place,
        "workers": [worker.pid for worker in workers],
        "pid": os.getpid(),
        "t_wall_ns": time_ns(),
    }


@harmless
def _learn(iterator: Any, rank: Recorder, place: str) -> None:
    """Writes loaders.json when a loader, a line that asks, or a set of workers is new."""
    _known[iterator] = rank.names(_dataset_of(iterator))
    loader = _describe(iterator, place)
    key = (loader["dataset"], place, tuple(loader["workers"]))
    if key in _loaders:
        return
    _loaders[key] = loader
    while len(_loaders) > KEPT:
        _loaders.popitem(last=False)
    write_json(rank.directory.loaders, list(_loaders.values()))


@harmless
def _begin(iterator: Any) -> tuple[int, int] | None:
    # Only a rank that is open already: a launcher that reads data is none.
    rank = session.current()
    if rank is None:
        return None
    place = user_place()
    if iterator not in _known:
        _learn(iterator, rank, place)
    event = (_known.get(iterator, 0), int(getattr(iterator, "_num_workers", 0)))
    rank.emit(Kind.DATA, Phase.BEGIN, *event, 0, rank.names("\t" + place))
    return event


@harmless
def _end(event: tuple[int, int], *, ran_out: bool) -> None:
    rank = session.current()
    if rank is not None:
        rank.emit(Kind.DATA, Phase.END, *event, int(ran_out))


def _observed(call: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @stands_for(call)
    def __next__(self: Any) -> Any:
        if _here.inside:
            return call(self)
        event = _begin(self)
        _here.inside = True
        ran_out = False
        try:
            return call(self)
        except StopIteration:
            ran_out = True
            raise
        except Exception as error:
            suppressed_exceptions.left(error, "input")
            raise
        finally:
            _here.inside = False
            if event is not None:
                _end(event, ran_out=ran_out)

    return __next__


def _wrap(stack: ExitStack, module: str, name: str) -> None:
    """Only where the class has a `__next__` of its own: an inherited one is wrapped already."""
    kind = getattr(sys.modules[module], name, None)
    if kind is not None and "__next__" in vars(kind):
        stack.enter_context(replaced(kind, "__next__", _observed(kind.__next__)))


ITERATORS = (
    ("torch.utils.data.dataloader", "_BaseDataLoaderIter"),
    ("torchdata.stateful_dataloader.stateful_dataloader", "_StatefulBaseDataLoaderIter"),
)


@contextlib.contextmanager
def data() -> Iterator[None]:
    """Time in `next` of a DataLoader, whether its data ran out, the line that asks, the pids of the workers (loaders.json)."""
    with ExitStack() as stack:
        for module, name in ITERATORS:
            when_imported(module, functools.partial(_wrap, stack, module, name))
        yield
