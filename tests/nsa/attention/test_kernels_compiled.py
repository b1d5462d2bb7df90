"""The kernels as Triton compiles them for GPUs that are not here: registers, and what they spill."""

from __future__ import annotations

import pytest
from launching import ROOT, run_python

pytest.importorskip("triton")

SPILLED = 192  # bytes of a thread: 136 with Triton 3.9; a tile that is too large spills thousands
SHARED = {80: 163 * 1024, 90: 227 * 1024}  # bytes that a program may have
TRAINING = {"forward_kernel", "_score", "_best", "dq_kernel", "dkv_kernel", "_gate_backward", "_sum_parts"}


@pytest.mark.slow  # the compiler takes half a minute
@pytest.mark.parametrize(
    ("target", "shapes"),
    [(80, ["paper packed", "small", "small decode"]), (90, ["paper described", "small", "paper decode"])],
)
def test_every_kernel_compiles_and_keeps_its_values_in_registers(target, shapes):
    done = run_python(
        str(ROOT / "tests/nsa/compile_kernels.py"), str(target), "--shape", *shapes, timeout=600
    )
    assert done.returncode == 0, done.stderr
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    for shape in shapes:
        named = {name for _, of, name, *_ in rows if of == shape}
        assert named > TRAINING if "decode" not in shape else len(named) >= 3, named
    for row in rows:
        registers, spilled, shared = map(int, row[4:])
        assert registers <= 255 and spilled <= SPILLED and shared <= SHARED[target], row
