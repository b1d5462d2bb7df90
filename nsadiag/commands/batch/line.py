"""`python -m nsadiag.commands.batch.line`: an agent that is kept (`serving`), and runs a node's part of `nsadiag run`."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

from nsadiag.agent import interrupts
from nsadiag.cluster.place import Place
from nsadiag.commands.batch.serving import serve
from nsadiag.commands.run import RunRequest, run_once
from nsadiag.commands.run_on_nodes import run_on_nodes
from nsadiag.engines.batch import MASTER_ADDR, NNODES, NODE_RANK
from nsadiag.errors import EXIT_INTERRUPTED, NsadiagError
from nsadiag.printing import note

MODULE = "nsadiag.commands.batch.line"


def arguments(request: RunRequest, *, port: int, token: str, wait_s: float) -> list[str]:
    """The arguments of the agent on each node; `port` is node 0's, where agents meet."""
    about = dataclasses.asdict(request) | {"out": str(request.out), "metrics": None}
    return [json.dumps(about), str(port), token, str(wait_s)]


def main(about: str, port: str, token: str, wait_s: str) -> int:
    """The exit code of `nsadiag run` here."""
    fields: dict[str, Any] = json.loads(about)
    request = RunRequest(**{**fields, "out": Path(fields["out"])})
    nnodes = int(os.environ[NNODES])
    if nnodes == 1:
        return run_once(request).exit_code
    place = Place(
        nnodes=nnodes, node_rank=int(os.environ[NODE_RANK]), master_addr=os.environ[MASTER_ADDR],
        master_port=int(port), token=token, wait_s=float(wait_s),
    )  # fmt: skip
    return run_on_nodes(request, place).exit_code


def run_job(words: list[str]) -> int:
    """The exit code; why a job failed is on stderr."""
    try:
        about, port, token, wait_s = words
        return main(about, port, token, wait_s)
    except NsadiagError as error:
        note(f"error: {error.message}\nhint: {error.hint}")
        return error.exit_code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


if __name__ == "__main__":
    interrupts.listen()
    serve(run_job)
