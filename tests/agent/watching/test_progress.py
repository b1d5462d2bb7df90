"""Which events of a black box are progress."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nsadiag.agent.watching.progress import Progress
from nsadiag.evidence.ring.blackbox import BlackBox, Kind, Phase
from nsadiag.evidence.ring.reader import Pulse

Emit = Callable[..., None]


@pytest.fixture
def box(tmp_path: Path) -> Iterator[BlackBox]:
    yield BlackBox(tmp_path / "blackbox.bin", rank=0, world_size=2, capacity=64)


@pytest.fixture
def progress(box: BlackBox, tmp_path: Path) -> Progress:
    return Progress(Pulse(tmp_path / "blackbox.bin"), threading.get_native_id())


def beside(emit: Emit, *events: tuple[Kind, Phase]) -> None:
    """Writes events from another thread."""
    thread = threading.Thread(target=lambda: [emit(*event) for event in events])
    thread.start()
    thread.join()


def test_a_step_is_progress_and_silence_is_none(box: BlackBox, progress: Progress) -> None:
    assert not progress.advance()
    box.emit(Kind.STEP, Phase.POINT)
    assert progress.advance()
    assert not progress.advance()


def test_a_heartbeat_of_collectives_beside_the_training_is_none(box: BlackBox, progress: Progress) -> None:
    box.emit(Kind.STEP, Phase.POINT)
    progress.advance()
    beside(box.emit, (Kind.COLLECTIVE, Phase.BEGIN), (Kind.COLLECTIVE, Phase.END))
    assert not progress.advance()
    assert (progress.worked, progress.beside) == (1, 2)


def test_a_thread_that_trains_makes_progress_whichever_it_is(box: BlackBox, progress: Progress) -> None:
    beside(box.emit, (Kind.FORWARD, Phase.BEGIN), (Kind.COLLECTIVE, Phase.BEGIN))
    assert progress.advance()
    assert (progress.worked, progress.beside) == (2, 0)


def test_where_nobody_trains_whoever_calls_collectives_does_the_job(
    box: BlackBox, progress: Progress
) -> None:
    beside(box.emit, (Kind.COLLECTIVE, Phase.BEGIN))
    assert progress.advance()


def test_an_open_call_of_a_working_thread_is_known(box: BlackBox, progress: Progress) -> None:
    box.emit(Kind.COLLECTIVE, Phase.BEGIN)
    progress.advance()
    assert progress.in_collective
    box.emit(Kind.COLLECTIVE, Phase.END)
    progress.advance()
    assert not progress.in_collective


def test_a_ring_that_went_round_between_two_glances_is_no_obstacle(box: BlackBox, progress: Progress) -> None:
    for _ in range(1000):
        box.emit(Kind.GRADIENT, Phase.POINT)
    assert progress.advance()
    assert progress.sequence == 1000


def test_asking_an_empty_loader_again_and_again_is_none(box: BlackBox, progress: Progress) -> None:
    def fetch(*, ran_out: bool) -> None:
        box.emit(Kind.DATA, Phase.BEGIN, 1, 0, 0)
        box.emit(Kind.DATA, Phase.END, 1, 0, int(ran_out))

    fetch(ran_out=False)
    fetch(ran_out=True)  # an epoch is over
    assert progress.advance()
    for _ in range(5):
        fetch(ran_out=True)
    assert not progress.advance()
    assert progress.in_vain == 6
    fetch(ran_out=False)
    assert progress.advance() and progress.in_vain == 0
    fetch(ran_out=True)
    box.emit(Kind.STEP, Phase.POINT)
    fetch(ran_out=True)
    assert progress.advance() and progress.in_vain == 1
