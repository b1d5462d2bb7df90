"""The process that looks on while a job runs under `with nsadiag.watch(model):`; started by its ranks."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any, Literal, cast

from nsadiag.agent import interrupts
from nsadiag.agent.job import scratch
from nsadiag.agent.processes import Process
from nsadiag.agent.watching.state import WatchOptions
from nsadiag.agent.watching.unlaunched import UnlaunchedJob, UnlaunchedWatch
from nsadiag.commands import output, runs
from nsadiag.commands.messages import notify
from nsadiag.commands.messages.notices import Lines
from nsadiag.commands.run import answer_first, judge_and_report, load_analysis
from nsadiag.errors import UsageError
from nsadiag.evidence.layout import RunDir
from nsadiag.evidence.secrets.masking import mask_command
from nsadiag.printing import note

NOTIFY = "NSADIAG_NOTIFY"
KERNELS = ("ipykernel_launcher", "colab_kernel_launcher")


def look_on(
    run: RunDir, job: UnlaunchedJob, expected: int, began_ns: int, options: WatchOptions, argv: list[str]
) -> None:
    """Until the ranks are done, dead or stuck; then the verdict, the reports, and a line on stderr."""
    about: dict[str, Any] = {
        "kind": "run",
        "name": Path(argv[0]).stem if argv else "watch",
        "command": ["python", *mask_command(argv)],
        "started_at": output.now(),
    }
    if run.path.parent.name == runs.FOLDER.name:
        runs.enter(run.path)
    output.write_run(run, **about)
    # What is printed late in a notebook lands below another cell: who wants the verdict there asks for it.
    in_notebook = bool(argv) and Path(argv[0]).stem in KERNELS
    notifier = _notifier(run, str(about["name"]))
    lines = Lines(notifier.tell if notifier else None, silent=in_notebook)
    watch = UnlaunchedWatch(
        job, run, options, on_silence=load_analysis, on_stuck=lambda: answer_first(run), notices=lines
    )
    watch.expected = expected
    watch.count_from(began_ns)
    with interrupts.held_off():
        watch.run()
    verdict = judge_and_report(run, about)
    if notifier:
        notifier.verdict(verdict)
    if not watch.left_running:
        shutil.rmtree(job.socket_dir, ignore_errors=True)
    if in_notebook:
        return
    words = f"{verdict.outcome}: {verdict.summary}" if verdict.outcome != "healthy" else "healthy"
    note(f"nsadiag: {words}\nnsadiag: report in {run.path}")


def _notifier(run: RunDir, name: str) -> notify.Notifier | None:
    """The targets in the environment; one that cannot be notified costs a line, and not the watch."""
    targets = notify.targets_in(os.environ.get(NOTIFY, ""))
    if not targets:
        return None
    try:
        notify.check(targets)
    except UsageError as error:
        note(f"nsadiag: {NOTIFY}: {error.message}")
        return None
    return notify.Notifier(targets=targets, run=run, name=name)


def main(
    directory: str,
    sockets: str,
    run_id: str,
    expected: str,
    began_ns: str,
    on_hang: str,
    stall_after: str,
    patience: str,
    *argv: str,
) -> None:
    """Entry point of the process that `nsadiag.worker.inline` starts."""
    interrupts.listen()
    options = WatchOptions(
        on_hang=cast(Literal["leave", "stop"], on_hang),
        stall_after_s=None if stall_after == "auto" else float(stall_after),
        patience_s=None if patience == "auto" else float(patience),
    )
    scratch.adopt(Path(sockets))
    # A hang that is left as it is outlives us, with its sockets.
    scratch.add_owner(Path(sockets), Process(*map(int, run_id.split("-"))))
    job = UnlaunchedJob(socket_dir=Path(sockets), run_id=run_id)
    look_on(RunDir(path=Path(directory)), job, int(expected), int(began_ns), options, list(argv))
