"""Run directories and matrices made from verdicts, for tests of what is shown of them."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

from support.recordings.golden import archive_of, unpack

from nsadiag.analysis.verdict import judge_directory
from nsadiag.evidence.layout import write_json
from nsadiag.evidence.records import (
    Collective,
    Evidence,
    Place,
    Progress,
    Rejected,
    Times,
    Verdict,
    Where,
)
from nsadiag.reports import RunReport, load_report

LOCKED = "local_lock_deadlock_dropped_record"


def judged(name: str, folder: Path) -> RunReport:
    """The report on a recording, with its verdict in it."""
    run = unpack(archive_of(name), folder)
    write_json(run.verdict, judge_directory(run.path).to_json())
    return of(run.path)


def of(directory: Path) -> RunReport:
    report = load_report(directory)
    assert isinstance(report, RunReport)
    return report


HUNG = Verdict(
    outcome="hung",
    cls="rank_conditional_collective",
    confidence=0.95,
    summary="Rank 1 skipped all_reduce #17 because of `if rank == 0` and went on to the next step; "
    "rank 0 waits for it.",
    guilty_ranks=(1,),
    blocked_ranks=(0,),
    world_size=2,
    where=Where(
        file="examples/train.py",
        line=41,
        function="train",
        code="    if rank == 0: dist.all_reduce(loss)",
        collective=Collective(op="all_reduce", group="default_pg", seq=17, sizes=[[1024]], dtypes=["Float"]),
        parameter="blocks.3.mlp.fc2.weight",
        module="blocks.3.mlp.fc2",
        bucket=2,
        step=5,
        phase="backward",
    ),
    peers_at=Place(file="examples/train.py", line=44, function="train", code="loss.backward()"),
    progress=Progress(steps_done=4),
    evidence=(
        Evidence(
            claim="rank 1 never issued all_reduce #17 of default_pg; its last is 16",
            source="ranks/00001/captures/01/fr.json#entries[16]",
        ),
        Evidence(
            claim="rank 0 stands in all_reduce #17 in both captures, 4.1 s apart",
            source="ranks/00000/captures/02/py_spy.json#MainThread",
        ),
    ),
    rejected=(Rejected(cls="straggler_rank", because="no rank made progress between two captures"),),
    gaps=("no native stacks: ptrace not permitted",),
    fix="Call all_reduce on every rank, or on none: move it out of the branch on rank.",
    next="nsadiag run --probes full -- torchrun --nproc-per-node 2 examples/train.py",
    times=Times(onset_s=3.1, detected_s=9.0, verdict_s=11.2),
)


CRASHED = replace(
    HUNG,
    outcome="crashed",
    cls="rank_exception",
    summary="Rank 1 raised ValueError: loss is NaN.",
    peers_at=None,
    gaps=(),
)


HEALTHY = Verdict(
    outcome="healthy",
    cls="healthy",
    confidence=1.0,
    summary="All 2 ranks finished 20 steps.",
    guilty_ranks=(),
    blocked_ranks=(),
    world_size=2,
    where=None,
    peers_at=None,
    progress=Progress(steps_done=20, rate_per_s=8.1),
    evidence=(Evidence(claim="both ranks ended with exit 0", source="ends.json"),),
    rejected=(),
    gaps=(),
    fix=None,
    next=None,
    times=Times(verdict_s=6.0),
)


NASTY = "<script>alert(1)</script> a|b `tick` **bold** \x1b[31mred\x1b[0m ~~x~~ [l](javascript:1) $x$"


AXES = {
    "layers": ("1", "2", "4", "5"),
    "checkpointing": ("none", "reentrant", "non_reentrant"),
    "parallel": ("single", "ddp", "fsdp2"),
}


def make_run(directory: Path, verdict: Verdict | None, **changes: Any) -> Path:
    """A run directory as the runner leaves it, two ranks and their captures included."""
    for rank in (0, 1):
        captures = directory / "ranks" / f"{rank:05d}" / "captures"
        for capture in ("01", "02"):
            (captures / capture).mkdir(parents=True)
            for name in ("fr.json", "py_spy.json"):
                (captures / capture / name).write_text("{}")
        log = directory / "ranks" / f"{rank:05d}" / "stderr.log"
        log.write_text('Traceback (most recent call last):\n  File "train.py", line 41\nValueError: NaN\n')
    document = {
        "schema_version": 1,
        "kind": "run",
        "name": "train-demo",
        "command": ["torchrun", "--nproc-per-node", "2", "examples/train.py", "--name", "two words"],
        "started_at": "2026-03-01T03:04:05+00:00",
        "ended_at": "2026-03-01T03:04:17Z",
        "host": "gpu-07",
        "versions": {"nsadiag": "0.1.0", "python": "3.11.7", "torch": "2.13.0"},
        "environment": {"OMP_NUM_THREADS": "1", "WANDB_API_KEY": "***"},
        "exit_code": 1,
        "world_size": 2,
        **changes,
    }
    write_json(directory / "run.json", document)
    ends = {"0": {"exit_code": None, "signal": 15, "t_s": 11.4, "how": "ended by nsadiag"}}
    write_json(directory / "ends.json", {**ends, "1": {"exit_code": 1, "signal": None, "t_s": 9.1}})
    if verdict:
        write_json(directory / "verdict.json", verdict.to_json())
    return directory


def make_matrix(directory: Path, failing: dict[str, Verdict | None] | None = None) -> Path:
    """The quick matrix's 36 cells; those in `failing` have that verdict instead of a healthy one."""
    cells = []
    for labels in itertools.product(*AXES.values()):
        factors = dict(zip(AXES, labels, strict=True))
        cell_id = ",".join(f"{name}={label}" for name, label in factors.items())
        verdict = (failing or {}).get(cell_id, HEALTHY)
        make_run(directory / "cells" / cell_id, verdict)
        cells.append(make_cell(cell_id, factors, verdict))
    matrix = {
        "schema_version": 1,
        "name": "nsa-quick",
        "command": ["python", "-m", "nsa.train", "tiny.yaml"],
        "axes": [{"name": name, "values": list(values)} for name, values in AXES.items()],
        "cells": cells,
        "totals": {"cells": 36, "healthy": 36, "findings": 0, "wall_s": 98.4},
        "machine": {"cpus": 2, "gpus": 0},
    }
    write_json(directory / "matrix.json", matrix)
    run = {
        "kind": "matrix",
        "name": "nsa-quick",
        "command": ["nsadiag", "matrix"],
        "versions": {"torch": "2.13"},
    }
    write_json(directory / "run.json", {**run, "started_at": "2026-03-01T03:04:05+00:00"})
    return directory


