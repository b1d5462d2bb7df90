"""The attention kernels under NVIDIA's compute-sanitizer: no access out of bounds, no race, nothing uninitialised."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest
import torch
from launching import ROOT

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(
        not torch.cuda.is_available(), reason="needs a GPU: `pytest -m gpu` on such a machine"
    ),
    pytest.mark.skipif(
        shutil.which("compute-sanitizer") is None, reason="compute-sanitizer is not installed"
    ),
]
FOUND = 9
KERNELS = ROOT / "tests/nsa/run_kernels.py"


@pytest.fixture(scope="module")
def compiled_kernels(tmp_path_factory) -> dict[str, str]:
    """The environment of a process that finds every kernel compiled, as a sanitizer would slow the compiler down."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "TRITON_CACHE_DIR": str(tmp_path_factory.mktemp("triton")),
        "PYTORCH_NO_CUDA_MEMORY_CACHING": "1",  # each tensor is an allocation, with an end and with nothing in it
    }
    subprocess.run([sys.executable, KERNELS], env=environment, check=True, capture_output=True)
    return environment


@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "initcheck"])
def test_the_kernels_are_clean(compiled_kernels, tool):
    command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", str(FOUND), sys.executable, KERNELS]
    done = subprocess.run(
        command, env=compiled_kernels, capture_output=True, text=True, check=False, timeout=300
    )
    if "Device not supported" in done.stdout + done.stderr:
        pytest.skip("compute-sanitizer does not support this device")
    assert "ran" in done.stdout, done.stdout[-3000:] + done.stderr[-3000:]
    assert done.returncode == 0, done.stdout[-3000:]
