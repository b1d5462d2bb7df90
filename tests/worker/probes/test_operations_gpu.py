"""The probe `operations` on a GPU: losses, norms and gradients of before are read there too, when they have come by themselves."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available(), reason="needs a GPU: `pytest -m gpu` on such a machine"
    ),
]
# Both ranks on one GPU, which gloo allows. The second micro-batch adds to gradients that are there; a step begins with zeros.
TRAIN = """
import torch, torch.distributed as dist
from torch import nn
dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(nn.Linear(8, 8).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(24):
    for micro_batch in range(2):
        model(torch.randn(4, 8).cuda()).square().mean().backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
dist.destroy_process_group()
"""


def test_what_a_gpu_computes_is_noted_without_waiting_for_it(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    launch = ["torchrun", "--standalone", "--nproc-per-node", "2", "train.py"]
    command = [sys.executable, "-m", "nsadiag", "run", "--out", "run", "--", *launch]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=120)
    rows = [
        json.loads(line) for line in (tmp_path / "run/ranks/00000/invariants.jsonl").read_text().splitlines()
    ]
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4, 8, 16]
    for row in rows:
        first, second = (each for each in row["operations"] if each["kind"] == "backward")
        assert (first["value"] > 0, second["value"] > 0) == (True, True)
        assert not {"kept", "unread"} & first.keys()
        assert not first.get("added")
        assert "unread" not in second
        if row["step"]:  # at the first, no optimizer has stepped yet that could hold a gradient
            assert (second["kept"], second["added"]) == ([0], [0])
        (clip,) = (each for each in row["operations"] if each["kind"] == "clip")
        assert clip["value"] > 0