def make_cell(cell_id: str, factors: dict[str, str], verdict: Verdict | None) -> dict[str, Any]:
    layers = int(factors["layers"])
    step = 0.004 + layers * {"single": 0.006, "ddp": 0.009, "fsdp2": 0.0125}[factors["parallel"]]
    step *= {"none": 1.0, "reentrant": 1.35, "non_reentrant": 1.3}[factors["checkpointing"]]
    return {
        "id": cell_id,
        "factors": factors,
        "world_size": 1 if factors["parallel"] == "single" else 2,
        "state": "done",
        "wall_s": 1.2 + 20 * step,
        "launch": "warm",
        "costs": {
            "step_s_median": step,
            "steps": 5,
            "peak_rss_mib": 410.0 + 30 * layers,
            "forward_s_median": 0.3 * step,
            "backward_s_median": 0.6 * step,
            "compute_s_mean": 0.7 * step,
            "peers_s_mean": 0.2 * step,
            "input_s_mean": 0.0,
            "saving_s_mean": 0.0,
            "rest_s_mean": 0.1 * step,
        },
        "verdict": verdict.to_json() if verdict else None,
    }


def cell_id(layers: int, checkpointing: str, parallel: str) -> str:
    return f"layers={layers},checkpointing={checkpointing},parallel={parallel}"


FAILING: dict[str, Verdict | None] = {
    cell_id(4, "none", "ddp"): HUNG,
    cell_id(5, "none", "ddp"): HUNG,
    cell_id(5, "reentrant", "ddp"): CRASHED,
}
