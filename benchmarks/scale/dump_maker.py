"""Flight-recorder dumps as torch 2.13 writes them, of as many ranks as one likes, with one fault in them.

    python benchmarks/scale/dump_maker.py /tmp/dumps --ranks 64 --fault missing --tp 8

Each rank alternates between the default group and, with --tp, one of its tensor-parallel group.
"""

from __future__ import annotations

import argparse
import json
import pickle
import random
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

FAULTS = {
    # name: the verdict that is right
    "none": "healthy",
    "missing": "missing_rank",
    "straggle": "straggler_rank",
    "type": "collective_order_mismatch",
    "size": "collective_args_mismatch",
    "subpg": "missing_rank",
    "one_culprit": "collective_order_mismatch",
}
BEGAN_NS = 1_790_000_000_000_000_000
AFTER = 3  # collectives that a CPU issues beyond the one that hangs


@dataclass(frozen=True, kw_only=True)
class Job:
    """What the ranks did before they were dumped."""

    ranks: int
    entries: int = 2000
    fault: str = "missing"
    culprit: int = 7
    at: int | None = None  # entry at which it goes wrong
    tp: int = 0  # size of the tensor-parallel groups
    stacks: int = 40  # different lines of code that issue collectives
    skew: int = 0  # rings that wrapped: up to so many of the oldest entries are gone
    form: str = "pickle"
    prefix: str = "nccl_trace_rank_"
    torchcomms: bool = False  # as its recorder writes them

    @property
    def wrong_at(self) -> int:
        return self.entries - 20 if self.at is None else self.at


def write_dumps(folder: Path, job: Job, *, processes: int = 1) -> None:
    """One file a rank."""
    folder.mkdir(parents=True, exist_ok=True)
    if processes == 1:
        _write_ranks(folder, job, range(job.ranks))
        return
    shares = [range(first, job.ranks, processes) for first in range(processes)]
    with ProcessPoolExecutor(processes) as pool:
        list(pool.map(_write_ranks, [folder] * processes, [job] * processes, shares))


def _write_ranks(folder: Path, job: Job, ranks: range) -> None:
    stacks = [_stack(number) for number in range(job.stacks)]
    everyone = str(list(range(job.ranks)))
    for rank in ranks:
        path = folder / f"{job.prefix}{rank}"
        if job.form == "json":
            path.with_suffix(".json").write_text(json.dumps(_written(job, rank, stacks, everyone)))
        else:
            path.write_bytes(pickle.dumps(_written(job, rank, stacks, everyone), protocol=2))


def _written(job: Job, rank: int, stacks: list[Any], everyone: str) -> dict[str, Any]:
    dump = dump_of(job, rank, stacks, everyone)
    return as_torchcomms(dump, absent=0 if job.form == "json" else None) if job.torchcomms else dump


def as_torchcomms(dump: dict[str, Any], *, absent: int | None) -> dict[str, Any]:
    """The same of torchcomms: no stacks, no times of starts and ends, one count for all communicators; `retired` says what is over."""
    names = {"0": "world", **{name: f"tp{name}" for name in dump["pg_config"] if name != "0"}}
    config = {
        names[key]: {"name": names[key], "desc": "nccl", "ranks": group["ranks"].strip("[]").replace(" ", "")}
        for key, group in dump["pg_config"].items()
    }
    unknown = {
        "state": "scheduled",
        "time_discovered_started_ns": absent,
        "time_discovered_completed_ns": absent,
    }
    entries = [
        {
            **entry,
            **unknown,
            "process_group": (names[entry["process_group"][0]], "nccl"),
            "collective_seq_id": number,
        }
        for number, entry in enumerate(dump["entries"])
    ]
    for entry in entries:
        del entry["frames"]
    kept = {key: dump[key] for key in ("version", "comm_lib_version")}
    return {**kept, "pg_config": config, "pg_status": {}, "entries": entries}


