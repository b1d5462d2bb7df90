"""The schemas of the custom operators, under every torch that is supported."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from nsa.attention import decode_attention

pytest.importorskip("triton")

from nsa.attention.kernels import ops

WRITTEN = (
    decode_attention._decode_attention,
    ops.band_attention,
    ops.gates_backward,
    ops._branches_backward,
)
# Stands in for torch 2.6, which infers no schema from a `list[...]`.
AS_TORCH_2_6 = """
import inspect, torch
infer = torch.library.infer_schema
def infer_schema(function, **more):
    for name, parameter in inspect.signature(function).parameters.items():
        if str(parameter.annotation).startswith("list["):
            raise ValueError(f"infer_schema(func): Parameter {name} has unsupported type {parameter.annotation}")
    return infer(function, **more)
torch.library.infer_schema = infer_schema
import nsa.attention.decode_attention, nsa.attention.kernels.ops
"""


def test_torch_2_6_takes_every_operator() -> None:
    done = subprocess.run(
        [sys.executable, "-c", AS_TORCH_2_6], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("operator", WRITTEN, ids=lambda operator: operator._name)
def test_a_written_schema_is_that_of_the_annotations(operator: torch._library.custom_ops.CustomOpDef) -> None:
    assert operator._schema == torch.library.infer_schema(operator._init_fn, mutates_args=())
