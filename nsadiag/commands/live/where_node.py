"""`python -m nsadiag.commands.live.where_node`: one node's part of `nsadiag where slurm:JOB | ray:JOB`; a document in a line on stdout."""

from __future__ import annotations

import json
import os
import sys

from nsadiag.agent.attaching import nodes
from nsadiag.agent.attaching.seeking import sought_among
from nsadiag.agent.whereabouts import Sought, Whereabouts, whereabouts
from nsadiag.evidence.layout import this_node
from nsadiag.printing import show

JOB = "SLURM_JOB_ID"
MARK = "nsadiag-where "  # begins the line, among whatever else a node prints


def of_slurm(job: str) -> list[Whereabouts]:
    """The job's ranks on this node."""
    return whereabouts(sought_among(nodes.ranks_of_job(JOB, job)))


def of_pids(numbered: dict[int, int]) -> list[Whereabouts]:
    """Processes by pid, each with the number that it is to have."""
    return whereabouts(Sought(rank=number, pid=pid, alive=True) for pid, number in numbered.items())


def main(job: str) -> int:
    """Prints where this node's ranks stand."""
    host = os.environ.get("SLURMD_NODENAME") or this_node()
    show(MARK + json.dumps({"host": host, "ranks": [each.to_json() for each in of_slurm(job)]}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
