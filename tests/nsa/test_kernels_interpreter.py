"""The Triton kernels on a CPU, under Triton's interpreter: the files `interpreted_*.py`, each in a process of its own.

Triton reads TRITON_INTERPRET when a kernel is defined.
"""

from __future__ import annotations

import pytest
import torch
from launching import ROOT, run_python

from nsa.attention import resolve_backend
from nsa.config import ConfigError

pytest.importorskip("triton")


def test_triton_by_name_is_refused_where_it_cannot_run():
    with pytest.raises(ConfigError, match=r"'triton' is not available on cpu.*needs a GPU"):
        resolve_backend("triton", torch.device("cpu"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="where there is a GPU, direct launches work")
def test_without_a_gpu_the_trial_of_direct_launches_fails_without_a_word():
    from nsa.attention.kernels.launch import direct_launches_work

    assert not direct_launches_work()


@pytest.mark.parametrize("part", sorted(path.stem for path in (ROOT / "tests/nsa").glob("interpreted_*.py")))
@pytest.mark.parametrize("which", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_the_kernels_under_the_interpreter(part, which, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    arguments = ("-q", "-p", "no:cacheprovider", "-m", which, f"tests/nsa/{part}.py")
    done = run_python("-m", "pytest", *arguments, timeout=800)
    assert done.returncode == 0, done.stdout + done.stderr
