"""A message of another size than was waited for ends a rank: judged as the parting that it comes of, not as the signal."""

from __future__ import annotations

import textwrap
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from support.jobs import Jobs

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts.exits import MISMATCH
from nsadiag.analysis.load import load_cell
from nsadiag.analysis.rules.desync.transport_rejections import rejection
from nsadiag.analysis.verdict import judge
from nsadiag.evidence.layout import RunDir, make_private_dir, read_json, write_json
from nsadiag.evidence.ring.blackbox import BlackBox, Kind, Phase

REFUSED = (
    "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n"
    "  what():  [enforce fail at gloo/transport/tcp/pair.cc:456] op.preamble.length <= op.nbytes. 32768 vs 16704. "
    "Received data size doesn't match expected size. Is there a distributed collective mismatch in your code?\n"
)
# Only rank 0 has the sum: rank 1 compares what it has itself, and goes on where rank 0 gathers much. `save` is also
# the name of what it calls, and of a method of somebody else's.
KEEPS_BEST = """
    import os
    from datetime import timedelta
    import torch
    import torch.distributed as dist

    class Trainer:
        def __init__(self):
            self.best = float("inf")
            self.net = torch.nn.Linear(8, 8)
            self.opt = torch.optim.SGD(self.net.parameters(), lr=0.01)

        def epoch(self):
            for _ in range(3):
                shared = torch.empty(8)
                dist.all_gather_into_tensor(shared, torch.ones(4))
                loss = self.net(shared).sum()
                loss.backward()
                self.opt.step()
                self.opt.zero_grad()

        def validate(self, number):
            score = torch.tensor([-(9.0**number) if dist.get_rank() == 0 or number < 4 else 0.0])
            dist.reduce(score, dst=0)
            return score.item()

        def save(self, number):
            weights = torch.empty(8192)
            dist.all_gather_into_tensor(weights, torch.ones(4096))
            if dist.get_rank() == 0:
                torch.save({"weights": weights, "epoch": number}, os.devnull)

        def fit(self):
            for number in range(1, 9):
                self.epoch()
                score = self.validate(number)
                if score < self.best:
                    self.best = score
                    self.save(number)

    dist.init_process_group("gloo", timeout=timedelta(minutes=10))
    Trainer().fit()
    dist.destroy_process_group()
"""


@pytest.mark.slow
def test_ranks_that_part_where_gloo_then_refuses_a_size_are_told_by_their_condition(jobs: Jobs) -> None:
    script = jobs.directory / "keeps_best.py"
    script.write_text(textwrap.dedent(KEEPS_BEST))
    jobs.run("run", "--out", "run", "--", "torchrun", "--standalone", "--nproc-per-node", "2", script)
    verdict = read_json(jobs.directory / "run" / "verdict.json")
    assert (verdict["outcome"], verdict["class"]) == ("crashed", "data_divergent_control_flow")
    assert verdict["guilty_ranks"] == [1]
    assert verdict["where"]["code"] == "if score < self.best:"


class Job:
    """Two ranks of which the second was ended for what it got; each calls what is listed."""

    def __init__(self, path: Path) -> None:
        self.run = RunDir(path=path)
        write_json(self.run.watch, {"launcher_exit_code": 1, "started_mono_ns": 0})
        ends = {0: {"t_s": 9.1, "signal": 15}, 1: {"t_s": 9.0, "signal": 6}}
        write_json(self.run.ends, {str(n): {"pid": n + 1, "steps": 2, **end} for n, end in ends.items()})

    def rank(self, number: int, *calls: str, stderr: str = "") -> None:
        rank = self.run.rank(number)
        make_private_dir(rank.path)
        box = BlackBox(rank.blackbox, rank=number, world_size=2)
        names = box.names
        for call in calls:
            op, _, thread = call.partition(" in a ")
            kind = Kind.BACKWARD if op == "backward" else Kind.COLLECTIVE
            place = "\t/job/train.py:7:main" if op == "backward" else f"default_pg\t/job/train.py:{len(op)}:f"
            name = names("" if op == "backward" else op)
            with ThreadPoolExecutor() as other:
                emit = partial(other.submit, box.emit) if thread else box.emit
                emit(kind, Phase.BEGIN, name, 0, 0, names(place))
        write_json(rank.meta, {"rank": number, "world_size": 2, "pid": number + 1})
        rank.stderr.write_text(stderr)


def test_a_call_that_met_a_wrappers_own_is_never_unknown(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.rank(0, "backward", "backward", "backward", "backward")
    job.rank(1, "backward", "backward", "backward", "all_reduce", stderr=REFUSED)
    verdict = judge(load_cell(tmp_path))
    assert (verdict.outcome, verdict.cls) == ("crashed", "collective_order_mismatch")
    assert verdict.guilty_ranks == (1,)


def test_a_rank_still_in_its_first_forward_has_the_same_two_threads_in_a_group(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.rank(0, "backward", "all_reduce in a thread")
    job.rank(1, "all_reduce in a thread", stderr=REFUSED)
    for number in (0, 1):
        write_json(job.run.rank(number).ddp, [{"group": "default_pg", "settings": {}, "parameters": []}])
    verdict = judge(load_cell(tmp_path))
    assert (verdict.cls, verdict.guilty_ranks) == ("collective_order_mismatch", (0, 1)), verdict.summary
    assert "Two threads" in verdict.summary


def test_a_rank_without_the_other_thread_is_not_blamed_for_it(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.rank(0, "backward", "all_reduce in a thread")
    job.rank(1, "all_reduce", stderr=REFUSED)
    for number in (0, 1):
        write_json(job.run.rank(number).ddp, [{"group": "default_pg", "settings": {}, "parameters": []}])
    assert judge(load_cell(tmp_path)).guilty_ranks == (0,)


def test_who_is_only_further_along_the_same_path_has_not_parted(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.rank(0, "backward", "backward", "backward", "all_reduce")
    job.rank(1, "backward", "backward", "backward", stderr=REFUSED)
    assert rejection(Case(load_cell(tmp_path))) is None


def test_a_peer_that_is_merely_gone_is_no_mismatch(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.rank(0, "backward", "backward")
    job.rank(1, "backward", "all_reduce", stderr="RuntimeError: Connection closed by peer [10.0.0.7]:41023\n")
    assert rejection(Case(load_cell(tmp_path))) is None


@pytest.mark.parametrize(
    "words",
    [
        REFUSED,
        "NET/Socket : peer 10.0.0.7<41023> message truncated : receiving 4096 bytes instead of 1024. If you believe "
        "your socket network is in a healthy state, there may be a mismatch in collective sizes",
        "Detected mismatch between collectives on ranks",
    ],
)
def test_what_transports_say_of_another_size_is_known(words: str) -> None:
    assert MISMATCH.search(words)
