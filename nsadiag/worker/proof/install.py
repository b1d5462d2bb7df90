"""Writes down what a process computes in its first steps, and ends it after them (`evidence/rehearsal/proof.py`)."""

from __future__ import annotations

import functools
import os
import select
import sys
from collections import Counter
from time import perf_counter_ns
from typing import Any

import torch
from torch import distributed
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel
from torch.optim import optimizer as optim

from nsadiag.evidence.layout import open_private
from nsadiag.evidence.rehearsal import PROOF
from nsadiag.evidence.rehearsal.proof import DONE, Asked, asked_in
from nsadiag.worker import session
from nsadiag.worker.interruptions import pass_on, tolerated
from nsadiag.worker.place import user_place
from nsadiag.worker.probes.autograd.module_calls import qualified
from nsadiag.worker.probes.correctness.shards import Named, Piece, named, pieces_of
from nsadiag.worker.probes.generators import checksum
from nsadiag.worker.probes.values import is_a, stepped_by, tensors_among
from nsadiag.worker.proof import loaders, quiet, states
from nsadiag.worker.proof.journal import journal
from nsadiag.worker.proof.moved import Mover
from nsadiag.worker.proof.starts import Starts
from nsadiag.worker.proof.statements import Statements

WAIT_NS = 20 * 10**9  # for peers that are still in their last step
POLL_S = 0.02
OUTPUTS = 3  # steps in which modules' outputs are kept
MOST_OUTPUT = 1 << 22  # elements of one
EXCHANGES = ("all_gather", "all_gather_into_tensor", "all_reduce", "all_to_all", "all_to_all_single", "broadcast", "reduce", "reduce_scatter", "reduce_scatter_tensor")  # fmt: skip
FEW = 16  # elements: counts, losses and flags have no more
BATCH_NORM = torch.nn.modules.batchnorm._BatchNorm


class State:
    """The step that runs."""

    step = 0
    depth = 0  # of module calls
    calls = 0  # of outermost modules
    backwards = 0
    awaits_backward = False  # a model was called since the last one
    over = False

    def __init__(self, wanted: Asked) -> None:
        self.wanted = wanted
        self.mover = Mover(wanted.moved, wanted.seed) if wanted.moved else None
        self.starts: Starts | None = None
        self.started = ""  # `given`, where the ranks' parameters were put in the place of others
        self.roots: list[Module] = []
        self.flat: list[Module] = []  # those of FSDP1
        self.named: Named = {}
        self.modules: dict[int, str] = {}
        self.optimizers: dict[int, int] = {}
        self.made: list[Any] = []  # optimizers
        self.notes: set[str] = set()
        self.always: set[str] = set()  # notes of every step
        self.outputs: Counter[str] = Counter()
        self.locals: dict[int, torch.Tensor] = {}  # by address of the parameter
        self.random: int | None = None
        self.statements = (
            Statements(wanted.traced - 1, lambda: self.step, lambda: not self.depth)
            if wanted.traced
            else None
        )


_state: State
_text = ""


def install(text: str) -> None:
    """From here on this process writes down what it computes."""
    _set(text)
    quiet.install()
    loaders.install()
    Module.__call__ = _recorded(Module.__call__)
    torch.autograd.backward = _with_loss(torch.autograd.backward)
    torch.save = states.taken(torch.save, _written)
    states.install(_written)
    for name in EXCHANGES if distributed.is_available() else ():
        setattr(distributed, name, _exchanging(getattr(distributed, name)))
    torch.optim.Optimizer.__init__ = _noted(torch.optim.Optimizer.__init__)
    optim.register_optimizer_step_pre_hook(_before_step)
    optim.register_optimizer_step_post_hook(_after_step)
    session.on_leaving.append(_done)
    session.on_opened.append(_begin)
    if (rank := session.current()) is not None:
        _begin(rank)


def _set(text: str) -> None:
    global _state, _text
    _state, _text = State(asked_in(text)), text
    loaders.join(_state.wanted.others)


def _begin(_: Any) -> None:
    """A rank is recorded from here on; one that was forked after this was installed may have been asked for something else."""
    text = os.environ.get(PROOF, _text)
    if text != _text:
        _set(text)
    if _state.statements is not None:
        _state.statements.begin()


# -- modules --------------------------------------------------------------------------------------


