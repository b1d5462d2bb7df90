"""A loader's worker that was killed: in which words its rank learns of it, and on whose line."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from types import FrameType

import pytest
from support.recordings.golden import archive_of, unpack

from nsadiag.analysis.load import load_cell
from nsadiag.analysis.verdict import judge
from nsadiag.worker.probes.patch import harmless

# A batch's storage was to be fetched from the worker, whose socket nobody listens to any more.
REFUSED = {"type": "ConnectionRefusedError", "message": "[Errno 111] Connection refused", "meant": True}
UNEXPECTED = "DataLoader worker (pid(s) 17598) exited unexpectedly"


@pytest.mark.parametrize("wrapped", [False, True], ids=["as torch raises it", "in an error of the job's own"])
def test_a_connection_that_the_lost_worker_refuses_is_none_to_a_peer(tmp_path: Path, wrapped: bool) -> None:
    run = unpack(archive_of("dataloader_worker_fault_killed"), tmp_path)
    rank = run.rank(1)
    told = json.loads(rank.exception.read_text())
    reason = {**REFUSED, "frames": [{**told["frames"][-1], "function": "_try_get_data"}], "cause": None}
    lost = {**told, "message": UNEXPECTED, "cause": reason}
    if wrapped:
        lost = {**told, "type": "TrainingFailed", "message": "in epoch 1", "cause": {**lost, "meant": True}}
    rank.exception.write_text(json.dumps(lost))
    verdict = judge(load_cell(run.path))
    assert (verdict.outcome, verdict.cls) == ("crashed", "dataloader_worker_fault")
    assert verdict.guilty_ranks == (1,) and "exited unexpectedly" in verdict.summary


def test_what_a_signal_handler_raises_while_a_probe_observes_is_no_failure_of_the_probe() -> None:
    """As torch's own handler does, which tells of a dead worker once, at whatever line the rank happens to be."""

    def handler(number: int, frame: FrameType | None) -> None:
        raise RuntimeError("DataLoader worker (pid 17598) is killed by signal: Killed. ")

    @harmless
    def observe() -> None:
        signal.raise_signal(signal.SIGUSR2)

    @harmless
    def fails() -> None:
        raise RuntimeError("its own")

    before = signal.signal(signal.SIGUSR2, handler)
    try:
        with pytest.raises(RuntimeError, match="is killed by signal"):
            observe()
        fails()
    finally:
        signal.signal(signal.SIGUSR2, before)