def dump_of(job: Job, rank: int, stacks: list[Any], everyone: str) -> dict[str, Any]:
    """The dump of one rank."""
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": everyone}}
    tp_name = str(1 + rank // job.tp) if job.tp else ""
    if job.tp:
        first = rank // job.tp * job.tp
        mates = list(range(first, min(first + job.tp, job.ranks)))
        config[tp_name] = {"name": tp_name, "desc": "mesh_tp", "ranks": str(mates)}
    entries = list(_entries(job, rank, tp_name, stacks))
    if job.skew:
        entries = entries[random.Random(rank).randrange(job.skew + 1) :]
    return {
        "version": "2.10",
        "pg_config": config,
        "comm_lib_version": "2.27.5",
        "pg_status": {name: {"last_enqueued_collective": len(entries)} for name in config},
        "entries": entries,
        "nccl_comm_state": {},
        "rank": rank,
    }


def _stack(number: int) -> list[dict[str, Any]]:
    """Innermost first."""
    site = "/venv/lib/python3.12/site-packages/torch/distributed"
    inner = [
        {"name": "all_reduce", "filename": f"{site}/distributed_c10d.py", "line": 3252},
        {"name": "wrapper", "filename": f"{site}/c10d_logger.py", "line": 83},
    ]
    own = [
        {
            "name": f"stage_{number}_{depth}",
            "filename": f"/job/blocks_{number % 7}.py",
            "line": 10 * number + depth,
        }
        for depth in range(5)
    ]
    return [*inner, *own, {"name": "<module>", "filename": "/job/train.py", "line": 200 + number}]


def _entries(job: Job, rank: int, tp_name: str, stacks: list[Any]) -> Iterator[dict[str, Any]]:
    noise = random.Random(rank)
    numbers = {"0": 0, tp_name: 0}
    at, guilty = job.wrong_at, rank == job.culprit % job.ranks
    for index in range(job.entries):
        wrong = job.fault != "none" and index >= at
        if wrong and (index > at + AFTER or (guilty and job.fault in ("missing", "subpg"))):
            return
        group, description, size = ("0", "default_pg", job.ranks)
        if job.tp and index % 2:
            group, description, size = tp_name, "mesh_tp", job.tp
        op, given, got = _operation(index, size)
        if guilty and index == at and job.fault in ("type", "one_culprit"):
            op, given, got = "nccl:broadcast", [[7]], [[7]]
        elif guilty and index == at and job.fault == "size":
            given = [[given[0][0] + 1]]
        state = "completed"
        if wrong:
            late = job.fault == "straggle" and guilty
            state = "started" if index == at and not late else "scheduled"
        numbers[group] += 1
        created = BEGAN_NS + index * 1_000_000 + noise.randrange(20_000)
        over = state == "completed"
        yield {
            "frames": stacks[index % len(stacks)],
            "record_id": index,
            "pg_id": int(group),
            "process_group": (group, description),
            "thread_name": "python3",
            "thread_id": "139957939506048",
            "collective_seq_id": numbers[group],
            "p2p_seq_id": 0,
            "op_id": index + 1,
            "profiling_name": op,
            "time_created_ns": created,
            "input_sizes": given,
            "input_dtypes": ["BFloat16"],
            "output_sizes": got,
            "output_dtypes": ["BFloat16"],
            "state": state,
            "time_discovered_started_ns": created + 20_000 if state != "scheduled" else None,
            "time_discovered_completed_ns": created + 900_000 if over else None,
            "retired": over,
            "timeout_ms": 600_000,
            "is_p2p": False,
        }


def _operation(index: int, size: int) -> tuple[str, list[list[int]], list[list[int]]]:
    elements = 1024 * (1 + index % 17)
    if index % 3 == 0:
        return "nccl:all_reduce", [[elements]], [[elements]]
    if index % 3 == 1:
        return "nccl:_all_gather_base", [[elements]], [[elements * size]]
    return "nccl:_reduce_scatter_base", [[elements * size]], [[elements]]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--entries", type=int, default=2000)
    parser.add_argument("--fault", choices=FAULTS, default="missing")
    parser.add_argument("--culprit", type=int, default=7)
    parser.add_argument("--tp", type=int, default=0)
    parser.add_argument("--skew", type=int, default=0)
    parser.add_argument("--torchcomms", action="store_true")
    parser.add_argument("--form", choices=("pickle", "json"), default="pickle")
    options = vars(parser.parse_args())
    folder = options.pop("folder")
    job = replace(Job(ranks=1), **options)
    write_dumps(folder, job)


if __name__ == "__main__":
    main()
