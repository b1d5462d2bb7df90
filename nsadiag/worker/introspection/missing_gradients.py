"""Parameters of the models in DDP that have no gradient, reported on request.

The optimizer's probe looks through them in few steps only, and the one in which a job hangs may be another. Asked over
torch's worker server; nothing is told while a thread of the rank is in a backward pass, which would be making gradients.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from typing import Any

from nsadiag.worker import session

NAMED = 50
# Not imported for this: without them there is nothing to be told.
PROBES = (
    "nsadiag.worker.probes.autograd.backward",
    "nsadiag.worker.probes.autograd.module_calls",
    "nsadiag.worker.probes.collectives.ddp_buckets",
    "nsadiag.worker.probes.correctness.replicas",
)
_gradient_of = operator.attrgetter("grad")


def report() -> dict[str, Any]:
    """The step, how many optimizers have stepped, and a row for each model that is still there, as DDP counts parameters.

    Empty while a backward runs.
    """
    rank = session.recorded.rank
    backward, calls, buckets, around_steps = (sys.modules.get(name) for name in PROBES)
    if rank is None or backward is None or calls is None or buckets is None or around_steps is None:
        return {}
    rows = [_row(w, calls.qualified, backward.now) for w in buckets.wrapped_models if w.model() is not None]
    if None in rows:
        return {}
    return {"step": rank.box.step, "optimizers": around_steps.optimizers_seen(), "models": rows}


def _row(wrapped: Any, qualified: Callable[[str], str], now: Any) -> dict[str, Any] | None:
    held = zip(wrapped.names, wrapped.parameters(), strict=True)
    named = [(name, parameter) for name, parameter in held if parameter is not None]
    parameters = [parameter for _, parameter in named]
    if now.depth:
        return None
    # In one call of C: to begin a backward meanwhile, a thread would need the interpreter's lock.
    gradients = list(map(_gradient_of, parameters))
    missing = [
        qualified(name) for (name, _), gradient in zip(named, gradients, strict=True) if gradient is None
    ]
    return {"of": len(wrapped.names), "count": len(missing), "missing": missing[:NAMED]}
