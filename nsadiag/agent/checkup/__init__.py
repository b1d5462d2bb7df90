"""The sources of evidence on this machine: each is tried on a small job of our own, and each obstacle has its remedy."""

from __future__ import annotations

import tempfile
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from nsadiag.agent.captures.target import Target
from nsadiag.agent.checkup import inside, machine, process
from nsadiag.agent.checkup.check import Check, answered
from nsadiag.agent.checkup.patient import Patient, patients
from nsadiag.evidence.layout import RunDir

__all__ = ["Check", "check_process", "checkup"]


def checkup(python: str, where: Path) -> list[Check]:
    """Everything, in the order of a report; `where` is the directory that runs are written below."""
    with ThreadPoolExecutor(max_workers=4) as pool:
        slow = [
            pool.submit(answered, *named)
            for named in (("GPU state", machine.gpu_state), ("NCCL RAS", machine.nccl_ras_port))
        ]
        try:
            with patients(python, where) as (plain, with_torch):
                of_torch = pool.submit(inside.worker_server, with_torch)
                outside = process.with_faulthandler([*_of(plain), *_result(of_torch)])
        except OSError as error:
            why = f"no job can be started: {error.strerror}: {error.filename}"
            remedy = "is there room and permission there? else --out DIR, or --python PATH"
            outside = [Check(name="recorder", status="missing", detail=why, remedy=remedy, essential=True)]
        return [*outside, *_of_the_machine(where), *(answer.result() for answer in slow), *_of_nvidia()]


def check_process(pid: int) -> list[Check]:
    """Checks of a process that runs already; it is not paused."""
    with tempfile.TemporaryDirectory(prefix="nsadiag-doctor-") as folder:
        directory = RunDir(path=Path(folder)).rank(0).capture(1)
        target = Target(pid=pid, directory=directory, socket=None, may_pause=False)
        return [
            answered("kernel state", lambda: process.kernel_state(target), essential=True),
            answered("Python stacks", lambda: process.python_stacks(target), essential=True),
            answered("ptrace permission", lambda: process.permission(pid)),
        ]


def _of(patient: Patient) -> list[Check]:
    """Checks of the patient without torch: native stacks of one with it take longer to read."""
    first = answered("recorder", lambda: inside.black_box(patient), essential=True)
    target = patient.target()
    return [
        first,
        answered("kernel state", lambda: process.kernel_state(target), essential=True),
        answered("Python stacks", lambda: process.python_stacks(target), essential=True),
        answered("native stacks", lambda: process.native_stacks(target)),
        answered("ptrace permission", lambda: process.permission(patient.pid)),
    ]


def _result(of_torch: Future[list[Check]]) -> list[Check]:
    try:
        return of_torch.result()
    except Exception as error:
        return [Check(name="worker server", status="missing", detail=str(error))]


def _of_the_machine(where: Path) -> list[Check]:
    return [
        answered("Python options", inside.start_up),
        answered("deaths", machine.deaths),
        answered("disk", lambda: machine.disk(where), essential=True),
        answered("shared memory", machine.shared_memory),
        answered("memory limit", machine.memory_limit),
    ]


def _of_nvidia() -> list[Check]:
    return [answered("GPU core dumps", machine.cuda_gdb), answered("kernel log", machine.kernel_log)]
