"""How long a silence may last: the clock of the watch, with the moments given."""

from __future__ import annotations

import itertools
import os

import pytest

from nsadiag.agent.stillness.patience import (
    LOOK_AGAIN_S,
    MIN_STALL_S,
    MIN_SUSPICION_S,
    MOST_CROWDED,
    Patience,
    crowding,
)


def trained(pauses: list[float], fixed_s: float | None = None) -> tuple[Patience, float]:
    """A job's clock after events with these pauses between them, and the moment of the last."""
    patience, now = Patience(fixed_s, 0.0), 0.0
    patience.progress(now, settled=False)
    for pause in pauses:
        now += pause
        patience.progress(now, settled=True)
    return patience, now


def test_a_fast_job_is_looked_at_after_five_seconds_of_silence() -> None:
    patience, now = trained([0.1] * 100)
    assert not patience.due(now + MIN_STALL_S - 0.1)
    assert patience.due(now + MIN_STALL_S + 0.1)


def test_a_job_with_long_pauses_gets_three_times_the_longest() -> None:
    patience, now = trained([0.1, 8.0, 0.1])
    assert not patience.due(now + 23.9)
    assert patience.due(now + 24.1)


def test_the_first_steps_teach_nothing() -> None:
    patience = Patience(None, 0.0)
    patience.progress(90.0, settled=False)
    assert patience.limit_s() == MIN_STALL_S


def test_a_pause_full_of_work_does_not_make_the_watch_more_patient() -> None:
    """An evaluation of a minute: afterwards a real silence is still found within seconds."""
    patience, now = trained([0.1] * 10)
    for second in range(60):
        patience.stir(now + second, now + second + 1, settled=True)
    patience.progress(now + 61, settled=True)
    assert patience.limit_s() == MIN_STALL_S


def test_looks_that_see_nothing_themselves_do_not_put_off_the_end() -> None:
    """One burst in a silence, and then nothing: each look at it is later, and none of them was work."""
    patience = Patience(None, 0.0)
    patience.progress(0.0, settled=False)
    patience.stir(4.0, 5.0, settled=False)
    for now in (7.0, 14.0):
        patience.stood_since(5.0)
        assert patience.idle_s(now) < patience.limit_s() == 12.0
        patience.looked("busy", now, in_sight=now == 7.0)
    patience.stood_since(5.0)
    assert patience.idle_s(28.0) > patience.limit_s() == 12.0
    # A look that saw it work did, though, and what comes after it is a pause of its own.
    patience.looked("busy", 28.0, in_sight=False, saw_work=True)
    assert patience.idle_s(30.0) == 2.0 and patience.limit_s() > 60.0


def test_after_a_busy_look_the_end_of_the_work_starts_the_clock() -> None:
    patience, now = trained([0.1] * 10)
    for second in range(20):
        patience.stir(now + second, now + second + 1, settled=True)
        if second == 14:
            patience.looked("busy", now + 15)
            assert not patience.due(now + 15.1)
    assert not patience.due(now + 20 + MIN_STALL_S - 0.1)
    assert patience.due(now + 20 + MIN_STALL_S + 0.1)


def test_work_that_only_a_look_can_see_is_looked_at_again_and_again_but_not_all_the_time() -> None:
    patience, now = trained([0.1] * 10)
    moments, seconds = [], 0.0
    while seconds < 300:
        seconds += 0.1
        if patience.due(now + seconds):
            patience.looked("busy", now + seconds, in_sight=False, saw_work=True)
            moments.append(seconds)
    between = [b - a for a, b in itertools.pairwise(moments)]
    assert min(between) >= MIN_STALL_S and max(between) < LOOK_AGAIN_S + 0.3
    assert len(moments) < 14


def test_a_rank_that_spins_for_ever_is_looked_at_every_half_minute() -> None:
    patience, now = trained([0.1] * 10)
    patience.looked("busy", now + 100, in_sight=True)
    for second in range(130):
        patience.stir(now + second, now + second + 1, settled=True)
    assert patience.due(now + 100 + LOOK_AGAIN_S)


