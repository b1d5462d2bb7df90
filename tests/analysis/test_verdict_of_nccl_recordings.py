"""Evidence recorded from real NCCL hangs (two H200 GPUs, torch 2.11, NCCL 2.28), judged again without a GPU.

gloo and NCCL show the same fault differently: under NCCL the waiting rank burns a whole CPU in
cudaStreamSynchronize, entries stay "scheduled", and a mismatched collective completes on one side.
"""

from __future__ import annotations

import dataclasses
import tarfile
from pathlib import Path

import pytest
from support.promises import promises
from support.recordings.golden import missed

from nsadiag.agent.stillness.judgement import judge
from nsadiag.agent.stillness.motion import connecting, issued, motions, stances
from nsadiag.analysis.case import Case
from nsadiag.analysis.facts.collectives import autograd_threads, callers
from nsadiag.analysis.facts.spans import Span
from nsadiag.analysis.load import load_cell
from nsadiag.analysis.verdict import judge_directory
from nsadiag.evidence import recorder
from nsadiag.evidence.layout import RunDir, read_json, write_json
from nsadiag.evidence.ring.blackbox import Kind

GOLDEN = Path(__file__).parents[1] / "golden"
EXPECTED = {
    "missing_rank_stuck_in_queue": ("local_lock_deadlock", "self.acknowledged.get()", 45),
    "missing_rank_uneven_batches": ("collective_order_mismatch", "dist.barrier()", 60),
    "rank_exited_early": ("rank_exited_early", "sys.exit(0)", 59),
}


