"""Gradients are read by the thread that runs their model: the backward of another one replaces them without the interpreter's lock."""

import json
from textwrap import dedent

import pytest
from support.processes.ranks import Ranks

PRELUDE = """
import atexit, json, os, sys, threading
import torch, torch.distributed as dist
from torch import nn

def join():  # by a file: nobody has to choose a port
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/store", rank=rank, world_size=size)
    atexit.register(dist.destroy_process_group)

class Stays(torch.autograd.Function):  # in its backward, until it is let go
    @staticmethod
    def forward(ctx, x, inside, leave): ctx.events = inside, leave; return x * 1
    @staticmethod
    def backward(ctx, gradient): inside, leave = ctx.events; inside.set(); leave.wait(); return gradient, None, None

readers = set()

class Seen(nn.Parameter):  # notes whoever reads its gradient in another thread than the one that runs its model
    @property
    def grad(self):
        if threading.current_thread() is not runs:
            readers.add(os.path.basename(sys._getframe(1).f_code.co_filename))
        return nn.Parameter.grad.__get__(self)
    @grad.setter
    def grad(self, value): nn.Parameter.grad.__set__(self, value)

class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = Seen(torch.randn(8, 8))
    def forward(self, x): return x @ self.weight

def stay(model):
    inside, leave = threading.Event(), threading.Event()
    def run(): Stays.apply(model(torch.randn(4, 8)), inside, leave).sum().backward()
    return run, inside, leave
"""

IN_ANOTHER_THREAD = """
join()
ours = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
optimizer = torch.optim.SGD(ours.parameters(), 1e-3)
theirs = nn.Sequential(ours[0], Layer())  # shares a layer, and has one that is younger than the optimizer
run, inside, leave = stay(theirs)
def twice(): theirs(torch.randn(4, 8)).sum().backward(); run()
runs = threading.Thread(target=twice)
runs.start(); inside.wait()
for step in range(8):
    loss = ours(torch.randn(4, 8)).sum()
    loss.backward()
    for p in ours.parameters(): dist.all_reduce(p.grad)
    optimizer.step()
leave.set(); runs.join()
if dist.get_rank() == 0: print("readers", json.dumps(sorted(readers)))
"""

IN_THE_MAIN_THREAD = """
join()
runs, model = threading.current_thread(), Layer()
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
model(torch.randn(4, 8)).sum().backward(); optimizer.step()
run, inside, leave = stay(model)
def reduce():
    inside.wait()
    dist.all_reduce(torch.ones(8, 8))
    leave.set()
other = threading.Thread(target=reduce)
other.start(); run(); other.join()
if dist.get_rank() == 0: print("readers", json.dumps(sorted(readers)))
"""

TWO_BACKWARDS = """
from nsadiag.worker.introspection import missing_gradients
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
runs, model = None, nn.parallel.DistributedDataParallel(Layer())
jobs = [stay(nn.Linear(8, 8)) for _ in range(2)]
threads = [threading.Thread(target=run) for run, *_ in jobs]
told = []
for thread, (_, inside, _) in zip(threads, jobs):
    thread.start(); inside.wait()
for thread, (_, _, leave) in zip(threads, jobs):
    told.append(missing_gradients.report().get("models"))
    leave.set(); thread.join()
told.append(missing_gradients.report().get("models"))
print("told", json.dumps(told))
"""


def said(ranks: Ranks, script: str, word: str, size: int) -> object:
    ranks.start(dedent(PRELUDE + script), size=size, probes="light,invariants")
    lines = [line for text in ranks.end() for line in text.splitlines() if line.startswith(f"{word} ")]
    assert len(lines) == 1, lines
    return json.loads(lines[0].removeprefix(f"{word} "))


@pytest.mark.parametrize("script", [IN_ANOTHER_THREAD, IN_THE_MAIN_THREAD], ids=["trains", "exchanges"])
def test_gradients_of_a_model_in_a_threads_backward_are_not_read_by_a_thread_that(
    ranks: Ranks, script: str
) -> None:
    assert said(ranks, script, "readers", 2) == []


def test_missing_gradients_are_not_told_while_any_thread_is_in_a_backward(ranks: Ranks) -> None:
    told = said(ranks, TWO_BACKWARDS, "told", 1)
    assert told == [None, None, [{"of": 1, "count": 1, "missing": ["weight"]}]]
