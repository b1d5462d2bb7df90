"""torch's compiler is imported by what compiles, not by a step of an optimizer or by DDP."""

from __future__ import annotations

import subprocess
import sys

import pytest

BEGIN = """
import os, sys, torch, torch.distributed as dist
from nsadiag.worker.rehearsal import compiler
compiler.postpone()
os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
def is_imported(): return "torch._dynamo.config" in sys.modules
"""
TRAINS = """
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.AdamW(model.parameters())
model(torch.ones(2, 4)).sum().backward(); optimizer.step(); optimizer.zero_grad()
"""
COMPILES = "assert torch.compile(lambda x: x + 1, backend='eager')(torch.ones(1)) == 2"


def run(*lines: str) -> None:
    subprocess.run([sys.executable, "-c", "\n".join([BEGIN, *lines])], check=True)


def test_a_training_step_does_not_import_it() -> None:
    run(TRAINS, "assert not is_imported()")


def test_a_function_of_torch_that_is_defined_later_does_not_import_it() -> None:
    run(
        "from torch import _compile",
        "later = _compile._disable_dynamo(lambda: 'as it is')",
        "assert later() == later() == 'as it is' and not is_imported()",
        "assert torch._dynamo.disable(print, wrapping=True) and is_imported()",
        "assert later() == 'as it is' and later.__wrapped__.__dynamo_disable is not later.__wrapped__",
    )


@pytest.mark.slow
def test_what_compiles_imports_it_after_a_step_without_it() -> None:
    run(
        TRAINS,
        COMPILES,
        "assert is_imported() and type(torch._dynamo).__name__ == 'module'",
        TRAINS.partition("\n")[2].partition("\n")[2],
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "line",
    [
        "from torch._dynamo.utils import counters",
        "from torch._dynamo import OptimizedModule",
        "import torch._dynamo.config",
        "torch._dynamo.reset()",
        "torch._dynamo.utils.counters",
        "torch._dynamo.trace_rules.LEGACY_MOD_INLINELIST",
    ],
)
def test_any_way_to_ask_for_more_imports_it(line: str) -> None:
    run(line, "assert is_imported() and torch._dynamo.graph_break.__module__.startswith('torch.')", COMPILES)
