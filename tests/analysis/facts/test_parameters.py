"""Parameters without a gradient in the step in which a job hangs, told by the rank itself at the look."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.processes.warm_jobs import WarmJobs

from nsadiag.analysis.facts.parameters import without_gradient_now
from nsadiag.evidence.documents.training import Missing, MissingNow
from nsadiag.evidence.documents.values import value_of

TRAIN = """
    import os
    import torch, torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel as DDP

    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.pictures = nn.Linear(8, 8), nn.Linear(8, 8)
        def forward(self, words, pictures):
            found = self.words(words)
            if pictures is not None:
                found = found + self.pictures(pictures)
            return found.sum()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DDP(Reader())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(4):
        pictures = None if BARE else torch.randn(4, 8)
        loss = model(torch.randn(4, 8), pictures)
        optimizer.zero_grad()
        loss.backward()
        dist.barrier()  # so that the optimizer has not looked at the gradients of this step
        optimizer.step()
    print("done", flush=True)
"""


@pytest.mark.slow
def test_a_bucket_that_never_fills_before_the_optimizer_has_seen_it_is_told_by_what_the_rank_holds(
    warm_jobs: WarmJobs, tmp_path: Path
) -> None:
    verdict = warm_jobs.judged(TRAIN.replace("BARE", "rank == 1 and step == 2"), tmp_path)
    assert (verdict["class"], verdict["guilty_ranks"]) == ("ddp_unused_parameter", [1]), verdict["summary"]
    assert verdict["where"]["parameter"].startswith("pictures.")
    assert (verdict["where"]["code"], verdict["where"]["step"]) == ("if pictures is not None:", 2)
    source = verdict["evidence"][0]["source"]
    told = json.loads((tmp_path / "run" / source).read_text())
    assert told == {
        "step": 2,
        "optimizers": 1,
        "models": [{"of": 4, "count": 2, "missing": told["models"][0]["missing"]}],
    }
    # Rank 0 is in its backward: it is not asked while gradients are being made.
    assert not list((tmp_path / "run" / "ranks" / "00000").glob("captures/*/ungraded.json"))


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({"step": 5, "optimizers": 1, "models": [{"of": 3, "count": 1, "missing": ["b"]}]}, ["b"]),
        # It had none in the steps before either, in which nobody waited for it.
        ({"step": 5, "optimizers": 1, "models": [{"of": 3, "count": 2, "missing": ["a", "b"]}]}, ["b"]),
        # Cleared together; cleared by one of two; which model the others wait in is not known.
        ({"step": 5, "optimizers": 1, "models": [{"of": 3, "count": 3, "missing": ["a", "b", "c"]}]}, None),
        ({"step": 5, "optimizers": 1, "models": [{"of": 3, "count": 0, "missing": []}]}, None),
        ({"step": 5, "optimizers": 2, "models": [{"of": 3, "count": 1, "missing": ["b"]}]}, None),
        ({"step": 5, "optimizers": 1, "models": [{"of": 3, "count": 1, "missing": ["b"]}] * 2}, None),
        ({}, None),
    ],
)  # fmt: skip
def test_all_or_none_or_several_optimizers_tell_nothing(
    told: dict[str, Any], expected: list[str] | None
) -> None:
    look = SimpleNamespace(ungraded=value_of(MissingNow, told), source="ranks/00001/captures/02")
    rows = (Missing(step=1, missing=("a", "c")), Missing(step=3, missing=("a",)))
    rank: Any = SimpleNamespace(captures=[look], ungraded=rows)
    found = without_gradient_now(rank)
    assert (found[0] if found else None) == expected
