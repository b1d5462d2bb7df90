"""Gradients arriving, parameter by parameter; where steps are short, of parameters spread evenly over the model."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch

from nsadiag.evidence.ring.blackbox import Kind
from nsadiag.worker import session
from nsadiag.worker.probes import budget, rests
from nsadiag.worker.probes.autograd import gradient_hooks, module_calls, module_tree, roots
from nsadiag.worker.probes.autograd.modules import subscribe
from nsadiag.worker.probes.patch import harmless

_GRADIENT = int(Kind.GRADIENT)
COST = 6.0  # of one gradient, in events: the engine takes the GIL for the hook, which writes one


class _Hooked:
    """One parameter, and its hook while it has one."""

    def __init__(
        self, owner: roots.Owner, parameter: module_tree.Reference, text: str, name: int, index: int
    ) -> None:
        self.parameter = parameter
        self.text, self.name, self.index = text, name, index
        self.owner = owner  # of the model that it was met in last
        self.undo: Callable[[], None] | None = None

    def hook(self) -> None:
        parameter, rank = self.parameter(), session.current()
        if self.undo is None and parameter is not None and parameter.requires_grad and rank is not None:
            # The black box's own function, without a frame of ours.
            self.undo = gradient_hooks.follow(
                self.parameter, rank.emit.marker(_GRADIENT, self.name, self.index)
            )

    def unhook(self) -> None:
        if self.undo is not None:
            self.undo()
            self.undo = None


# By id, checked through the reference: tensors compare element by element.
_known: dict[int, _Hooked] = {}
_kept: list[_Hooked] = []  # of those that the last review chose
_thinned = False


def name_of(parameter: torch.Tensor) -> str | None:
    """The qualified name of a parameter whose module has run."""
    known = _known.get(id(parameter))
    return known.text if known is not None and known.parameter() is parameter else None


@harmless
def _hook_parameters(root: torch.nn.Module) -> None:
    rank = session.current()
    owner = roots.owner_of(root)
    if rank is None or owner is None:
        return
    trainable = (each for each in module_tree.referenced_parameters(root) if each[1].requires_grad)
    for index, (name, parameter, reference) in enumerate(trainable):
        known = _known.get(id(parameter))
        if known is not None and known.parameter() is parameter:
            known.owner = owner
            continue
        text = module_calls.qualified(name)
        _known[id(parameter)] = hooked = _Hooked(owner, reference, text, rank.names(text), index)
        hooked.hook()


def spread(count: int, wanted: int) -> set[int]:
    """That many of the numbers below `count`, about evenly: the first, the last, the middle, the quarters, ...

    More of them are the same and some others: a budget that wavers looks at the same parameters.
    """
    if wanted >= count:
        return set(range(count))
    order = dict.fromkeys((0, count - 1))
    number = 0
    while len(order) < wanted:
        number += 1
        # Bits reversed behind the point: 1/2, 1/4, 3/4, 1/8, 5/8, ... (van der Corput's sequence)
        order[round(int(f"{number:b}"[::-1], 2) * (count - 1) / (1 << number.bit_length()))] = None
    return set(order)


@harmless
def _review(step_s: float) -> None:
    """Keeps as many hooks as the budget has room for, spread over the model."""
    global _thinned
    here = roots.here()
    known = [hooked for hooked in list(_known.values()) if hooked.parameter() is not None]
    living = [hooked for hooked in known if hooked.owner.thread == here]
    afforded = budget.afforded(step_s, COST)
    keep = spread(len(living), afforded)
    _kept[:] = [living[number] for number in sorted(keep)]
    for number, hooked in enumerate(living):
        if number in keep:
            hooked.hook()
        else:
            hooked.unhook()
    rank = session.current()
    if rank is not None and budget.is_full() and len(keep) < len(living) and not _thinned:
        _thinned = True
        rank.gap(
            f"gradients of {len(keep)} of {len(living)} parameters are recorded: a step takes only {step_s * 1e3:.1f} ms"
        )


@harmless
def _rest(now: bool) -> None:
    """A hook that has nothing to do is called all the same: where phases are left out there is none."""
    here = roots.here()
    for hooked in _kept:
        if hooked.owner.thread == here:
            (hooked.unhook if now else hooked.hook)()


@contextlib.contextmanager
def gradients() -> Iterator[None]:
    """Hooks the parameters of each root module when it first runs."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(module_calls.observed_calls())
        subscribe(stack, module_calls.on_root, _hook_parameters)
        subscribe(stack, budget.on_review, _review)
        subscribe(stack, rests.on_change, _rest)
        yield
        for hooked in _known.values():
            hooked.unhook()
        _known.clear()
        _kept.clear()
