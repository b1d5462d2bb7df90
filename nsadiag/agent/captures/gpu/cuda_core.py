"""A core dump of the GPU, taken by CUDA's driver at our request, and what cuda-gdb reads from it."""

from __future__ import annotations

import errno
import os
import shutil
import time
from pathlib import Path
from typing import Any

from nsadiag.agent.captures.gpu import core_files as place
from nsadiag.agent.captures.target import CaptureError, NotApplicable, Target
from nsadiag.deadlines import programs
from nsadiag.evidence.layout import FILE_MODE, RunDir, this_node, write_private
from nsadiag.evidence.secrets.masking import mask_text

BEGIN_S = 5.0  # until the first byte
COMPLETE_S = 30.0
SETTLED_S = 1.0
SUMMARY_S = 30.0
COMMANDS = ("info cuda devices", "info cuda kernels", "info cuda blocks", "info cuda warps", "bt")


def cuda_core_dump(target: Target) -> dict[str, Any]:
    """cuda.core and cuda.txt: which kernels run on the GPU and where; only with `nsadiag run --cuda-core`.

    The rank cannot use its GPU afterwards.
    """
    node = RunDir.of(target.directory).node(this_node())
    if not place.folder(node).is_dir():
        raise NotApplicable("not asked for (nsadiag run --cuda-core)")
    core = place.core(node, target.pid)
    core.unlink(missing_ok=True)
    _trigger(place.pipe(node, target.pid))
    _wait_until_whole(core)
    core.replace(target.directory.cuda_core)
    target.directory.cuda_core.chmod(FILE_MODE)
    write_private(target.directory.cuda_text, mask_text(_summary(target.directory.cuda_core)))
    return {"bytes": target.directory.cuda_core.stat().st_size}


def _trigger(pipe: Path) -> None:
    try:
        # Without a reader at the other end this would wait for one, that is for ever.
        handle = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        raise CaptureError("CUDA made no pipe for core dumps: the rank has not used its GPU yet") from None
    except OSError as error:
        reason = "nobody reads CUDA's pipe" if error.errno == errno.ENXIO else str(error)
        raise CaptureError(f"no GPU core dump: {reason}") from None
    try:
        os.write(handle, b"1")
    finally:
        os.close(handle)


def _wait_until_whole(core: Path) -> None:
    """Until it has stopped growing: there is no other sign that the driver is done."""
    started = changed = time.monotonic()
    size = 0
    while time.monotonic() - started < COMPLETE_S:
        time.sleep(0.05)
        now = core.stat().st_size if core.exists() else 0
        if now != size:
            size, changed = now, time.monotonic()
        elif size and time.monotonic() - changed > SETTLED_S:
            return
        elif not size and time.monotonic() - started > BEGIN_S:
            raise CaptureError(f"CUDA began no core dump in {BEGIN_S:g} s")
    raise CaptureError(f"CUDA's core dump was not whole after {COMPLETE_S:g} s ({size} bytes so far)")


def _summary(core: Path) -> str:
    """Raises CaptureError if there is no cuda-gdb: the dump itself stays."""
    debugger = shutil.which("cuda-gdb")
    if debugger is None:
        raise CaptureError(f"cuda-gdb is not installed: {core.name} is kept, but was not read")
    steps = [f"target cudacore {core}", *COMMANDS]
    command = [debugger, "-nx", "-batch", *(word for step in steps for word in ("-ex", step))]
    try:
        done = programs.run(command, seconds=SUMMARY_S)
    except TimeoutError:
        raise CaptureError(f"cuda-gdb gave no answer in {SUMMARY_S:g} s: {core.name} is kept") from None
    except OSError as error:
        raise CaptureError(f"cuda-gdb: {error.strerror}: {core.name} is kept") from None
    return done.stdout + done.stderr
