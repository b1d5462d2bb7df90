"""GPUs are really loaded: quiet ones are found sound, and one that another process uses is found slow."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch

from nsadiag.agent.checkup.accelerators import try_gpus

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs of one model"),
]

LOAD = """
import torch
a = torch.randn(8192, 8192, device="cuda:1").bfloat16()
print("on", flush=True)
while True:
    for _ in range(20):
        a @ a
    torch.cuda.synchronize(1)
"""


@pytest.fixture
def loaded() -> Iterator[int]:
    """The pid of a process that keeps GPU 1 busy."""
    process = subprocess.Popen([sys.executable, "-c", LOAD], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "on\n"
    yield process.pid
    process.kill()
    process.wait()


def test_quiet_gpus_are_sound() -> None:
    checks = try_gpus(sys.executable, 2)
    assert {check.status for check in checks} == {"works"}, checks
    assert [check.name for check in checks][-2:] == ["GPU links", "NCCL"]


def test_a_gpu_that_another_process_uses_is_slow(loaded: int) -> None:
    found = {check.name: check for check in try_gpus(sys.executable, 2)}
    assert found["GPU 1"].status == "limited" and str(loaded) in found["GPU 1"].remedy
    assert found["GPU 0"].status == "works"