def test_a_sleeper_gets_the_time_it_asked_for() -> None:
    patience, now = trained([0.1] * 10)
    patience.looked("asleep", now + 6, nap_s=40.0)
    assert not patience.due(now + 50.9)
    assert patience.due(now + 51.1)


def test_a_trickle_in_bursts_has_a_rhythm_of_its_own() -> None:
    patience, now = trained([0.1] * 10)
    for burst in range(0, 40, 4):
        patience.stir(now + burst + 3, now + burst + 4, settled=True)
    patience.looked("busy", now + 40)
    assert not patience.due(now + 40 + 8.9)
    assert patience.due(now + 40 + 9.1)


def test_what_a_spinning_rank_used_is_taken_back() -> None:
    patience, now = trained([0.1] * 10)
    patience.stir(now + 8, now + 9, settled=False)
    patience.stood_since(now + 1)
    assert patience.idle_s(now + 9) == 8.0


def test_seconds_that_the_user_gave_are_kept() -> None:
    patience, now = trained([0.1, 60.0], fixed_s=2.0)
    assert patience.due(now + 2.1)


def test_what_jobs_of_its_kind_do_makes_the_watch_more_patient_and_never_less() -> None:
    slow_starter = Patience(None, 0.0, expected_s=20.0)
    assert slow_starter.limit_s() == 60.0
    assert Patience(None, 0.0, expected_s=0.1).limit_s() == MIN_STALL_S
    slow_starter.progress(1.0, settled=True)
    slow_starter.progress(31.0, settled=True)
    assert slow_starter.limit_s() == 90.0, "its own rhythm is longer"
    assert Patience(7.0, 0.0, expected_s=20.0).limit_s() == 7.0, "the user has said how long"


def test_pauses_of_the_start_are_known_but_are_not_the_jobs_rhythm() -> None:
    patience = Patience(None, 0.0)
    for moment in (30.0, 31.0, 43.0):
        patience.progress(moment, settled=False)
    assert patience.longest_start_s == 12.0, "what came before the first event is the launcher's"
    assert patience.longest_s == 0.0 and patience.limit_s() == MIN_STALL_S


def test_on_a_crowded_machine_the_least_patience_is_as_many_times_as_long() -> None:
    patience = Patience(None, 0.0, crowding=lambda: 3.0)
    assert patience.limit_s() == 3 * MIN_STALL_S
    patience.progress(0.0, settled=True)
    patience.progress(2.0, settled=True)
    assert patience.limit_s() == 3 * MIN_STALL_S, "its own rhythm was learnt on that machine as it is"
    patience.progress(12.0, settled=True)
    assert patience.limit_s() == 30.0
    assert Patience(4.0, 0.0, crowding=lambda: 3.0).limit_s() == 4.0, "the user has said how long"


def test_ranks_that_queue_for_no_cpu_are_not_waited_for_because_of_others() -> None:
    slowed = iter([None, 1.0, 2.0, 100.0])
    patience = Patience(None, 0.0, crowding=lambda: 6.0, slowed=lambda: next(slowed))
    assert [patience.limit_s() / MIN_STALL_S for _ in range(4)] == [6.0, 1.0, 2.0, MOST_CROWDED]
    assert patience.suspicion_s() == 6.0 * MIN_SUSPICION_S, (
        "what is only suspected gets the time that a crowded machine takes"
    )


def test_a_machine_is_crowded_from_two_runnable_threads_a_core_on(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = os.cpu_count() or 1
    for load, times in ((0.0, 1.0), (2.0, 1.0), (5.0, 2.5), (1000.0, MOST_CROWDED)):
        monkeypatch.setattr(os, "getloadavg", lambda load=load: (load * cores, 0.0, 0.0))
        assert crowding() == times
