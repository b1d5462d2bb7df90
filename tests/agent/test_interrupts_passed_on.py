"""Signals that are sent to nsadiag and are for the job in whose place it stands."""

from __future__ import annotations

import signal
import subprocess

from support.jobs import BIN, Jobs

TRAPS = (
    "trap 'echo usr1' USR1; trap 'echo usr2' USR2; trap 'echo winch' WINCH; "
    "echo ready; while [ ! -e over ]; do sleep 0.1; done; exit 37"
)


def started(jobs: Jobs, *job: str) -> subprocess.Popen[str]:
    line = [BIN / "nsadiag", "run", "--passthrough", "--out", "run", "--", *job]
    return subprocess.Popen(
        line, cwd=jobs.directory, env=jobs.environment(), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )  # fmt: skip


def test_what_a_scheduler_or_a_terminal_sends_reaches_the_command(cold_jobs: Jobs) -> None:
    nsadiag = started(cold_jobs, "sh", "-c", TRAPS)
    assert nsadiag.stdout is not None
    assert nsadiag.stdout.readline() == "ready\n"
    for number, said in ((signal.SIGUSR1, "usr1"), (signal.SIGWINCH, "winch"), (signal.SIGUSR2, "usr2")):
        nsadiag.send_signal(number)
        assert nsadiag.stdout.readline() == f"{said}\n"
    (cold_jobs.directory / "over").touch()
    assert nsadiag.communicate()[0] and nsadiag.returncode == 37


def test_a_command_without_a_handler_ends_by_it_and_has_a_verdict(cold_jobs: Jobs) -> None:
    nsadiag = started(cold_jobs, "sh", "-c", "echo ready; while :; do sleep 0.1; done")
    assert nsadiag.stdout is not None
    assert nsadiag.stdout.readline() == "ready\n"
    nsadiag.send_signal(signal.SIGUSR1)
    assert "CRASHED" in nsadiag.communicate()[0]
    assert nsadiag.returncode == 128 + signal.SIGUSR1
