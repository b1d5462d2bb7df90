"""The Triton kernels on a CPU, under Triton's interpreter: the files `interpreted_*.py`, in a process of their own.

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


PARTS = sorted(f"tests/nsa/{path.name}" for path in (ROOT / "tests/nsa").glob("interpreted_*.py"))


def interpreted(which: str, *parts: str) -> None:
    """The tests of these files that pytest selects as `which` pass under the interpreter."""
    arguments = ("-q", "-p", "no:cacheprovider", "-m", which, *parts)
    done = run_python("-m", "pytest", *arguments, timeout=800)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_kernels_under_the_interpreter(monkeypatch):
    # One process for all of the files: it imports torch's compiler once.
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    interpreted("not slow", *PARTS)


@pytest.mark.slow  # more shapes of what the test above runs
@pytest.mark.parametrize("part", PARTS)
def test_the_kernels_under_the_interpreter_on_more_shapes(part, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    interpreted("slow", part)
