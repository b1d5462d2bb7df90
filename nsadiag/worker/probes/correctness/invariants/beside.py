"""Models beside the parameters that optimizers hold: those that nothing trains (a teacher, an average), and frozen parameters."""

from __future__ import annotations

import weakref
import zlib

import torch

from nsadiag.worker.probes.autograd import module_tree, roots
from nsadiag.worker.probes.correctness.invariants import roles
from nsadiag.worker.probes.correctness.invariants.checksums import checksums
from nsadiag.worker.probes.correctness.invariants.journal import journal
from nsadiag.worker.probes.correctness.replicas import evenly

MOST_FROZEN = 40
FEW = 16  # elements
_evaluated: dict[int, weakref.ref[torch.nn.Module]] = {}  # models that ran in eval mode, by id
FREEZING_AT = range(2)  # steps at whose end it is noted what is frozen


def note_beside(step: int) -> None:
    """Before an optimizer's step."""
    held = {id(p) for _, optimizer in roles.living() for _, p in roles.held_by(optimizer)}
    others: dict[int, tuple[str, torch.Tensor]] = {}
    for root in roots.ours(roots.running()):
        kind = type(root).__name__
        for name, parameter in module_tree.named_parameters(root):
            if id(parameter) not in held and parameter.numel() > FEW:
                others.setdefault(id(parameter), (f"{kind}.{name}", parameter))
        if not root.training:
            _remember(root)
    chosen = evenly(list(others.values()))[:MOST_FROZEN]
    if chosen:
        journal.note("beside", place="", values=checksums(chosen))
    _note_statistics(held)
    if step in FREEZING_AT:
        _note_frozen()


def _remember(root: torch.nn.Module) -> None:
    key = id(root)
    _evaluated[key] = weakref.ref(root, lambda _: _evaluated.pop(key, None))


def _note_statistics(held: set[int]) -> None:
    """Values of models that are evaluated and that nothing trains: running means, and a parameter to see whether it moves."""
    for root in [each for reference in list(_evaluated.values()) if (each := reference()) is not None]:
        own = list(module_tree.named_parameters(root))
        means = [(n, b) for n, b in module_tree.named_buffers(root) if n.endswith("running_mean")]
        if own and means and not any(id(p) in held for _, p in own):
            kind = type(root).__name__
            chosen = [(f"{kind}.{name}", tensor) for name, tensor in [own[0], *means[:FEW]]]
            journal.note("statistics", place="", name=kind, values=checksums(chosen))


def _note_frozen() -> None:
    own = [
        (name, p) for root in roots.ours(roots.trained()) for name, p in module_tree.named_parameters(root)
    ]
    text = repr([(name, tuple(p.shape)) for name, p in own])
    frozen = [(roles.name(name, p), p) for name, p in own if not p.requires_grad]
    journal.note(
        "trainable",
        place="",
        of=len(own),
        names=zlib.crc32(text.encode()),
        frozen=[name for name, _ in frozen[:MOST_FROZEN]],
        values=checksums(frozen[:FEW]),
    )
