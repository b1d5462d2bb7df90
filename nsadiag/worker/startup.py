"""Starts the recording in a process of the job: the one place that knows the session, the probes and the worker server.

Most processes of a job are no ranks, and pay for what is imported here: the rest is imported where it is needed.
"""

from __future__ import annotations

import _thread
import os
import sys
from typing import TYPE_CHECKING

from nsadiag.evidence import rehearsal
from nsadiag.worker import output, ptracer
from nsadiag.worker.imports.on_import import when_imported
from nsadiag.worker.imports.shadowed import standard_library_first
from nsadiag.worker.interruptions import pass_on

if TYPE_CHECKING:
    from nsadiag.worker.recorder import Recorder


def boot() -> None:
    """Start-up of any Python process of the job; a rank is recorded from here on."""
    if not getattr(_thread, "_is_main_interpreter", lambda: True)():  # since Python 3.12
        return  # a subinterpreter's: the process is recorded already
    output.forgive()
    ptracer.allow()
    if "RANK" in os.environ:
        from nsadiag.worker import session

        session.open_named_rank()
    # A process without RANK may be a launcher, a helper, or a single-process job. The last one shows
    # itself by training: the probes then open the recorder as rank 0 (see `session.ensure_rank`).
    when_imported("torch", _on_torch)


def attach_to_warm_process(rank: int, world_size: int) -> Recorder | None:
    """For ranks forked from a process that had imported torch before it knew the run (agent.job.warm_launcher)."""
    from nsadiag.worker import session

    ptracer.allow()
    session.open_rank(rank, world_size)
    _on_torch()
    return session.current()


def attach_to_armed_process() -> None:
    """For a process whose environment names it as one of several, in an armed environment: torch has just been imported."""
    from nsadiag.worker import session

    ptracer.allow()
    if "RANK" in os.environ:
        session.open_named_rank()
    _install()


def _on_torch() -> None:
    """torch has just been imported: patch it once, whatever this process turns out to be."""
    with standard_library_first(set(sys.modules)):
        _install()


def _install() -> None:
    from nsadiag.worker import session
    from nsadiag.worker.failures import unranked
    from nsadiag.worker.probes import install_probes  # they import torch

    _name_recorder_size_for_older_torch()
    if rehearsal.SOCKET in os.environ:
        from nsadiag.worker.rehearsal.install import install

        # Before the probes: they observe the functions that the script calls, whatever group answers.
        install()
    if rehearsal.WITNESS in os.environ:
        from nsadiag.worker.rehearsal import witness

        witness.install(int(os.environ[rehearsal.WITNESS]))
    if rehearsal.PROOF in os.environ:
        from nsadiag.worker.proof import install as proof

        proof.install(os.environ[rehearsal.PROOF])
    install_probes()
    # What is compared with another run by what it computed is not asked about its path, unless that is wanted.
    compared = {rehearsal.WITNESS, rehearsal.PROOF} & os.environ.keys() and rehearsal.WALK not in os.environ
    if rehearsal.SOCKET in os.environ and not compared:
        from nsadiag.worker.rehearsal import touched
        from nsadiag.worker.rehearsal.paths import recorder

        for start in (touched.start, recorder.start):
            session.on_opened.append(start)
            if (opened := session.current()) is not None:
                start(opened)
    rank = session.current()
    if _start_server not in session.on_opened:
        session.on_opened.append(_start_server)
        session.on_leaving.append(_leave_server)
        if rank is not None:
            _start_server(rank)
    if session.is_unnamed():
        unranked.listen(session.is_unnamed)


def _name_recorder_size_for_older_torch() -> None:
    """Before 2.8 the recorder read another variable, of which later ones warn that it is deprecated."""
    import torch

    if (
        tuple(int(n) for n in torch.__version__.split(".")[:2]) < (2, 8)
        and "TORCH_FR_BUFFER_SIZE" in os.environ
    ):
        os.environ.setdefault("TORCH_NCCL_TRACE_BUFFER_SIZE", os.environ["TORCH_FR_BUFFER_SIZE"])


def _start_server(rank: Recorder) -> None:
    from nsadiag.worker.introspection import server

    try:
        server.start(rank)
    except Exception as error:
        pass_on(error)
        rank.gap(f"no worker server: {error!r}")


def _leave_server(rank: Recorder) -> None:
    from nsadiag.worker.introspection import server

    server.leave(rank)
