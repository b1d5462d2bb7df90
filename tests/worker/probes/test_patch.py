"""Every replacement that the probes make: it looks like what it replaces, and is gone without a trace afterwards."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.processes.warm_python import WarmProcess, WarmPython

# -- all of them, by comparing what there was before and after -------------------------------------------

ALL = """
import inspect, json, os, pickle, sys, types
import torch, torch.distributed as dist, torch.distributed.fsdp, torch.distributed.checkpoint
import torch.distributed._functional_collectives, torch.utils.checkpoint, torch.utils.data
import torch.distributed.fsdp.fully_sharded_data_parallel
import builtins, logging, threading, traceback

def owners():
    for name, module in list(sys.modules.items()):
        if isinstance(module, types.ModuleType) and not name.startswith(("nsadiag", "__m")):
            yield name, module
    seen = [torch.nn.Module, torch.optim.Optimizer, torch.utils.hooks.RemovableHandle, torch.Tensor, logging.Logger]
    seen += [threading.Thread, traceback.TracebackException, torch.amp.GradScaler, dist.Work, dist.Store, dist.Reducer]
    seen += [torch.nn.parallel.DistributedDataParallel, torch.nn.parallel.distributed._DDPJoinHook]
    seen += [dist.fsdp.FullyShardedDataParallel, dist.fsdp.FSDPModule]
    seen += [dist.fsdp._fully_shard._fsdp_param_group.FSDPParamGroup, dist.fsdp._fully_shard._fsdp_state.FSDPState]
    seen += [torch.utils.data.dataloader._BaseDataLoaderIter]
    for kind in seen:
        yield f"{kind.__module__}.{kind.__qualname__}", kind

def snapshot():
    return {(name, key): value for name, owner in owners() for key, value in list(vars(owner).items())}

def read(owner, key):
    return getattr(owner, key)

def look(value):
    found = {"text": str(value).split(" at 0x")[0]}
    for key in ("__name__", "__qualname__", "__module__", "__doc__", "__annotations__"):
        found[key] = repr(getattr(value, key, None))
    for key, ask in (("signature", inspect.signature), ("full", inspect.getfullargspec), ("source", inspect.getsource)):
        try:
            found[key] = str(ask(value))[:400]
        except Exception as error:
            found[key] = type(error).__name__
    try:
        found["pickles"] = pickle.loads(pickle.dumps(value)) is value
    except Exception as error:
        found["pickles"] = type(error).__name__
    return found

probes_named = sys.argv[1]
os.environ["NSADIAG_PROBES"] = probes_named
os.environ.setdefault("NSADIAG_RUN_DIR", os.getcwd())
from nsadiag.worker import probes, session
from nsadiag.worker.failures import crash
before = snapshot()
by_place = dict(owners())
same = {}
for place, value in ((p, v) for p, v in before.items() if callable(v)):
    same.setdefault((id(value), place[1]), []).append(place)  # what torch keeps by another name stays the original
session.open_rank(0, 1)
placed = snapshot()
probes.install_probes()
after = snapshot()
changed = {place for place, value in after.items() if placed.get(place) is not value}
replacements = {place: look(read(by_place[place[0]], place[1])) for place in changed}
apart = [[".".join(p) for p in places] for places in same.values()
         if any(p in changed for p in places) and len({id(after[p]) for p in places}) > 1]
