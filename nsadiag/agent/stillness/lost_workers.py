"""Workers of a data loader that can never go on: what else the rank does meanwhile brings it no batch."""

from __future__ import annotations

from collections.abc import Iterable

from nsadiag.agent.stillness.external_waits import Stack
from nsadiag.evidence.blocking import awaits_batch
from nsadiag.evidence.documents.kernel import KernelProcess
from nsadiag.evidence.documents.training import Loader


def lost_worker(
    before: KernelProcess, after: KernelProcess, frames: Stack, loaders: Iterable[Loader]
) -> int | None:
    """The worker, by its pid, for which the main thread waits in its loader, and that is locked for good at both looks.

    By two proc.json, the main thread's stack where it stood in both, and loaders.json. Batches come in order, so that
    one such worker is enough.
    """
    waits = any(awaits_batch(str(name), str(file)) for name, file, *_ in frames)
    workers = {pid for loader in loaders for pid in loader.workers} if waits else set()
    locked = [{child.pid for child in proc.children if child.locked_for_good} for proc in (before, after)]
    return min(workers & locked[0] & locked[1], default=None)
