"""Probes inside a rank: one a file, each a context manager that patches and restores.

A probe may fail and the training job may not: what goes wrong is recorded as a gap.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack

from nsadiag.evidence.probes import chosen
from nsadiag.worker.interruptions import pass_on
from nsadiag.worker.probes.autograd.backward import backward
from nsadiag.worker.probes.autograd.gradients import gradients
from nsadiag.worker.probes.autograd.modules import modules
from nsadiag.worker.probes.autograd.recompute import recompute
from nsadiag.worker.probes.collectives.collectives import collectives
from nsadiag.worker.probes.collectives.ddp_buckets import ddp_buckets
from nsadiag.worker.probes.collectives.fsdp_units import fsdp_units
from nsadiag.worker.probes.collectives.grad_sync import grad_sync
from nsadiag.worker.probes.correctness.invariants.operations import invariants, operations
from nsadiag.worker.probes.correctness.model_sums import evaluated
from nsadiag.worker.probes.correctness.parity import parity
from nsadiag.worker.probes.correctness.replicas import replicas
from nsadiag.worker.probes.data.data import data
from nsadiag.worker.probes.data.input_sums import given
from nsadiag.worker.probes.data.io import io
from nsadiag.worker.probes.process.handlers import handlers
from nsadiag.worker.probes.process.memory import memory
from nsadiag.worker.probes.process.threads import threads
from nsadiag.worker.probes.training.optimizer import optimizer
from nsadiag.worker.probes.training.registrations import piling
from nsadiag.worker.probes.training.scaler import scaler
from nsadiag.worker.probes.training.settings import settings
from nsadiag.worker.probes.training.stale_parameters import held
from nsadiag.worker.probes.training.stop_flags import stops
from nsadiag.worker.probes.turns import paths

Probe = Callable[[], AbstractContextManager[None]]

PROBES: dict[str, Probe] = {
    "modules": modules,
    "gradients": gradients,
    "backward": backward,
    "recompute": recompute,
    "optimizer": optimizer,
    "replicas": replicas,
    "held": held,
    "evaluated": evaluated,
    "given": given,
    "collectives": collectives,
    "ddp_buckets": ddp_buckets,
    "fsdp_units": fsdp_units,
    "grad_sync": grad_sync,
    "data": data,
    "io": io,
    "memory": memory,
    "scaler": scaler,
    "settings": settings,
    "handlers": handlers,
    "piling": piling,
    "threads": threads,
    "stops": stops,
    "operations": operations,
    "invariants": invariants,
    "parity": parity,
    "paths": paths,
}
PROBES_VARIABLE = "NSADIAG_PROBES"
_installed = ExitStack()


def install_probes() -> None:
    """Enters the chosen probes, for the rest of the process."""
    from nsadiag.worker import session

    for name in chosen(os.environ.get(PROBES_VARIABLE, "light")):
        try:
            _installed.enter_context(PROBES[name]())
        except Exception as error:
            pass_on(error)
            rank = session.current()
            if rank is not None:
                rank.gap(f"probe {name} stepped aside: {error!r}")


def remove_probes() -> None:
    """Takes back what `install_probes` did."""
    _installed.close()
