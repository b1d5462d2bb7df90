"""A loop over tensors that goes round without a change is told from one that gets somewhere, by what the rank itself tells."""

from __future__ import annotations

import contextlib
import ctypes
import json
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.jobs import Jobs

from nsadiag.agent.stillness import loop_introspection, loop_sampling
from nsadiag.agent.stillness.loop_introspection import Round, Rounds
from nsadiag.evidence.layout import read_json
from nsadiag.source.loop_exits import loop_around
from nsadiag.worker.introspection import loop_rounds

LOOP = """
import torch

class Box:
    tried = 0

def slope(at):
    at = at.detach().requires_grad_(True)
    (found,) = torch.autograd.grad((at * at - 900.0).square(), at)
    return found

def work():
    low, high, total = torch.tensor(30.0), torch.tensor(30.000002), torch.zeros(3)
    tried, kept, box, warm = 0, [], Box(), slope(low).item()
    READY()
    while high - low > 1e-9:
        middle = (low + high) / 2
        first = slope(middle)
        EXTRA
"""
SPINNING = {
    "a bisection below what a float can tell": "low, high = (low, middle) if first > 1 else (middle, high)",
    "the same outcome again and again": "second = (first * torch.ones(3)).tanh()",
}
WORKING = {
    "a count": "tried += 1",
    "a tensor in place": "total += middle",
    "a list that grows": "kept.append(first)",
    "a state of an object's own": "box.tried += 1",
    "random numbers": "guess = torch.rand(4)",
    "a way out by the clock": "import time; late = time.monotonic() < 0",
    "a way out of another kind": "if kept:\n            break",
}


@contextmanager
def running(tmp_path: Path, extra: str) -> Iterator[tuple[Path, Callable[[], Any]]]:
    """The script of a thread that is in the loop, and what asks it."""
    script = tmp_path / "job.py"
    script.write_text(LOOP.replace("EXTRA", extra))
    names: dict[str, Any] = {"__name__": "job", "READY": (ready := threading.Event()).set}
    exec(compile(script.read_text(), str(script), "exec"), names)

    def work() -> None:
        with contextlib.suppress(SystemExit):
            names["work"]()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert ready.wait(60)
    ident = thread.ident or 0
    try:
        yield script, lambda: json.loads(json.dumps(loop_rounds.report(ident)))
    finally:
        for _ in range(60):  # Python drops one that arrives in a callback of the garbage collector
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(SystemExit))
            thread.join(1)
            if not thread.is_alive():
                break
        assert not thread.is_alive()


def looked_at(tmp_path: Path, extra: str, monkeypatch: pytest.MonkeyPatch) -> Round | None:
    """What the second of two answers says."""
    monkeypatch.setattr(loop_rounds, "SECONDS", 0.5)
    monkeypatch.setattr(loop_rounds, "INTERVAL_S", 0.002)
    known, found = Rounds(), None
    with running(tmp_path, extra) as (script, ask):
        stacks = [((str(script), "work", line),) for line in (16, 17)]
        for _ in range(2):
            found = known.of(0, stacks, ask)
    return found


@pytest.mark.parametrize("extra", SPINNING.values(), ids=SPINNING)
def test_a_loop_that_compares_what_stays_goes_round(
    extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = looked_at(tmp_path, extra, monkeypatch)
    assert found is not None
    assert (found.source.line, found.function, found.changes) == (16, "work", [])
    assert found.seconds > 0


@pytest.mark.parametrize("extra", WORKING.values(), ids=WORKING)
def test_a_loop_in_which_anything_changes_is_never_endless(
    extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = looked_at(tmp_path, extra, monkeypatch)
    assert found is None or found.changes


def test_nobody_is_asked_who_may_not_answer_or_is_in_no_such_loop(tmp_path: Path) -> None:
    def refuses() -> Any:
        raise AssertionError("asked")

    script = tmp_path / "job.py"
    script.write_text(LOOP.replace("EXTRA", "pass"))
    inside, before = (str(script), "work", 17), (str(script), "work", 14)
    # One line, whenever it is looked at, may be a call that keeps the interpreter lock.
    assert Rounds().of(0, [(inside,), (inside,)], refuses) is None
    assert Rounds().of(0, [(before,), ((str(script), "slope", 9),)], refuses) is None


def test_rounds_are_counted_by_the_loops_own_statements(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(
        "def f():\n    while a < b:\n        for x in y:\n            g(x)\n            h(x)\n        k()\n"
    )
    loop = loop_around(str(script), "f", {3, 6})
    assert loop is not None
    assert loop_introspection.rounds(loop.node, [3, 4, 5, 4, 5, 4, 5, 6]) == 0
    assert loop_introspection.rounds(loop.node, [4, 6, 2, 4, 5, 4, 6, 3]) == 2


# Rank 0 halves an interval of floats that cannot be halved; the others wait for what it finds.
HALVES = """
    from datetime import timedelta
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def slope(at):
        at = at.detach().requires_grad_(True)
        (found,) = torch.autograd.grad((at - 40.7) ** 2, at)
        return found

    def fit(tolerance):
        low, high = torch.tensor(1.0), torch.tensor(64.0)
        while high - low > tolerance:
            middle = (low + high) / 2
            if slope(middle) < 0:
                low = middle
            else:
                high = middle
        return low

    for step in range(8):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        found = torch.zeros(1)
        if dist.get_rank() == 0:
            found[0] = fit(1e-3 if step < 7 else 1e-7)
        dist.broadcast(found, src=0)
    dist.destroy_process_group()
"""


@pytest.mark.slow
def test_a_bisection_that_floats_cannot_end_is_found_while_the_peers_wait(jobs: Jobs) -> None:
    script = jobs.directory / "halves.py"
    script.write_text(textwrap.dedent(HALVES))
    launcher = ("torchrun", "--standalone", "--nproc-per-node", "2")
    jobs.run("run", "--out", "run", "--timeout", "240", "--", *launcher, script)
    verdict = read_json(jobs.directory / "run" / "verdict.json")
    assert (verdict["outcome"], verdict["class"]) == ("hung", "livelock_user_code")
    assert (verdict["guilty_ranks"], verdict["blocked_ranks"]) == ([0], [1])
    assert verdict["where"]["code"] == "while high - low > tolerance:"


def test_a_loop_that_calls_into_libraries_gets_the_longer_time() -> None:
    known = {"file": "f", "function": "g", "line": 1, "lines": [1], "stacks": 2, "samples": 8, "changes": []}
    one = loop_sampling.Loop(**known, decided=False, seconds=12.0)  # type: ignore[arg-type]
    assert not one.is_endless(0.1)