def _recorded(original: Any) -> Any:
    @functools.wraps(original)
    def __call__(self: Module, *args: Any, **kwargs: Any) -> Any:
        state = _state
        in_backward = torch._C._current_graph_task_id() != -1
        if state.over or in_backward or not torch.is_grad_enabled() or torch.compiler.is_compiling():
            if not state.depth and not state.step and id(self) not in state.modules:
                state.notes.add(
                    "beside"
                )  # a model that only gives values, made of others' parameters perhaps
            return original(self, *args, **kwargs)
        outermost = not state.depth
        if outermost:
            args, kwargs = _enter(state, self, args, kwargs)
        state.depth += 1
        try:
            output = original(self, *args, **kwargs)
        finally:
            state.depth -= 1
        with tolerated(Exception):
            _leave(state, self, output, outermost)
        return output

    return __call__


def _enter(state: State, module: Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
    parameters = list(module.parameters())
    if not any(p.requires_grad for p in parameters):
        state.notes |= {"beside"} if parameters and not state.step else set()
        return args, kwargs
    with tolerated(Exception):
        _learn(state, module)
        if state.mover is not None:
            state.mover.parameters(module)
            args, kwargs = state.mover.inputs(args, kwargs)
        for number, tensor in enumerate(tensors_among([args, kwargs])):
            about = {"number": state.calls, "argument": number, "graded": tensor.requires_grad}
            journal.write("given", state.step, tensor, **about)
        state.calls += 1
        state.awaits_backward = True
        state.random = checksum()
    return args, kwargs


def _learn(state: State, module: Module) -> None:
    if any(module is root for root in state.roots) or id(module) in state.modules:
        return
    state.roots.append(module)
    for key, (parameter, text) in named([module]).items():
        known = state.named.get(key)
        if known is None or known[1].count(".") < text.count("."):
            state.named[key] = parameter, _unique(state, text)
    if state.wanted.others:
        state.starts = state.starts or Starts(state.wanted.others)
        if state.starts.give(state.named):
            state.started = "given"
    if state.statements is not None:
        state.statements.holds(_held(state), state.made)
    for name, part in module.named_modules():
        state.modules[id(part)] = qualified(name) or type(part).__name__
    if is_a(module, DistributedDataParallel):
        state.always.add("wrapped")
    if "wrapped" in state.always or any(hasattr(p, "_local_tensor") for p in module.parameters()):
        state.always.add("met")
    if any(hasattr(part, "_handle") for part in module.modules()):
        state.always.add("met")
        state.flat.append(module)
        return  # FSDP1's: its parameters are views that come and go
    for parameter in module.parameters():
        if parameter.requires_grad and not hasattr(parameter, "_local_tensor"):
            parameter.register_hook(functools.partial(_see_local, state, id(parameter)))


def _held(state: State) -> dict[str, torch.Tensor]:
    """All parameters by name; those that no module has as `pieces_of` names them."""
    held = {name: parameter for parameter, name in state.named.values()}
    for optimizer in state.made:
        for number, parameter in enumerate(p for p in stepped_by(optimizer) if _is_trained(p)):
            if id(parameter) not in state.named:
                held[f"parameter {number}"] = parameter
    return held


def _is_trained(parameter: torch.Tensor) -> bool:
    return bool(parameter.requires_grad and parameter.is_floating_point())


def _unique(state: State, text: str) -> str:
    """Two models may have parameters of one name."""
    taken, name, number = {known for _, known in state.named.values()}, text, 1
    while name in taken:
        number += 1
        name = f"{text} ({number})"
    return name


def _see_local(state: State, key: int, gradient: torch.Tensor | None) -> None:
    """A gradient as backward makes it, before anything sends it; None where it makes none."""
    if state.over or state.step >= OUTPUTS or gradient is None:
        return
    with tolerated(Exception), torch.no_grad():
        before = state.locals.get(key)
        state.locals[key] = gradient.detach().clone() if before is None else before + gradient.detach()


def _leave(state: State, module: Module, output: Any, outermost: bool) -> None:
    if is_a(module, BATCH_NORM) and not is_a(module, torch.nn.SyncBatchNorm) and module.training:
        state.notes.add("batch norm")
    if outermost and state.random is not None and checksum() != state.random:
        state.notes.add("random")
    name = state.modules.get(id(module))
    if name is None or state.step >= OUTPUTS or journal.is_full:
        return
    state.outputs[name] += 1
    for number, tensor in enumerate(tensors_among([output])):
        if tensor.is_floating_point() and tensor.numel() <= MOST_OUTPUT:
            journal.write("output", state.step, tensor, name=name, number=state.outputs[name] - 1, argument=number)  # fmt: skip


# -- backward -------------------------------------------------------------------------------------


def _with_loss(original: Any) -> Any:
    @functools.wraps(original)
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        _state.awaits_backward = False
        if not _state.over:
            with tolerated(Exception):
                first = tensors if isinstance(tensors, torch.Tensor) else tensors[0]
                whole = first.numel() == 1
                value = float(first.detach()) if whole else None
                journal.write("loss", _state.step, number=_state.backwards, value=value, place=user_place())
                _state.backwards += 1
        return original(tensors, *args, **kwargs)

    return backward


def _exchanging(original: Any) -> Any:
    """A note where ranks send each other more than numbers, and where they do between forward and backward."""

    @functools.wraps(original)
    def collective(*args: Any, **kwargs: Any) -> Any:
        state = _state
        if not state.over and not torch.compiler.is_compiling():
            with tolerated(Exception):
                if any(tensor.numel() > FEW for tensor in tensors_among([args, kwargs])):
                    state.notes |= {"met", "exchanged"} if state.awaits_backward else {"met"}
        return original(*args, **kwargs)

    return collective


def _written(what: str, **about: Any) -> None:
    """A state is taken or put back."""
    if not _state.over:
        with tolerated(Exception):
            journal.write(what, _state.step, place=user_place(), **about)


def _noted(original: Any) -> Any:
    """An optimizer is made: what it steps may belong to no module."""

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        _state.made.append(self)

    return __init__


# -- the optimizer's step -------------------------------------------------------------------------


def _before_step(optimizer: Any, *_: Any) -> None:
    state = _state
    if state.over or session.ensure_rank() is None:
        return
    if state.wanted.stop and state.step == state.wanted.stop:
        end()
    if state.wanted.traced and state.step >= state.wanted.traced:
        end()
    try:
        _take(state, optimizer, gradients=True)
    except Exception as error:
        pass_on(error)
        _say(f"proof: a step is not on record: {error!r}")


def _after_step(optimizer: Any, *_: Any) -> None:
    state = _state
    if state.over or session.current() is None:
        return
    state.step, state.calls, state.backwards = state.step + 1, 0, 0
    state.notes, state.locals = set(state.always), {}
    state.outputs.clear()
    quiet.seen.dropout = False
    if state.step >= state.wanted.steps or (journal.is_full and state.step > 1):
        with tolerated(Exception):
            _take(state, optimizer, gradients=False)
        end()
    journal.flush()


def _take(state: State, optimizer: Any, *, gradients: bool) -> None:
    number = state.optimizers.setdefault(id(optimizer), len(state.optimizers))
    if quiet.seen.dropout:
        state.notes.add("dropout")
    parameters = [p for p in stepped_by(optimizer) if _is_trained(p)]
    pieces, gaps = pieces_of(parameters, state.flat, state.named)
    if gaps and not state.step:
        _say(f"proof: {len(gaps)} parameters are not compared, such as {gaps[0]}")
    for piece in pieces:
        about = _place_of(piece) | {"name": piece.name, "number": number}
        journal.write("parameter", state.step, piece.value, **about)
        if gradients and piece.gradient is not None:
            journal.write("gradient", state.step, piece.gradient, **about)
    if gradients:
        for parameter in parameters:
            if (local := state.locals.get(id(parameter))) is not None and id(parameter) in state.named:
                journal.write("local", state.step, local, name=state.named[id(parameter)][1], number=number)
        state.notes |= state.always | ({state.started} if state.started else set())
        rates = [float(group["lr"]) for group in optimizer.param_groups if "lr" in group]
        journal.write(
            "step", state.step, number=number, rates=rates, notes=sorted(state.notes), place=user_place()
        )


def _place_of(piece: Piece) -> dict[str, Any]:
    box = None if piece.box is None else [list(pair) for pair in piece.box]
    return {
        "shape": list(piece.shape),
        "at": box,
        "run": None if piece.run is None else list(piece.run),
    }


def _say(gap: str) -> None:
    if (rank := session.current()) is not None:
        rank.gap(gap)


# -- the end --------------------------------------------------------------------------------------


def _done(rank: Any) -> None:
    journal.write("done", _state.step)
    journal.flush()
    open_private(rank.directory.path / DONE, "w").close()


def end() -> None:
    """The end of this process, once its peers have come to theirs, too."""
    state, rank = _state, session.current()
    state.over = True
    if state.statements is not None:
        state.statements.end()
    assert rank is not None
    _done(rank)
    folder, until = rank.directory.path.parent, perf_counter_ns() + WAIT_NS
    while len(list(folder.glob(f"*/{DONE}"))) < rank.world_size and perf_counter_ns() < until:
        select.select([], [], [], POLL_S)
    with tolerated(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    session.on_leaving.clear()
    session.close()
    os._exit(0)