def unpacked(name: str, folder: Path) -> RunDir:
    with tarfile.open(GOLDEN / f"nccl_{name}.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return RunDir(path=folder)


@pytest.fixture(params=sorted(EXPECTED))
def recorded(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, RunDir]:
    return request.param, unpacked(request.param, tmp_path)


def test_a_rank_that_spins_in_a_collective_does_not_pass_for_a_busy_one(recorded: tuple[str, RunDir]) -> None:
    _, run = recorded
    look = read_json(run.watch)["looks"][-1]
    alive = [r for r in run.ranks() if r.capture(look["second"]).proc.exists()]
    moved = motions(alive, (look["first"], look["second"]), {}, {0, 1})
    assert max(m.cpu_share for m in moved) > 0.9
    assert judge(moved)[0] == "still"


def test_the_verdict_names_the_rank_and_the_line(recorded: tuple[str, RunDir]) -> None:
    name, run = recorded
    cls, _code, line = EXPECTED[name]
    verdict = judge_directory(run.path)
    assert (verdict.outcome, verdict.cls, verdict.guilty_ranks) == ("hung", cls, (1,))
    assert verdict.where is not None
    assert (Path(verdict.where.file or "").name, verdict.where.line) == (f"{name}.py", line)


def test_the_dead_are_waited_for_too(tmp_path: Path) -> None:
    run = unpacked("rank_exited_early", tmp_path)
    look = read_json(run.watch)["looks"][-1]
    alive = [r for r in run.ranks() if r.capture(look["second"]).proc.exists()]
    assert [r.rank for r in alive] == [0]
    (only,) = motions(alive, (look["first"], look["second"]), {}, {0, 1})
    assert only.waits_for_peers


# Broadcasts from two roots that only "started" tells from work; two groups in two orders; the first collective of a
# group, which no recorder has; an exchange that NCCL completes with rubbish; a barrier that is over for a host which holds an exception back; transfers whose host is at `.item()`, or loads a kernel, and has ended them all.
KEPT = (
    "collective_args_mismatch_broadcast_source",
    "collective_args_mismatch_expert_splits",
    "collective_order_mismatch_two_groups",
    "ddp_unused_parameter_last_batch",
    "divergent_module_execution_experts",
    "divergent_module_execution_layer_drop",
    "local_lock_deadlock_heartbeat",
    "p2p_mismatch_both_send_first",
    "p2p_mismatch_empty_micro_batch",
    "p2p_mismatch_group_rank",
    "p2p_mismatch_micro_batches",
    "process_group_mismatch_monitor_group",
    "rank_exception_finally_barrier",
    "uneven_inputs_iterable",
)


@pytest.mark.parametrize("name", KEPT)
def test_what_the_host_has_left_behind_is_judged_by_what_the_device_has_done(
    name: str, tmp_path: Path
) -> None:
    promise = next(p for p in promises() if p.name == name)
    verdict = judge_directory(unpacked(name, tmp_path).path).to_json()
    assert missed(promise, verdict) == [], verdict["summary"]


# Under NCCL init_process_group asks nobody: whoever never meets spins in the first call, which no recorder has.
NEVER_MET = {
    "launch_plan": ("rendezvous_mismatch", (0, 1)),  # they plan for four, two were started
    "shared_file_init": ("rendezvous_mismatch", (1,)),  # each has a file of its own
    "mesh_layout": ("collective_order_mismatch", (0, 1)),  # groups, made in another order, have other names
}


@pytest.mark.parametrize("name", sorted(NEVER_MET))
def test_ranks_that_spin_in_their_first_call_have_never_met(name: str, tmp_path: Path) -> None:
    run = unpacked(name, tmp_path)
    watched = read_json(run.watch)
    look = watched["looks"][-1]
    ranks, pair = list(run.ranks()), (look["first"], look["second"])
    # A communicator takes its time to make, so that they are busy at first.
    assert judge(motions(ranks, pair, {}, {0, 1}, quiet_s=60))[0] == "busy"
    moved = motions(ranks, pair, {}, {0, 1}, quiet_s=look["motions"][0]["silent_s"])
    look |= {"judgement": judge(moved)[0], "motions": [dataclasses.asdict(each) for each in moved]}
    assert look["judgement"] == "still"
    write_json(run.watch, {**watched, "stopped": "hang"})  # they were recorded before this was judged so
    verdict = judge_directory(run.path)
    assert (verdict.outcome, verdict.cls, verdict.guilty_ranks) == ("hung", *NEVER_MET[name])


def test_a_call_in_a_group_of_its_own_is_no_divergence_of_the_others(tmp_path: Path) -> None:
    """Rank 0 alone created and used one, so that the next, of both, has another name there: NCCL gives up in it."""
    verdict = judge_directory(unpacked("eval_team", tmp_path).path)
    assert (verdict.outcome, verdict.cls, verdict.guilty_ranks) == ("crashed", "process_group_mismatch", (0,))
    assert verdict.where is not None
    assert (verdict.where.line, verdict.stands_at and verdict.stands_at.line) == (17, 51)


def test_each_backend_of_a_group_numbers_its_own_calls(tmp_path: Path) -> None:
    """The first barrier, which gloo does for the host, and the first all_gather, of NCCL, are no disagreement."""
    run = unpacked("two_backends", tmp_path)
    verdict = judge_directory(run.path)
    assert (verdict.cls, verdict.guilty_ranks) == ("missing_rank", (0,))
    assert "barrier #1 of default_pg (gloo)" in verdict.summary
    records = [read_json(rank.captures()[-1].flight_recorder) for rank in run.ranks()]
    assert [issued(record) for record in records] == [
        {("0", "nccl"): 15},
        {("0", "nccl"): 15, ("0", "gloo"): 1},
    ]


def test_the_threads_of_a_gpus_backward_are_no_other_threads_of_the_job(tmp_path: Path) -> None:
    """FSDP2 gathers from them while the main thread waits in backward; rank 1 left out a layer."""
    case = Case(cell=load_cell(unpacked("confident_lm", tmp_path).path))
    for rank in case.cell.ranks:
        recorded = {span.thread for span in case.call_spans[rank.rank]}
        assert len(recorded) == 2 and len(autograd_threads(rank) & recorded) == 1
        newest = case.asked[case.asked["rank"] == rank.rank].thread.tolist()[-50:]
        assert {*newest} == recorded - autograd_threads(rank)
    verdict = judge_directory(tmp_path)
    assert (verdict.outcome, verdict.cls) == ("hung", "collective_order_mismatch")
    assert "nothing shows which of ranks 0, 1 is at fault" in verdict.summary


def test_what_autograd_calls_outside_of_any_backward_is_its_own() -> None:
    def span(thread: int, begin_s: float, end_s: float | None) -> Span:
        return Span(0, thread, Kind.BACKWARD, "", "", 0, begin_s, end_s, "", "", 0, 0)

    thread_of = callers({7}, [span(1, 1.0, 2.0), span(2, 3.0, None)])
    called = [span(7, 0.5, 0.6), span(7, 1.5, 1.6), span(7, 2.5, 2.6), span(7, 9.0, None), span(5, 1.5, 1.6)]
    assert [thread_of(each) for each in called] == [7, 1, 7, 2, 5]


def test_on_which_gpu_a_rank_is_does_not_make_its_calls_differ(tmp_path: Path) -> None:
    """Both order groups and roots by what they saw; `torch.device("cuda", LOCAL_RANK)` differs by right."""
    for name in ("collective_args_mismatch_broadcast_source", "collective_order_mismatch_two_groups"):
        because = judge_directory(unpacked(name, tmp_path / name).path).because
        assert because is None or "device" not in (because.code or "")


def test_of_thousands_making_a_communicator_takes_longer(tmp_path: Path) -> None:
    run = unpacked("launch_plan", tmp_path)
    look = read_json(run.watch)["looks"][-1]
    (stance, _) = stances(list(run.ranks()), (look["first"], look["second"]), {})
    for world, long_s in ((2, 121), (4096, 325)):
        found = [dataclasses.replace(stance, rank=rank) for rank in range(world)]
        assert connecting(found, set(range(world)), long_s) == set(range(world))
        assert not connecting(found, set(range(world)), long_s - 5)
        # One that has a call on record, or uses its GPU, or is elsewhere.
        assert stance.motion is not None
        at_work = dataclasses.replace(stance.motion, gpu_pct=100.0)
        for other in ({"records_none": False}, {"inside": None}, {"inside": "barrier"}, {"motion": at_work}):
            assert not connecting(
                [*found[1:], dataclasses.replace(found[0], **other)], set(range(world)), long_s
            )


def test_sends_receives_and_batches_of_them_are_no_numbered_collectives() -> None:
    def entry(name: str, op: int, *, p2p: bool = False, state: str = "scheduled") -> dict[str, object]:
        about = {"process_group": ["0", "default_pg"], "op_id": op, "is_p2p": p2p, "state": state}
        return {**about, "profiling_name": f"nccl:{name}", "retired": state == "completed"}

    parts = [entry("send 0->1", 4, p2p=True), entry("recv 0<-1", 4, p2p=True)]
    entries = [entry("all_reduce", 3), *parts, entry("coalesced", 4, state="completed")]
    assert recorder.transfers({"entries": entries}) == {1, 2, 3}
    # Of a batch that is over no part is pending, whatever its own state says.
    assert recorder.pending(recorder.settled({"entries": entries})) == entries[:1]


def test_all_parts_of_a_batch_of_transfers_are_in_its_state() -> None:
    """torch 2.11: the batch has the number of its last part, and all of them have one number of transfers."""

    def entry(name: str, op: int, number: int, state: str) -> dict[str, object]:
        about = {"process_group": ["0", "stages"], "op_id": op, "p2p_seq_id": number, "state": state}
        return {
            **about,
            "profiling_name": f"nccl:{name}",
            "is_p2p": name != "coalesced",
            "retired": state == "completed",
        }

    over = [entry("send 0->1", 1, 1, "scheduled"), entry("recv 0<-1", 2, 1, "scheduled")]
    open_ = [entry("send 0->1", 3, 2, "scheduled"), entry("recv 0<-1", 4, 2, "scheduled")]
    batches = [entry("coalesced", 2, 1, "completed"), entry("coalesced", 4, 2, "started")]
    dump = {"entries": [*over, batches[0], *open_, batches[1]]}
    left = recorder.pending(recorder.settled(dump))
    assert [(e["op_id"], e["state"]) for e in left] == [(3, "started"), (4, "started")]


def test_a_failed_kernel_that_the_watchdog_met_first_is_the_exception_of_that_rank(tmp_path: Path) -> None:
    """C++ ended the process with the words of the error; Python raised nothing."""
    verdict = judge_directory(unpacked("rank_exception_skipped_batch", tmp_path).path)
    assert (verdict.outcome, verdict.cls, verdict.guilty_ranks) == ("crashed", "rank_exception", (1,))
    assert str(verdict.evidence[0].source).startswith("ranks/00001/stderr.log")
    assert "index out of bounds" in verdict.summary
