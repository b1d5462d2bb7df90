"""A launcher that stays warm: torch's elastic agent, with ranks forked from a process that has imported torch.

Run as `python -m nsadiag.agent.job.warm_launcher`: one JSON request a line on stdin, one JSON answer a line on the
descriptor given. Importing torch takes seconds, forking after it milliseconds. Each cell still gets fresh
processes, so a cell that hangs or crashes costs its ranks and nothing else.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from typing import Any, TextIO

from nsadiag.agent.job import scratch

# What a rank needs sooner or later: DDP's constructor alone imports dynamo, for over a second.
PRELOAD = (
    "torch",
    "torch.distributed.run",
    "torch.distributed.fsdp",
    "torch._dynamo",
    "nsadiag.agent.job.warm_rank",
)

RENDEZVOUS_S = 600


def launch(request: dict[str, Any]) -> dict[str, Any]:
    """Runs one cell through torch elastic and says how its ranks ended."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    from nsadiag.agent.job.warm_rank import run_rank

    nnodes = request.get("nnodes", 1)
    with scratch.made() as logs:
        config = LaunchConfig(
            min_nodes=nnodes,
            max_nodes=nnodes,
            nproc_per_node=request["world_size"],
            run_id=request["id"],
            # c10d would number nodes as it likes, and start groups anew when one comes late.
            rdzv_backend="static" if nnodes > 1 else "c10d",
            rdzv_endpoint=request.get("endpoint", "localhost:0"),
            rdzv_configs={"rank": request.get("node_rank", 0), "timeout": RENDEZVOUS_S},
            max_restarts=0,
            monitor_interval=0.05,
            start_method="forkserver",
            logs_specs=DefaultLogsSpecs(log_dir=str(logs)),
        )
        try:
            ended = elastic_launch(config, run_rank)(request)
        except ChildFailedError as error:
            ends = {str(rank): failure.exitcode for rank, failure in error.failures.items()}
            return {"exit_code": 1, "ends": ends}
    return {"exit_code": 0, "ends": {str(rank): 0 for rank in ended}}


def serve(requests: TextIO, answers: TextIO) -> None:
    """Answers requests until end of file; an error of the launcher itself is an answer too."""
    for line in requests:
        try:
            answer = launch(json.loads(line))
        except Exception as error:
            answer = {"exit_code": 1, "ends": {}, "error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def main(descriptor: str, *preload: str) -> None:
    """Starts the fork server at once, so that its imports run beside ours."""
    from multiprocessing import forkserver

    multiprocessing.set_forkserver_preload([*PRELOAD, *preload])
    forkserver.ensure_running()
    with os.fdopen(int(descriptor), "w") as answers:
        serve(sys.stdin, answers)


if __name__ == "__main__":
    main(*sys.argv[1:])
