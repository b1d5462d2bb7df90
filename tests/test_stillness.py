"""When is a job still? The rules on what two captures show, at the edges that real machines have."""

from __future__ import annotations

import dataclasses

from nsadiag.agent.sampler import where_it_works
from nsadiag.agent.stillness import Motion, judge

WAITING = Motion(
    rank=0, seconds=3.0, cpu_share=0.003, frames_changed=False, io_bytes=1200, events=0, collectives=0, waits_for_peers=True
)  # fmt: skip
IDLE = dataclasses.replace(WAITING, rank=1, waits_for_peers=False)


def judged(**changes: object) -> str:
    """The judgement on a rank that waits for a peer, and that peer with these changes."""
    return judge([WAITING, dataclasses.replace(IDLE, **changes)])[0]  # type: ignore[arg-type]


def test_nothing_moves_on_a_job_whose_ranks_all_wait() -> None:
    assert judged() == "still"


def test_a_rank_that_computes_on_a_crowded_machine_is_busy_on_a_small_share_of_a_cpu() -> None:
    assert judged(cpu_share=0.3) == "busy"
    assert judged(cpu_share=0.06) == "busy"


def test_a_rank_that_wants_a_cpu_and_gets_none_is_busy() -> None:
    assert judged(cpu_share=0.0, runnable=True) == "busy"


def test_a_rank_that_polls_in_short_naps_is_still() -> None:
    assert judged(cpu_share=0.015, frames_changed=True, wakes_in_s=0.2) == "still"


def test_a_rank_in_a_sleep_that_ends_is_asleep_and_one_that_sleeps_for_hours_is_still() -> None:
    assert judged(wakes_in_s=12.0) == "asleep"
    assert judged(wakes_in_s=7200.0) == "still"


def test_a_rank_that_spins_in_a_collective_does_not_count_as_busy() -> None:
    spinning = dataclasses.replace(WAITING, cpu_share=1.0)
    assert judge([spinning, IDLE])[0] == "still"


def test_reading_a_file_counts_as_work() -> None:
    assert judged(io_bytes=10_000_000) == "busy"


def test_any_event_on_any_rank_is_progress() -> None:
    assert judged(events=1) == "progress"
    assert judged(collectives=1) == "progress"


def thread(name: str | None, *frames: str) -> dict[str, object]:
    return {"thread_name": name, "frames": [{"name": frame} for frame in frames]}


def test_a_hook_that_runs_on_autograds_thread_is_where_the_rank_works() -> None:
    main = thread("MainThread", "_engine_run_backward", "backward", "main")
    own = thread("uploader", "wait", "_upload", "run", "_bootstrap_inner", "_bootstrap")
    hook = thread(None, "histogram", "<lambda>")
    names = [frame["name"] for frame in where_it_works([main, own, hook])]
    assert names == ["histogram", "<lambda>", "_engine_run_backward", "backward", "main"]
    assert where_it_works([main, own]) == main["frames"]
    elsewhere = thread("MainThread", "forward", "main")
    assert where_it_works([elsewhere, hook]) == elsewhere["frames"]
    assert where_it_works([hook]) == []
