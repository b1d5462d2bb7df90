"""What the probes of a model write, read by another process while the job is stuck inside what they observe."""

from __future__ import annotations

import ctypes
import itertools
import json
import sys
import threading
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.processes.ranks import Ranks

from nsadiag.evidence.layout import RankDir, RunDir
from nsadiag.evidence.ring.blackbox import Kind, Phase
from nsadiag.evidence.ring.reader import read_blackbox
from nsadiag.worker import session

HEAD = """
import os, sys, threading
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

def stuck():
    with open(os.environ["SIGNALS"], "w") as signals:
        signals.write("stuck\\n")
    threading.Event().wait()

class Stick(torch.autograd.Function):
    armed = False

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        if Stick.armed:
            stuck()
        return gradient

class Block(nn.Module):
    def __init__(self, last=False):
        super().__init__()
        self.up, self.down, self.last = nn.Linear(8, 16), nn.Linear(16, 8), last

    def forward(self, x):
        return Stick.apply(x + self.down(self.up(x).relu_())) if self.last else x + self.down(self.up(x).relu_())

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block(last=True), Block()])

    def forward(self, x):
        for block in self.blocks:
            x = self.call(block, x)
        return {"loss": x.square_().mean(), "hidden": x}

    def call(self, block, x):
        return block(x)

def train(model, steps=3):
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    for step in range(steps):
        Stick.armed = step == steps - 1
        model(torch.randn(4, 8, requires_grad=True) * 1)["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.fixture
def stuck(ranks: Ranks) -> Any:
    """Starts a rank with these probes, and gives its directory once it has said that it is stuck."""

    def start(body: str, probes: str = "full") -> RankDir:
        ranks.start(HEAD + body, probes=probes)
        ranks.stuck()
        return ranks.directory()

    return start


def events(rank: RankDir) -> list[tuple[Kind, Phase, str, int, int, int]]:
    """(kind, phase, name, step, a, b) of every event, oldest first."""
    recording = read_blackbox(rank.blackbox)
    assert not recording.gaps
    return [
        (
            Kind(int(e["kind"])),
            Phase(int(e["phase"])),
            recording.names.get(int(e["name"]), ""),
            int(e["step"]),
            int(e["a"]),
            int(e["b"]),
        )
        for e in recording.events
    ]


def last_step(rank: RankDir) -> list[tuple[Kind, Phase, str, int, int, int]]:
    seen = events(rank)
    return [e for e in seen if e[3] == seen[-1][3]]


def names(found: list[tuple[Kind, Phase, str, int, int, int]], kind: Kind, phase: Phase) -> list[str]:
    return [e[2] for e in found if e[:2] == (kind, phase)]


def test_gradients_that_arrived_before_backward_got_stuck_are_on_disk(stuck: Any) -> None:
    seen = last_step(stuck("train(Model())", "light"))
    arrived = names(seen, Kind.GRADIENT, Phase.POINT)
    assert arrived == ["blocks.2.down.bias", "blocks.2.down.weight", "blocks.2.up.bias", "blocks.2.up.weight"]
    assert names(seen, Kind.BACKWARD, Phase.BEGIN) and not names(seen, Kind.BACKWARD, Phase.END)
    assert [e[4] for e in seen if e[:2] == (Kind.FORWARD, Phase.END)] == [4 * 8]  # what it was given


def test_backward_is_seen_to_reach_a_module_and_no_further(stuck: Any) -> None:
    seen = last_step(stuck("train(Model())"))
    # The outputs are a mapping, changed in place.
    assert names(seen, Kind.MODULE_BACKWARD, Phase.POINT) == ["Model", "blocks.2", "blocks.1"]


def test_a_forward_that_is_stuck_names_the_module(stuck: Any) -> None:
    body = """
class Late(nn.Linear):
    calls = 0
    def forward(self, x):
        self.calls += 1
        if self.calls == 3:
            stuck()
        return super().forward(x)

model = Model()
model.blocks[1].down = Late(16, 8)
train(model)
"""
    seen = last_step(stuck(body))
    open_modules: list[str] = []
    for kind, phase, name, *_ in seen:
        if kind in (Kind.MODULE, Kind.FORWARD):
            open_modules.append(name) if phase == Phase.BEGIN else open_modules.remove(name)
    assert open_modules == ["Model", "blocks.1", "blocks.1.down"]


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_recomputation_that_is_stuck_is_tagged_and_named(stuck: Any, reentrant: bool) -> None:
    body = f"""
class Checkpointed(Model):
    def call(self, block, x):
        return checkpoint(block, x, use_reentrant={reentrant})

class Late(nn.Linear):
    calls = 0
    def forward(self, x):
        self.calls += 1
        if self.calls == 6:  # two a step
            stuck()
        return super().forward(x)

