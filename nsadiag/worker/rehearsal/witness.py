"""A rank of a rehearsal as the witness of what it computes: inputs of its calls, losses, parameters after each step, files.

Only `nsadiag fix` asks for it, to compare a job with and without a patch.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import random
import sys
from collections.abc import Iterable
from typing import Any

import torch
from torch.optim import optimizer as optim

from nsadiag.evidence.layout import open_private
from nsadiag.evidence.rehearsal import SOCKET
from nsadiag.worker import session
from nsadiag.worker.interruptions import pass_on, tolerated
from nsadiag.worker.place import user_place
from nsadiag.worker.recorder import Recorder
from nsadiag.worker.rehearsal.link import Link, bytes_of

WRITES = os.O_WRONLY | os.O_RDWR
NOT_FILES = ("/dev/", "/proc/", "/sys/")
MOVES = ("os.rename",)  # os.replace has the same event


def install(seed: int) -> None:
    """From here on ranks write down what they compute. `seed` moves their generators: 0 leaves what the script seeds."""
    Link.call = _witnessed(Link.call)  # type: ignore[method-assign]
    torch.Tensor.backward = _with_loss(torch.Tensor.backward)
    optim.register_optimizer_step_post_hook(_after_step)
    torch.manual_seed = _moved(torch.manual_seed, seed)
    random.seed = _moved(random.seed, seed)
    _witness_saves()
    sys.addaudithook(_hear)
    session.on_opened.append(functools.partial(_begin, seed))
    if rank := session.current():
        _begin(seed, rank)


def _begin(seed: int, rank: Recorder) -> None:
    """Generators that a script does not seed differ between its ranks, and are the same in each rehearsal."""
    random.seed(rank.rank)
    torch.manual_seed(rank.rank)
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed(1000 * seed + rank.rank)


def _moved(original: Any, seed: int) -> Any:
    @functools.wraps(original)
    def seeded(value: Any = None, *args: Any, **more: Any) -> Any:
        return original(value + 1000 * seed if isinstance(value, int) else value, *args, **more)

    return seeded


# -- what is written down -------------------------------------------------------------------------

_files: dict[int, Any] = {}  # by process: what a rank forks is no rank


def write(what: str, **about: Any) -> None:
    """One line, of a rank that is recorded."""
    rank = session.current()
    if rank is None or (_files and os.getpid() not in _files):
        return
    if not _files:
        _files[os.getpid()] = None  # the file's own opening is heard
        _files[os.getpid()] = open_private(rank.directory.witness, "a")
    file = _files[os.getpid()]
    if file is not None:
        file.write(json.dumps({"what": what, **about}) + "\n")
        file.flush()


def numbers(tensors: Iterable[torch.Tensor]) -> dict[str, Any]:
    """A digest of them, and whether all are finite."""
    digest, finite = hashlib.blake2b(digest_size=8), None
    for tensor in tensors:
        digest.update(bytes_of(tensor))
        if tensor.is_floating_point() and tensor.numel():
            finite = bool(tensor.detach().isfinite().all()) and finite is not False
    return {"value": digest.hexdigest(), "finite": finite}


def _witnessed(original: Any) -> Any:
    @functools.wraps(original)
    def call(link: Link, compute: Any, data: list[torch.Tensor], **about: Any) -> Any:
        with tolerated(Exception):
            said = {name: about.get(name, "") for name in ("op", "group", "members", "place")}
            write("call", **said, **numbers(_given(link.rank, data, about)))
        return original(link, compute, data, **about)

    return call


def _given(rank: int, data: list[torch.Tensor], about: dict[str, Any]) -> list[torch.Tensor]:
    """The input of a call: a broadcast has one on its root alone, elsewhere it is memory that nobody has written yet."""
    root, members = about.get("root"), about.get("members", ())
    is_given = about.get("op") != "broadcast" or root is None or members[root] == rank
    return data if is_given else []


def _with_loss(original: Any) -> Any:
    @functools.wraps(original)
    def backward(loss: torch.Tensor, *args: Any, **more: Any) -> Any:
        with tolerated(Exception):
            write("loss", place=user_place(), **numbers([loss]))
        return original(loss, *args, **more)

    return backward


def _after_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    with tolerated(Exception):
        held = [p for group in optimizer.param_groups for p in group["params"]]
        write("step", place=user_place(), **numbers(getattr(p, "_local_tensor", p) for p in held))


def _witness_saves() -> None:
    """`torch.save` opens a path in C++, where no hook hears of it."""
    from torch import serialization

    opened = serialization._open_zipfile_writer

    @functools.wraps(opened)
    def writer(name_or_buffer: Any) -> Any:
        if isinstance(name_or_buffer, str | os.PathLike):
            _written(os.fspath(name_or_buffer))
        return opened(name_or_buffer)

    serialization._open_zipfile_writer = writer


def _hear(event: str, args: tuple[Any, ...]) -> None:
    if event == "open":
        path, _, flags = args
        if isinstance(path, str) and (flags or 0) & WRITES:
            _written(path)
    elif event in MOVES and isinstance(args[1], str) and _is_file(args[0]):
        _written(args[1])


def _ours(rank: Recorder) -> tuple[str, ...]:
    """The run directory, and the one in which ranks leave each other the inputs of their calls."""
    return str(rank.directory.path.parent.parent), os.path.dirname(os.environ.get(SOCKET, "/dev/"))  # noqa: PTH120


def _is_file(path: Any) -> bool:
    """Whether what is moved holds anything: sockets, which are our own, do not."""
    return os.path.isfile(path) or os.path.isdir(path)  # noqa: PTH112, PTH113 - a Path takes microseconds


def _written(path: str) -> None:
    rank = session.current()
    try:
        whole = os.path.abspath(path)  # noqa: PTH100 - a Path takes microseconds
    except OSError as error:
        pass_on(error)
        return
    if rank is not None and not whole.startswith((*NOT_FILES, *_ours(rank))):
        with tolerated(Exception):
            write("file", path=whole, place=user_place())
