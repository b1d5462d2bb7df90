"""A run in an experiment tracker: verdict, step times and peer waits by rank, and the page.

For use after the job: `log_to_wandb("artifacts/latest")`. All of them work without a network, in the tracker's offline mode.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nsadiag
from nsadiag.errors import UsageError
from nsadiag.evidence.layout import write_private
from nsadiag.integrations.watching import metrics_of
from nsadiag.reports.loaded import Run

PAGE = "report.html"


def summary_of(run: Run) -> dict[str, str]:
    """The verdict in words. Raises UsageError for a matrix and for a run without a verdict."""
    verdict = run.verdict
    if verdict is None:
        raise UsageError(f"{run.directory} has no verdict", "give the directory of a run that was judged")
    where = verdict.where
    at = f"{where.file}:{where.line}" if where and where.file else ""
    guilty = ",".join(map(str, verdict.guilty_ranks))
    said = {"outcome": verdict.outcome, "class": verdict.cls, "guilty_ranks": guilty, "at": at}
    return {**said, "summary": verdict.summary, "fix": verdict.fix or ""}


def curves_of(run: Run) -> Iterator[tuple[int, dict[str, float]]]:
    """For each step, the seconds that each rank took for it."""
    for step, rows in run.steps.groupby("step"):
        seconds = zip(rows["rank"].tolist(), rows["step_s"].tolist(), strict=True)
        values = {f"nsadiag/step_s/rank_{rank}": float(s) for rank, s in seconds if not math.isnan(s)}
        if values:
            yield int(str(step)), values


def log_to_wandb(directory: str | Path, run: Any = None) -> None:
    """Into `run`, or the current one, or a new one of the project `nsadiag`."""
    import wandb

    loaded = nsadiag.load(directory)
    said, numbers = summary_of(loaded), metrics_of(loaded.verdict)
    is_ours = run is None and wandb.run is None
    target = run or wandb.run or wandb.init(project="nsadiag", name=loaded.report.name)
    target.define_metric("nsadiag/step")
    target.define_metric("nsadiag/step_s/*", step_metric="nsadiag/step")
    for step, values in curves_of(loaded):
        target.log({"nsadiag/step": step, **values})
    target.summary.update({**{f"nsadiag/{key}": text for key, text in said.items()}, **numbers})
    artifact = wandb.Artifact("nsadiag-report", type="nsadiag")
    with _page(loaded) as page:
        artifact.add_file(str(page), name=PAGE)
        target.log_artifact(artifact)
    if is_ours:
        target.finish()


def log_to_mlflow(directory: str | Path) -> None:
    """Into the active run of MLflow, or a new one."""
    import mlflow

    loaded = nsadiag.load(directory)
    said, numbers = summary_of(loaded), metrics_of(loaded.verdict)
    is_ours = mlflow.active_run() is None
    if is_ours:
        mlflow.start_run(run_name=loaded.report.name)
    try:
        mlflow.set_tags({f"nsadiag.{key}": text for key, text in said.items()})
        mlflow.log_metrics(numbers)
        for step, values in curves_of(loaded):
            mlflow.log_metrics(values, step=step)
        with _page(loaded) as page:
            mlflow.log_artifact(str(page))
    finally:
        if is_ours:
            mlflow.end_run()


def log_to_tensorboard(directory: str | Path, writer: Any) -> None:
    """Into a `SummaryWriter`; the page lies beside its events."""
    loaded = nsadiag.load(directory)
    said, numbers = summary_of(loaded), metrics_of(loaded.verdict)
    writer.add_text("nsadiag", "\n\n".join(f"**{key}** {text}" for key, text in said.items() if text))
    for name, value in numbers.items():
        writer.add_scalar(name, value)
    for step, values in curves_of(loaded):
        for name, seconds in values.items():
            writer.add_scalar(name, seconds, step)
    writer.flush()
    write_private(Path(writer.log_dir) / f"nsadiag-{PAGE}", loaded.to_html())


@contextmanager
def _page(run: Run) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / PAGE
        page.write_text(run.to_html(), encoding="utf-8")
        yield page
