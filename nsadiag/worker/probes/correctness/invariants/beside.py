"""Models beside the parameters that optimizers hold: those that nothing trains (a teacher, an average), and frozen parameters."""

from __future__ import annotations

import zlib

import torch

from nsadiag.worker.probes.autograd import module_tree, roots
from nsadiag.worker.probes.correctness.invariants import roles
from nsadiag.worker.probes.correctness.invariants.checksums import checksums
from nsadiag.worker.probes.correctness.invariants.journal import journal
from nsadiag.worker.probes.correctness.replicas import evenly

MOST_FROZEN = 40
FEW = 16  # elements
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
    chosen = evenly(list(others.values()))[:MOST_FROZEN]
    if chosen:
        journal.note("beside", place="", values=checksums(chosen))
    if step in FREEZING_AT:
        _note_frozen()


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