model = Checkpointed()
model.blocks[1].last, model.blocks[1].down = False, Late(16, 8)
train(model)
"""
    seen = last_step(stuck(body))
    begun, ended = (names(seen, Kind.RECOMPUTE, phase) for phase in (Phase.BEGIN, Phase.END))
    assert (begun, ended) == (["blocks.2", "blocks.1"], ["blocks.2"])
    again = [e[2] for e in seen if e[:2] == (Kind.MODULE, Phase.BEGIN) and e[4] == 1]
    assert again[-3:] == ["blocks.1", "blocks.1.up", "blocks.1.down"]


@pytest.mark.parametrize("probes", ["light", "full"])
@pytest.mark.parametrize("reentrant", [True, False])
def test_a_function_that_recomputes_another_module_is_reported_while_the_job_runs(
    stuck: Any, reentrant: bool, probes: str
) -> None:
    body = f"""
class LateBound(Model):
    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(lambda y: block(y), x, use_reentrant={reentrant})
        return {{"loss": x.square().mean()}}

train(LateBound(), 2)
stuck()
"""
    rank = stuck(body, probes)
    rows = [json.loads(line) for line in rank.recomputed.read_text().splitlines()]
    assert [(r["forward"], r["recomputed"]) for r in rows] == [
        (["blocks.1"], ["blocks.2"]),
        (["blocks.0"], ["blocks.2"]),
    ]
    assert "checkpoint(lambda" in code_at(rows[0]["place"])


def code_at(place: str) -> str:
    file, line, _ = place.rsplit(":", 2)
    return Path(file).read_text().splitlines()[int(line) - 1]


@pytest.mark.parametrize("how", ["block", "functools.partial(block)", "lambda y, block=block: block(y)"])
def test_a_function_that_binds_early_is_not_reported(stuck: Any, how: str) -> None:
    body = f"""
import functools
class EarlyBound(Model):
    def forward(self, x):
        for block in self.blocks:
            x = checkpoint({how}, x, use_reentrant=False)
        return {{"loss": x.square().mean()}}

train(EarlyBound(), 2)
stuck()
"""
    assert not stuck(body).recomputed.exists()


def test_the_graph_is_counted_by_type_and_by_module(stuck: Any) -> None:
    rank = stuck("train(Model(), 2)", "light")
    graph = json.loads(rank.graph.read_text())
    assert graph["types"]["AddmmBackward0"] == 6
    assert (
        graph["modules"]["blocks.0.up"] == graph["modules"]["blocks.2.down"] == 2
    )  # addmm and the weight's transposition
    assert sum(graph["types"].values()) == graph["nodes"]


def test_short_steps_are_recorded_less_densely_and_the_gap_says_so(ranks: Ranks) -> None:
    ranks.start(
        HEAD + "model = nn.Sequential(*[nn.Linear(2, 2) for _ in range(200)])\n"
        "optimizer = torch.optim.SGD(model.parameters(), 1e-3)\n"
        "for step in range(20):\n    model(torch.randn(1, 2)).sum().backward(); optimizer.step()\n"
    )
    ranks.end()
    rank = ranks.directory()
    seen = events(rank)
    arrived = [len([e for e in seen if e[0] == Kind.GRADIENT and e[3] == step]) for step in (0, 18)]
    assert arrived[0] == 400
    assert 4 <= arrived[1] < 400
    assert "of 400 parameters are recorded" in rank.gaps.read_text()


def test_a_model_compiled_as_one_graph_stays_one_graph(ranks: Ranks) -> None:
    job = """
class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return {"loss": x.square().mean()}

model = torch.compile(Checkpointed(), backend="aot_eager", fullgraph=True)
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
step = torch.compile(optimizer.step, backend="eager")
for _ in range(6):
    model(torch.randn(4, 8))["loss"].backward(); step(); optimizer.zero_grad()
