"""Ranks' models and replicas compared, kernels that ended a rank, handles nobody waited for: from evidence by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.findings import ranks

from nsadiag.agent.watching.oom import kernel_says
from nsadiag.analysis.load import load_cell
from nsadiag.analysis.relations.replica_sums import drift
from nsadiag.analysis.rules.setup.model_structure_mismatch import differences
from nsadiag.analysis.verdict import judge_directory
from nsadiag.evidence.layout import RunDir, append_json_line, make_private_dir, write_json

SAME = [["embed.weight", [10, 4], "torch.float32"], ["head.weight", [4, 10], "torch.float32"]]


def wrapped(run: RunDir, models: dict[int, list[list[Any]]]) -> None:
    for rank, parameters in models.items():
        row = {
            "wrapper": "DistributedDataParallel",
            "model": "Net",
            "place": "/home/me/train.py:9:main",
            "ranks": sorted(models),
        }
        write_json(run.rank(rank).wraps, [{**row, "parameters": parameters, "buffers": []}])


def test_equal_models_do_not_differ(tmp_path: Path) -> None:
    wrapped(ranks(tmp_path, 2), {0: SAME, 1: SAME})
    assert list(differences(load_cell(tmp_path))) == []


def test_the_minority_is_odd_wherever_it_stands(tmp_path: Path) -> None:
    wider = [["embed.weight", [12, 4], "torch.float32"], SAME[1]]
    wrapped(ranks(tmp_path, 3), {0: wider, 1: SAME, 2: SAME})
    (found,) = differences(load_cell(tmp_path))
    assert (found.odd, found.names) == ((0,), ("embed.weight",))
    assert found.says == "embed.weight is [12, 4] on rank 0 and [10, 4] on rank 1"


def test_of_two_the_first_rank_is_the_measure(tmp_path: Path) -> None:
    wrapped(ranks(tmp_path, 2), {0: SAME, 1: [*SAME, ["adapter.weight", [4, 4], "torch.float32"]]})
    (found,) = differences(load_cell(tmp_path))
    assert found.odd == (1,)
    assert found.says == "rank 1 has 3 instead of 2; only it has adapter.weight"


def test_another_order_is_a_difference_that_fails_nowhere(tmp_path: Path) -> None:
    heads = [[f"head.{name}.weight", [4, 4], "torch.float32"] for name in "abc"]
    wrapped(ranks(tmp_path, 2), {0: heads, 1: heads[::-1]})
    (found,) = differences(load_cell(tmp_path))
    assert found.order_only


def test_stages_of_a_pipeline_are_wrapped_by_other_groups_and_not_compared(tmp_path: Path) -> None:
    run = ranks(tmp_path, 2)
    wrapped(run, {0: SAME})
    wrapped(run, {1: SAME[:1]})
    assert list(differences(load_cell(tmp_path))) == []


def summed(run: RunDir, sums: dict[int, list[float]], shape: tuple[int, ...] = (4,)) -> None:
    for rank, values in sums.items():
        for step, value in enumerate(values):
            append_json_line(
                run.rank(rank).replicas,
                {"step": step, "elements": 4, "parameters": [["weight", list(shape), value, 8.0]]},
            )


def test_replicas_that_part_are_told_with_the_step(tmp_path: Path) -> None:
    summed(ranks(tmp_path, 3), {0: [1.0, 2.0], 1: [1.0, 2.0], 2: [1.0, 2.5]})
    found = drift(load_cell(tmp_path))
    assert found is not None
    assert (found.step, found.odd, found.from_start) == (1, (2,), False)


@pytest.mark.parametrize("last", [2.0, 2.0 + 1e-9])
def test_replicas_that_are_equal_have_not_parted(last: float, tmp_path: Path) -> None:
    summed(ranks(tmp_path, 2), {0: [1.0, 2.0], 1: [1.0, last]})
    assert drift(load_cell(tmp_path)) is None


def test_shards_of_other_shapes_are_no_replicas(tmp_path: Path) -> None:
    run = ranks(tmp_path, 2)
    summed(run, {0: [1.0]}, (4,))
    summed(run, {1: [2.0]}, (2, 2))
    assert drift(load_cell(tmp_path)) is None


@pytest.mark.parametrize(("left_by", "outcome"), [("_exit", "healthy"), (None, "unknown")])
def test_ranks_that_pass_their_exit_handlers_by_on_purpose_have_ended_well(
    left_by: str | None, outcome: str, tmp_path: Path
) -> None:
    run = ranks(tmp_path, 2)
    end = {"t_s": 5.0, "exit_code": 0, "signal": None, "by_us": False, "clean": False, "steps": 20}
    write_json(run.ends, {str(n): {"pid": 100 + n, **end} for n in (0, 1)})
    for n in (0, 1):
        if left_by:
            row = {
                "call": left_by,
                "arguments": "(0,)",
                "place": "/home/me/train.py:9:main",
                "handling": None,
            }
            write_json(run.rank(n).leaving, row)
    assert judge_directory(tmp_path).outcome == outcome


def test_parameters_of_one_name_are_told_apart_by_their_place(tmp_path: Path) -> None:
    """Parts of a model that are called by themselves: each calls its own `weight`."""
    run = ranks(tmp_path, 2)
    for rank in (0, 1):
        two = [["weight", [4], 1.0, 8.0], ["weight", [2, 2], 5.0, 8.0]]
        append_json_line(run.rank(rank).replicas, {"step": 0, "elements": 8, "parameters": two})
    assert drift(load_cell(tmp_path)) is None


def ended(run: RunDir, signals: dict[int, int | None]) -> None:
    ends = {
        str(rank): {
            "pid": 100 + rank, "t_s": 5.0 + rank, "exit_code": None if number else 0, "signal": number,
            "by_us": False, "clean": number is None, "steps": 4,
        }
        for rank, number in signals.items()
    }  # fmt: skip
    write_json(run.ends, ends)
    write_json(run.watch, {"started_mono_ns": 0, "ended_s": 9.0, "stopped": None, "looks": []})


def test_a_counter_that_grew_makes_it_the_hosts_memory(tmp_path: Path) -> None:
    run = ranks(tmp_path, 2)
    ended(run, {0: 9, 1: 15})
    node = make_private_dir(run.node("here"))
    grown = {"oom_kills_before": 0, "oom_kills": 1, "limit_bytes": 2**30}
    write_json(node / "oom.json", {"grown": [grown], "kernel": []})
    verdict = judge_directory(tmp_path)
    assert (verdict.cls, verdict.guilty_ranks) == ("host_oom", (0,))
    assert any("grew from 0 to 1" in e.claim for e in verdict.evidence)


def test_a_kill_without_a_counter_that_grew_is_a_kill(tmp_path: Path) -> None:
    run = ranks(tmp_path, 2)
    ended(run, {0: 9, 1: 15})
    write_json(make_private_dir(run.node("here")) / "oom.json", {"grown": [], "kernel": []})
    verdict = judge_directory(tmp_path)
    assert verdict.cls == "rank_killed"
    assert "host_oom" in {r.cls for r in verdict.rejected}


def test_a_term_that_came_first_of_all_is_a_cause(tmp_path: Path) -> None:
    ended(ranks(tmp_path, 2), {0: 15, 1: 15})
    assert (judge_directory(tmp_path).cls, judge_directory(tmp_path).guilty_ranks) == ("rank_killed", (0,))


def test_a_launcher_that_was_told_to_end_takes_all_ranks_with_it(tmp_path: Path) -> None:
    run = ranks(tmp_path, 2)
    ended(run, {0: 15, 1: 15})
    node = make_private_dir(run.node("here"))
    (node / "launcher.stderr.log").write_text(
        "Received Signals.SIGTERM death signal, shutting down workers\n"
    )
    verdict = judge_directory(tmp_path)
    assert verdict.guilty_ranks == (0, 1)
    assert "launcher received SIGTERM from outside" in verdict.summary


def test_the_kernels_log_is_read_for_our_processes_alone(tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    line = "3,900,1,-;Memory cgroup out of memory: Killed process {} (python) total-vm:1kB\n"
    log.write_text(line.format(4711) + line.format(4712) + "6,901,2,-;eth0: link up\n")
    assert [row["pid"] for row in kernel_says({4712}, log)] == [4712]
    assert kernel_says({4712}, tmp_path / "missing") == []


def unwaited(run: RunDir, rank: int, parameter: str | None, times: int) -> None:
    for number in range(times):
        append_json_line(
            run.rank(rank).unwaited,
            {
                "op": "all_reduce", "group": "default_pg", "number": number, "place": "/home/me/train.py:9:hook",
                "issued_step": 0, "step": 1, "dropped": True, "parameter": parameter,
            },
        )  # fmt: skip


def test_a_gradient_that_was_used_before_its_reduction_is_over_decides(tmp_path: Path) -> None:
    run = ranks(tmp_path, 2)
    ended(run, {0: None, 1: None})
    unwaited(run, 1, "head.weight", 1)
    verdict = json.loads(json.dumps(judge_directory(tmp_path).to_json()))
    assert (verdict["class"], verdict["outcome"]) == ("async_work_not_waited", "wrong")
    assert verdict["guilty_ranks"] == [1]
    assert verdict["where"]["parameter"] == "head.weight"


def test_one_dropped_handle_is_no_finding(tmp_path: Path) -> None:
    run = ranks(tmp_path, 2)
    ended(run, {0: None, 1: None})
    unwaited(run, 1, None, 1)
    assert judge_directory(tmp_path).cls == "healthy"
