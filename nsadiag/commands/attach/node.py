"""`python -m nsadiag.commands.attach.node DIR JOB NONCE [NUMBER]`: one node's part of `nsadiag attach slurm:JOB`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from nsadiag.agent import interrupts
from nsadiag.agent.attaching import nodes
from nsadiag.agent.attaching.nodes import LOOK
from nsadiag.evidence.layout import NODE, RunDir, make_private_dir, read_json, this_node, write_json
from nsadiag.printing import note

JOB = "SLURM_JOB_ID"


def main(directory: str, job: str, nonce: str, number: str = "") -> int:
    """Looks at the job's ranks on this node; with the number of a capture: only what costs more, into that one."""
    interrupts.listen()
    # Slurm may know the machine by another name than the machine itself.
    os.environ[NODE] = os.environ.get("SLURMD_NODENAME") or this_node()
    run = RunDir(path=Path(directory))
    if read_json(run.run, {}).get("nonce") != nonce:
        note(f"error: {this_node()} does not see {directory}")
        return 3
    ranks = nodes.ranks_of_job(JOB, job)
    if number:
        nodes.watch_of(ranks, run).look_closer(int(number))
        return 0
    if twice := nodes.claim(ranks, run):
        note(f"error: {twice}")
        return 2
    if not ranks:
        write_json(make_private_dir(run.node(this_node())) / LOOK, nodes.nothing_here())
        return 0
    nodes.watch_of(ranks, run).look_here(ranks)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