print("graphs", torch._dynamo.utils.counters["stats"]["unique_graphs"], len(torch._dynamo.utils.counters["graph_break"]))
"""
    for probes in ("none", "light", "full"):
        ranks.run = RunDir(path=ranks.jobs.directory / probes)
        ranks.start(HEAD + job, probes=probes)
    said = [line.split() for text in ranks.end() for line in text.splitlines() if line.startswith("graphs")]
    (plain, *watched) = [(int(graphs), int(breaks)) for _, graphs, breaks in said]
    # Since torch 2.15 a step with a hook, anybody's, is left at once where it is left after a break without one.
    assert len(watched) == 2
    assert all(graphs == plain[0] and breaks <= plain[1] for graphs, breaks in watched), said
    seen = events(RunDir(path=ranks.jobs.directory / "light").rank(0))
    assert names(seen, Kind.FORWARD, Phase.BEGIN) == ["OptimizedModule"] * 6
    assert "blocks.0.up.weight" in names(seen, Kind.GRADIENT, Phase.POINT)


def test_a_model_that_ran_under_the_probes_can_be_pickled_without_them(ranks: Ranks) -> None:
    ranks.start(HEAD + "model = nn.Sequential(nn.Linear(2, 2))\n"
        "model(torch.randn(1, 2)).sum().backward()\ntorch.save(model, 'model.pt')\n")  # fmt: skip
    ranks.end()
    assert b"nsadiag" not in (ranks.jobs.directory / "model.pt").read_bytes()


@pytest.mark.parametrize(("size", "looks"), [(1, 1), (2, 4)])
def test_a_rank_alone_is_compared_with_nobody_and_looked_at_no_further(
    ranks: Ranks, size: int, looks: int
) -> None:
    ranks.start(
        HEAD + "from nsadiag.worker.probes.correctness.invariants import flow, operations\n"
        "model = nn.Sequential(nn.Linear(2, 2))\n"
        "optimizer = torch.optim.SGD(model.parameters(), 1e-3)\n"
        "looks = 0\n"
        "for step in range(4):\n"
        "    looks += operations.journal.looking and flow.flow.following\n"
        "    model(torch.randn(1, 2)).sum().backward(); optimizer.step()\n"
        "print('looks', looks)\n",
        size=size,
        probes="light,invariants",
    )
    assert ranks.end() == [f"looks {looks}\n"] * size


def test_calls_of_modules_take_no_reference_from_none() -> None:
    """Torch 2.6 hands out one that it does not own; before Python 3.12 a job would end when none is left."""
    from nsadiag.worker.probes.autograd import module_calls

    calls = 2000
    module, inputs = torch.nn.Linear(2, 2), torch.ones(1, 2)
    with module_calls.observed_calls():
        before = sys.getrefcount(None)
        for _ in range(calls):
            module(inputs)
        assert sys.getrefcount(None) > before - calls / 2


def has_a_stack_of_transforms() -> bool:
    """Whether functorch keeps one for the calling thread; asking torch for it would make it."""
    found = ctypes.CDLL(str(Path(torch.__file__).parent / "lib/libtorch_cpu.so"))
    accessor = found._ZN2at9functorch20functorchTLSAccessorEv
    accessor.restype = ctypes.POINTER(ctypes.c_void_p)
    return bool(accessor()[0])


def test_calls_of_modules_leave_the_thread_no_stack_of_transforms() -> None:
    """Each node of an autograd graph copies it, and each backward of one: 2 % of a short step."""
    from nsadiag.worker.probes.autograd import module_calls

    found: list[bool] = []

    def train() -> None:
        with module_calls.observed_calls():
            torch.nn.Linear(2, 2)(torch.ones(1, 2)).sum().backward()
            found.append(has_a_stack_of_transforms())
        torch._C._functorch.peek_interpreter_stack()
        found.append(has_a_stack_of_transforms())

    # Each thread has its own, and what ran before in this one may have made it.
    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert found == [False, True]


def test_the_look_for_missing_gradients_keeps_to_its_share_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    from nsadiag.worker.probes.correctness import replicas

    step_s, look_s, clock, steps = 0.01, 0.000104, [1.0], [0]
    looks: list[int] = []

    def stepped_by(optimizer: Any) -> list[torch.Tensor]:
        looks.append(steps[0])
        clock[0] += look_s
        return list(optimizer.param_groups[0]["params"])

    for name, value in {"_skip": 0, "_passed": 0, "_last": 0.0, "_each_s": deque(maxlen=5)}.items():
        monkeypatch.setattr(replicas, name, value)
    monkeypatch.setattr(replicas, "_without", {})
    monkeypatch.setattr(replicas, "monotonic", lambda: clock[0])
    monkeypatch.setattr(replicas, "stepped_by", stepped_by)
    monkeypatch.setattr(session.recorded, "rank", SimpleNamespace(box=SimpleNamespace(step=0), world_size=1))
    parameter = torch.nn.Parameter(torch.ones(1))
    parameter.grad = torch.ones(1)
    optimizer = torch.optim.SGD([parameter])
    for _ in range(200):
        steps[0] += 1
        clock[0] += step_s
        replicas._before_step(optimizer, (), {})
    # The first is due whatever it costs; from the second on, what a step takes is known.
    assert {later - earlier for earlier, later in itertools.pairwise(looks[1:])} == {
        int(look_s / (step_s * replicas.SHARE)) + 1
    }


def test_of_dynamos_callbacks_ours_is_one_and_goes_with_the_last_probe() -> None:
    from torch._dynamo.callback import callback_handler

    from nsadiag.worker.probes.autograd import module_calls

    for _ in range(2):
        before = len(callback_handler.start_callbacks)
        with module_calls.observed_calls(), module_calls.observed_calls():
            assert len(callback_handler.start_callbacks) == before + 1
        assert len(callback_handler.start_callbacks) == before


def test_an_optimizer_that_makes_its_groups_is_not_asked_for_them() -> None:
    import torch

    from nsadiag.worker.probes.values import stepped_by

    class Makes(torch.optim.Optimizer):
        def __init__(self) -> None: ...

        @property
        def param_groups(self) -> None:  # type: ignore[override]
            raise AssertionError

    weight = torch.ones(1, requires_grad=True)
    assert stepped_by(Makes()) == []
    assert stepped_by(torch.optim.SGD([weight], 0.1)) == [weight]
