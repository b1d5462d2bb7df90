"""The job goes on, and ends as it would have, whatever becomes of the run directory and of the observer."""

import json
import signal
from pathlib import Path

import faults
import pytest
import syscalls

from nsadiag.agent import interrupts

pytestmark = [
    pytest.mark.skipif(
        not syscalls.is_possible(), reason="system calls are supervised on Linux 5.5 and x86-64 alone"
    ),
    pytest.mark.timeout(900),
]


@pytest.fixture(scope="module")
def unharmed(tmp_path_factory: pytest.TempPathFactory) -> faults.Fate:
    """The job as it ends where nothing fails."""
    fate = faults.fate_of(tmp_path_factory.mktemp("unharmed") / "run", faults.nothing)
    assert fate.exit_code == faults.EXIT_CODE and fate.result and not fate.left, fate
    return fate


@pytest.fixture(scope="module")
def concluded(tmp_path_factory: pytest.TempPathFactory) -> faults.Fate:
    """A job that is over at once."""
    where = tmp_path_factory.mktemp("concluded") / "run"
    return faults.fate_of(where, faults.nothing, job=faults.SHORT_JOB)


def expect_unharmed(fate: faults.Fate, unharmed: faults.Fate) -> None:
    assert fate.started, fate
    assert fate.result == unharmed.result, fate
    assert fate.exit_code == faults.EXIT_CODE, fate
    assert fate.left == 0, fate


@pytest.mark.parametrize(
    ("name", "from_nth"),
    [
        ("EIO", 3),
        pytest.param("ESTALE", 12, marks=pytest.mark.slow),
        pytest.param("ENOSPC", 12, marks=pytest.mark.slow),
    ],
)
def test_a_rank_whose_evidence_cannot_be_written_ends_as_ever(
    name: str, from_nth: int, unharmed: faults.Fate, tmp_path: Path
) -> None:
    expect_unharmed(
        faults.fate_of(tmp_path / "run", faults.failing(name, from_nth=from_nth, at_observer=False)), unharmed
    )


@pytest.mark.slow
def test_an_observer_that_can_write_nothing_passes_the_exit_code_on(
    unharmed: faults.Fate, tmp_path: Path
) -> None:
    make = faults.failing("ENOSPC", from_nth=40, at_observer=True)
    expect_unharmed(faults.fate_of(tmp_path / "run", make), unharmed)


@pytest.mark.slow
@pytest.mark.parametrize(
    "at_observer",
    [
        pytest.param(False, id="rank"),
        pytest.param(True, id="observer"),
    ],
)
@pytest.mark.parametrize("from_nth", [0, 1, 2, 5, 10, 20, 40])
@pytest.mark.parametrize("name", faults.ERRNOS)
def test_each_errno_at_each_write(
    name: str, from_nth: int, at_observer: bool, unharmed: faults.Fate, tmp_path: Path
) -> None:
    fate = faults.fate_of(tmp_path / "run", faults.failing(name, from_nth=from_nth, at_observer=at_observer))
    if not fate.started:
        # An observer that cannot make its directory at all says so before anything is started.
        assert at_observer and fate.exit_code == 3, fate
        return
    expect_unharmed(fate, unharmed)


@pytest.mark.slow
@pytest.mark.parametrize("from_nth", [4, 12])
def test_a_rank_waits_for_a_file_system_that_hangs_and_goes_on_with_it(
    from_nth: int, unharmed: faults.Fate, tmp_path: Path
) -> None:
    fate = faults.fate_of(tmp_path / "run", faults.frozen(from_nth=from_nth, at_observer=False))
    # By design (docs/harmless.md): what it prints goes there too, and would have to wait for any file.
    assert fate.stderr.startswith("released"), fate
    expect_unharmed(fate, unharmed)


@pytest.mark.parametrize("share", [0.6])
def test_the_job_outlives_an_observer_that_is_killed(
    share: float, unharmed: faults.Fate, tmp_path: Path
) -> None:
    expect_outlived(share, unharmed, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("share", [n / 40 for n in range(1, 40)])
def test_the_job_outlives_an_observer_that_is_killed_at_any_system_call(
    share: float, unharmed: faults.Fate, tmp_path: Path
) -> None:
    expect_outlived(share, unharmed, tmp_path)


def expect_outlived(share: float, unharmed: faults.Fate, tmp_path: Path) -> None:
    fate = faults.fate_of(tmp_path / "run", faults.killed_observer(int(unharmed.calls * share)))
    assert fate.left == 0, fate
    if fate.started:
        assert fate.result == unharmed.result, fate


# The first is before the watch has seen that the job is over.
SHARES = [0.0, *(pytest.param(share, marks=pytest.mark.slow) for share in (0.2, 0.5, 0.8)), 0.97]


@pytest.mark.parametrize("share", SHARES)
def test_a_signal_after_the_job_has_ended_costs_neither_exit_code_nor_verdict(
    share: float, concluded: faults.Fate, tmp_path: Path
) -> None:
    expect_concluded([share], signal.SIGTERM, concluded, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("number", interrupts.HEARD, ids=lambda number: number.name)
@pytest.mark.parametrize("share", [n / 40 for n in range(41)])
def test_a_signal_at_any_system_call_after_the_job_has_ended_costs_neither(
    number: int, share: float, concluded: faults.Fate, tmp_path: Path
) -> None:
    expect_concluded([share], number, concluded, tmp_path)


@pytest.mark.parametrize("share", [0.3, *(pytest.param(n / 10, marks=pytest.mark.slow) for n in range(10))])
def test_nor_does_a_second_one(share: float, concluded: faults.Fate, tmp_path: Path) -> None:
    expect_concluded([share, (share + 1) / 2], signal.SIGINT, concluded, tmp_path)


def expect_concluded(shares: list[float], number: int, concluded: faults.Fate, tmp_path: Path) -> None:
    nths = [max(int(concluded.calls_after * share), 1) for share in shares]
    fate = faults.fate_of(tmp_path / "run", faults.signalled_observer(number, *nths), job=faults.SHORT_JOB)
    expect_unharmed(fate, concluded)
    assert not [word for word in ("Traceback", "interrupted", "stopping") if word in fate.stderr], fate
    verdict = json.loads((tmp_path / "run/out/verdict.json").read_text())
    assert verdict["outcome"] == "crashed", verdict
    assert "at work" in fate.stdout and verdict["summary"] in fate.stdout, fate
