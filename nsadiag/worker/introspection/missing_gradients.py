"""Parameters of the models in DDP that have no gradient, reported on request.

The optimizer's probe looks through them in few steps only, and the one in which a job hangs may be another. Asked over
torch's worker server, and only while no thread of the rank is in a backward pass: that would be making gradients.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from nsadiag.worker import session

NAMED = 50
# Not imported for this: without them there is nothing to be told.
PROBES = (
    "nsadiag.worker.probes.autograd.module_calls",
    "nsadiag.worker.probes.collectives.ddp_buckets",
    "nsadiag.worker.probes.correctness.replicas",
)


def report() -> dict[str, Any]:
    """The step, how many optimizers have stepped, and a row for each model that is still there, as DDP counts parameters."""
    rank = session.recorded.rank
    calls, buckets, around_steps = (sys.modules.get(name) for name in PROBES)
    if rank is None or calls is None or buckets is None or around_steps is None:
        return {}
    return {
        "step": rank.box.step,
        "optimizers": around_steps.optimizers_seen(),
        "models": [_row(w, calls.qualified) for w in buckets.wrapped_models if w.model() is not None],
    }


def _row(wrapped: Any, qualified: Callable[[str], str]) -> dict[str, Any]:
    missing = [
        qualified(name)
        for name, reference in zip(wrapped.names, wrapped.parameters, strict=True)
        if (parameter := reference()) is not None and parameter.grad is None
    ]
    return {"of": len(wrapped.names), "count": len(missing), "missing": missing[:NAMED]}