probes.remove_probes()
left = [".".join(place) for place, value in snapshot().items() if placed.get(place) is not value
        and not place[0].startswith("__") and place[1] not in ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks", "next_id")]
# As they are again.
differs = {".".join(place): [look(read(by_place[place[0]], place[1])), now] for place, now in replacements.items()}
print(json.dumps({"changed": [".".join(p) for p in sorted(changed)], "differs": differs, "apart": apart, "left": left}))
"""


@pytest.fixture(scope="module", params=["light", "full,parity"])
def all_of_them(
    request: pytest.FixtureRequest, warm_python: WarmPython, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    where = tmp_path_factory.mktemp("patches")
    return run(warm_python, where, ALL, request.param)


def run(warm_python: WarmPython, where: Path, program: str, *arguments: str) -> dict[str, Any]:
    """The program in a process of its own; what it prints last, as JSON."""
    script = where / "program.py"
    script.write_text(program)
    env = {**os.environ, "NSADIAG_RUN_DIR": str(where), "OMP_NUM_THREADS": "1"}
    found: dict[str, Any] = json.loads(
        printed(warm_python.start(script, *arguments, cwd=where, env=env)).splitlines()[-1]
    )
    return found


def printed(process: WarmProcess) -> str:
    """By a process that ends well."""
    try:
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
    finally:
        process.close()
    return out


def test_what_is_replaced_keeps_name_signature_source_and_pickle(all_of_them: dict[str, Any]) -> None:
    assert {
        "torch.save",
        "torch.autograd.backward",
        "torch.distributed.all_reduce",
        "torch.nn.modules.module.Module.__call__",
        "torch.utils.checkpoint.checkpoint",
    } <= set(all_of_them["changed"])
    told = {
        place: [key for key in now if was.get(key) != now[key]]
        for place, (was, now) in all_of_them["differs"].items()
    }
    # A builtin's replacement is a function: what it is to Python differs, and its name and text do not.
    assert {place: keys for place, keys in told.items() if not set(keys) <= BUILTIN} == {}


BUILTIN = {"text", "signature", "full", "source", "__annotations__", "pickles"}


def test_the_same_object_stands_wherever_torch_exports_it(all_of_them: dict[str, Any]) -> None:
    assert all_of_them["apart"] == []


def test_removal_leaves_nothing_behind(all_of_them: dict[str, Any]) -> None:
    assert all_of_them["left"] == []


# -- what others patch meanwhile -------------------------------------------------------------------------

BOOT = """
import json, os
import torch, torch.nn as nn
os.environ["RANK"], os.environ["WORLD_SIZE"] = "0", "1"
from nsadiag.worker import startup, probes
startup.boot()
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    def forward(self, x):
        return self.inner(x)
def train(model, steps=20):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
net, linear = Net(), nn.Linear(2, 2)
train(linear, 2); train(net)
assert "__call__" in vars(Net) and "__call__" in vars(nn.Linear), "the frame is on the roots' classes now"
"""


@pytest.fixture
def booted(warm_python: WarmPython, tmp_path: Path) -> Callable[[str], dict[str, Any]]:
    return lambda program: run(warm_python, tmp_path, BOOT + program)


def test_a_patch_of_every_module_call_sees_the_modules_that_we_watch(booted: Any) -> None:
    found = booted(
        """
seen, before = [], nn.Module.__call__
def mine(self, *args, **kwargs):
    seen.append(type(self).__name__)
    return before(self, *args, **kwargs)
nn.Module.__call__ = mine
net(torch.ones(1, 2))
nn.Module.__call__ = before
net(torch.ones(1, 2))
print(json.dumps({"seen": seen}))
""",
    )
    assert found["seen"] == ["Net", "Sequential", "Linear", "ReLU"]


def test_a_torch_that_lacks_what_we_ask_it_runs_the_model_all_the_same(booted: Any) -> None:
    """torch 2.15 renamed a private flag, and every watched job failed in its first forward."""
    found = booted(
        """
asked = torch._C._are_functorch_transforms_active
del torch._C._are_functorch_transforms_active
out = net(torch.ones(1, 2)).shape
torch._C._are_functorch_transforms_active = asked
from nsadiag.worker import session
print(json.dumps({"shape": list(out), "gaps": session.current().directory.gaps.read_text()}))
""",
    )
    assert found["shape"] == [1, 2]
    assert "_is_transformed failed" in found["gaps"]


def test_fx_traces_the_graph_that_it_would_without_us(booted: Any) -> None:
    found = booted(
        """
from torch.fx import symbolic_trace
print(json.dumps({"nodes": [f"{n.op} {n.target}" for n in symbolic_trace(nn.Sequential(nn.Linear(2, 2), nn.ReLU())).graph.nodes]}))
""",
    )
    assert found["nodes"] == ["placeholder input", "call_module 0", "call_module 1", "output output"]


def test_a_patch_placed_over_ours_outlives_our_removal_and_calls_through(booted: Any) -> None:
    found = booted(
        """
saved, calls = torch.save, []
def mine(*args, **kwargs):
    calls.append("save")
    return saved(*args, **kwargs)
torch.save = mine
probes.remove_probes()
torch.save({}, "x.pt")
torch.save = saved       # ours, that somebody kept
torch.save({}, "y.pt")
print(json.dumps({"kept": calls, "files": os.path.exists("x.pt") and os.path.exists("y.pt"),
                  "classes": ["__call__" in vars(Net), "__call__" in vars(nn.Linear)],
                  "module": nn.Module.__call__ is nn.Module._wrapped_call_impl}))
""",
    )
    assert found == {"kept": ["save"], "files": True, "classes": [False, False], "module": True}


def test_a_class_pickled_by_value_takes_nothing_of_ours_along(booted: Any) -> None:
    pytest.importorskip("cloudpickle", reason="pickles classes by value")
    found = booted(
        """
import cloudpickle, subprocess, sys
data = cloudpickle.dumps(net)
open("net.pkl", "wb").write(data)
load = "import sys, pickle, torch; m = pickle.load(open('net.pkl', 'rb')); m(torch.ones(1, 2)); print(any(n.startswith('nsadiag') for n in sys.modules))"
clean = {k: v for k, v in os.environ.items() if not k.startswith(("NSADIAG", "PYTHONPATH"))}
done = subprocess.run([sys.executable, "-c", load], env=clean, capture_output=True, text=True)
print(json.dumps({"out": done.stdout.strip(), "error": done.stderr[-300:]}))
""",
    )
    assert found == {"out": "False", "error": ""}


def test_an_object_of_another_class_may_be_called_through_ours(booted: Any) -> None:
    found = booted(
        """
class Loud(nn.Module):
    def forward(self, x): return x + 1
print(json.dumps({"sum": nn.Linear.__call__(Loud(), torch.ones(1)).item()}))
""",
    )
    assert found["sum"] == 2.0


# -- tracebacks and warnings -----------------------------------------------------------------------------

SPEAKS = """
import logging, traceback, warnings, torch, torch.nn as nn, torch.distributed as dist, sys, contextlib
log = logging.getLogger("mine"); log.addHandler(logging.StreamHandler(sys.stdout))
class Net(nn.Module):
    def __init__(self):
        super().__init__(); self.linear = nn.Linear(2, 2)
    def forward(self, x, fails=False):
        warnings.warn("from forward", stacklevel=4)
        if fails:
            raise ValueError("in forward")
        return self.linear(x)
class Data(torch.utils.data.Dataset):
    def __len__(self): return 2
    def __getitem__(self, i): raise KeyError(i)
class Bad(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return x * 2
    @staticmethod
    def backward(ctx, g): raise RuntimeError("in backward")
def attempt(action):
    try:
        action()
    except BaseException:
        print(traceback.format_exc())
        try:
            raise LookupError("while handling")
        except LookupError:
            log.exception("said")
warnings.showwarning = lambda message, kind, file, line, *_: print("warned", message, file.rsplit("/", 1)[-1], line)
warnings.simplefilter("always")
net = Net(); optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
dist.init_process_group("gloo")
ddp = nn.parallel.DistributedDataParallel(net)
scaler = torch.amp.GradScaler("cpu")
def all_of_it():
    attempt(lambda: net(torch.ones(1, 2), fails=True))
    attempt(lambda: ddp(torch.ones(1, 2), fails=True))
    attempt(lambda: net(torch.ones(1, 3)))
    attempt(lambda: torch.load("nowhere"))
    attempt(lambda: torch.save(lambda: 0, "x"))
    attempt(lambda: next(iter(torch.utils.data.DataLoader(Data()))))
    attempt(lambda: Bad.apply(torch.ones(1, requires_grad=True)).sum().backward())
    attempt(lambda: dist.all_reduce("no tensor"))
    attempt(lambda: dist.broadcast(torch.ones(1), src=7))
    attempt(lambda: optimizer.load_state_dict({"state": {}, "param_groups": []}))
    attempt(lambda: optimizer.add_param_group({"params": [1]}))
    attempt(lambda: torch.utils.checkpoint.checkpoint(lambda x: 1 / 0, torch.ones(1), use_reentrant=False))
    attempt(lambda: print("x", end=3))
    attempt(lambda: scaler.step(optimizer))
    with contextlib.suppress(ZeroDivisionError):
        with ddp.no_sync():
            1 / 0
def train(steps):
    for _ in range(steps):
        optimizer.zero_grad(); ddp(torch.ones(1, 2)).sum().backward(); optimizer.step()
all_of_it()
train(20)
all_of_it()
"""


def test_tracebacks_and_warnings_are_those_of_the_plain_job(warm_python: WarmPython, tmp_path: Path) -> None:
    script = tmp_path / "speaks.py"
    script.write_text(SPEAKS)
    rank = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    env = {**os.environ, **rank, "OMP_NUM_THREADS": "1", "NSADIAG_RUN_DIR": str(tmp_path / "out")}
    plain, watched = (
        printed(warm_python.start(script, cwd=tmp_path, env=env, rank=recorded)) for recorded in (False, True)
    )
    assert (tmp_path / "out" / "ranks" / "00000" / "blackbox.bin").exists()
    assert plain.count("Traceback") > 40
    assert watched.splitlines() == plain.splitlines()
