"""Dumps of an incident on 16 ranks in four pipeline stages, with 13 groups a rank and two culprits.

    python benchmarks/verdicts/incident_dumps.py /tmp/dumps --fault gpu --culprits 12 14

As a training framework leaves them when its watchdog fires: of each rank, only what is not over. `gpu`: a device stops
completing what its host goes on to issue, and its peers complete a little more of it. `host`: the host issues nothing more.
"""

from __future__ import annotations

import argparse
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RANKS, STAGE, AHEAD, PARTS = 16, 4, 9, 6
BEGAN_NS = 1_790_000_000_000_000_000
# What a layer asks for, and of which of its rank's groups.
LAYER = (
    ("TENSOR_MODEL_PARALLEL_GROUP", "_all_gather_base"),
    ("EXPERT_MODEL_PARALLEL_GROUP", "all_to_all"),
    ("EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP", "_all_gather_base"),
    ("TENSOR_MODEL_PARALLEL_GROUP", "_reduce_scatter_base"),
    ("TENSOR_AND_DATA_PARALLEL_GROUP_WITH_CP", "all_reduce"),
    ("EXPERT_MODEL_PARALLEL_GROUP", "all_to_all"),
    ("TENSOR_AND_CONTEXT_PARALLEL_GROUP", "all_reduce"),
)


@dataclass(frozen=True, kw_only=True)
class Incident:
    """`fault`: "gpu" or "host", on each of the culprits."""

    fault: str
    culprits: tuple[int, ...]
    layers: int = 40  # that all have completed


def groups_of(rank: int) -> dict[str, tuple[int, ...]]:
    """Members by the group's description; the 13 groups that a rank is in."""
    pair, stage = rank // 2 * 2, rank // STAGE * STAGE
    everyone = tuple(range(RANKS))
    quad = tuple(range(stage, stage + STAGE))
    return {
        "default_pg": everyone,
        "INTRA_DISTRIBUTED_OPTIMIZER_INSTANCE_GROUP": everyone,
        "EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL_GROUP": everyone,
        "DATA_PARALLEL_GROUP_WITH_CP": tuple(sorted({rank, stage + (rank - stage + 2) % STAGE})),
        "CONTEXT_PARALLEL_GROUP": (rank,),
        "TENSOR_MODEL_PARALLEL_GROUP": (pair, pair + 1),
        "TENSOR_AND_CONTEXT_PARALLEL_GROUP": (pair, pair + 1),
        "PIPELINE_MODEL_PARALLEL_GROUP": tuple(range(rank % STAGE, RANKS, STAGE)),
        "EMBEDDING_GROUP": (rank % STAGE, rank % STAGE + RANKS - STAGE),
        "MODEL_PARALLEL_GROUP": tuple(r for r in everyone if r % STAGE // 2 == rank % STAGE // 2),
        "TENSOR_AND_DATA_PARALLEL_GROUP_WITH_CP": quad,
        "EXPERT_MODEL_PARALLEL_GROUP": quad,
        "EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP": quad,
    }


def write_incident(folder: Path, incident: Incident) -> None:
    """One file a rank."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(RANKS):
        (folder / f"_dump_{rank}").write_bytes(pickle.dumps(dump_of(incident, rank), protocol=2))


def dump_of(incident: Incident, rank: int) -> dict[str, Any]:
    groups = groups_of(rank)
    # Each rank counts groups as it made them; other ranks give the same group another number.
    names = {desc: str(100 * number + members[0]) for number, (desc, members) in enumerate(groups.items())}
    done, issued = _reached(incident, rank)
    numbers = dict.fromkeys(groups, 0)
    entries, status = [], {}
    for place, (desc, op) in enumerate(_asked(incident)):
        if place >= issued:
            break
        numbers[desc] += 1
        ids = list(groups).index(desc)
        completed = status.get(str(ids), {}).get("last_completed_collective", 0)
        status[str(ids)] = {
            "last_enqueued_collective": numbers[desc],
            "last_started_collective": -1,
            "last_completed_collective": numbers[desc] if place < done else completed,
        }
        if place >= done:
            entries.append(_entry(len(entries), place, ids, (names[desc], desc), numbers[desc], op))
    return {
        "version": "2.9",
        "pg_config": {
            names[desc]: {"name": names[desc], "desc": desc, "ranks": str(list(members))}
            for desc, members in groups.items()
        },
        "nccl_version": "2.27.5",
        "pg_status": status,
        "entries": entries,
    }


def _asked(incident: Incident) -> Iterator[tuple[str, str]]:
    for _ in range(incident.layers + AHEAD):
        yield from LAYER


def _reached(incident: Incident, rank: int) -> tuple[int, int]:
    """How many of its calls the rank has seen completed, and how many its host has issued."""
    stage = rank // STAGE
    broken = {r for r in incident.culprits if r // STAGE == stage}
    at = incident.layers * len(LAYER) + stage  # every stage is a little further on than the one before
    if not broken:
        return at, at + AHEAD  # waits for another stage
    if incident.fault == "host":
        return at, at if rank in broken else at + AHEAD
    return (at, at + AHEAD) if rank in broken else (at + PARTS, at + PARTS + AHEAD)


def _entry(
    number: int, place: int, pg_id: int, process_group: tuple[str, str], seq: int, op: str
) -> dict[str, Any]:
    return {
        "record_id": number, "pg_id": pg_id, "process_group": process_group, "thread_name": "python3",
        "collective_seq_id": seq, "p2p_seq_id": 0, "op_id": seq, "profiling_name": f"nccl:{op}",
        "time_created_ns": BEGAN_NS + place * 1_000_000, "input_sizes": [[2048, 1, 4096]], "input_dtypes": ["BFloat16"],
        "output_sizes": [[4096, 1, 4096]], "output_dtypes": ["BFloat16"], "state": "scheduled",
        "time_discovered_started_ns": None, "time_discovered_completed_ns": None, "retired": False,
        "timeout_ms": 180000, "is_p2p": False, "frames": [],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--fault", choices=("gpu", "host"), default="gpu")
    parser.add_argument("--culprits", type=int, nargs="+", default=[12, 14])
    options = parser.parse_args()
    write_incident(options.folder, Incident(fault=options.fault, culprits=tuple(options.culprits)))


if __name__ == "__main__":
    main()
