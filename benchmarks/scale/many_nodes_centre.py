"""Node 0 of benchmarks/scale/many_nodes.py, in a process of its own: the engine as it is, with a job that has no rank here.

Agents connect without the meeting before it; all else is real.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import socket
import sys
import threading
import time
from pathlib import Path

from nsadiag.agent.watching.state import WatchOptions
from nsadiag.cluster.arrivals import Arrivals
from nsadiag.cluster.hub import Hub
from nsadiag.cluster.join import Crew, farewell
from nsadiag.cluster.place import Place
from nsadiag.cluster.protocol.hello import Hello
from nsadiag.commands import output
from nsadiag.commands.nodes import crowd
from nsadiag.commands.run import answer_first, judge_and_report, load_analysis
from nsadiag.engines.local import run_command
from nsadiag.engines.static import Lead
from nsadiag.evidence.layout import RunDir, make_private_dir

JOIN_S = 120.0
PATIENCE_S = 1.0  # what is suspected counts at once: the time until it is said is the same
HERE = "node00000"
WAITING = [sys.executable, "-c", "import signal; signal.pause()"]


def hello(rank: int, name: str) -> Hello:
    return Hello(node_rank=rank, nnodes=0, host=name, agent=f"agent {rank}", task="", versions={})


def crew_of(token: str, names: dict[int, str]) -> Crew:
    """As gather() leaves it, once all are there."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
    port = listener.getsockname()[1]
    arrivals = Arrivals()
    hub = Hub(token, listener, len(names), take=arrivals.take)
    for rank in names:
        if rank:
            hub.admit(rank, f"agent {rank}")
    print(json.dumps({"port": port}), flush=True)
    deadline = time.monotonic() + JOIN_S
    while not all(hub.heard(rank, "agent") for rank in names if rank):
        if time.monotonic() > deadline:
            raise SystemExit(f"not all agents came: {dict(hub.refused)}")
        time.sleep(0.05)
    place = Place(nnodes=len(names), node_rank=0, master_addr="127.0.0.1", token=token)
    hellos = {rank: hello(rank, name) for rank, name in names.items()}
    return Crew(
        hub=hub,
        arrivals=arrivals,
        hellos=hellos,
        names=names,
        place=place,
        address="127.0.0.1",
        family=socket.AF_INET,
    )


def told_when_judged(run: RunDir) -> None:
    """The first verdict is the answer: the job is ended, and judged once more, after it."""

    answers = sys.stdout  # what the command itself says goes to stderr

    def look() -> None:
        while not run.verdict.exists():
            time.sleep(0.01)
        print(json.dumps({"judged_at": time.time()}), file=answers, flush=True)

    threading.Thread(target=look, daemon=True).start()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("nodes", type=int)
    parser.add_argument("token")
    options = parser.parse_args()
    run = RunDir(path=make_private_dir(options.out))
    names = {0: HERE} | {rank: f"node{rank:05d}" for rank in range(1, options.nodes)}
    crew = crew_of(options.token, names)
    print(json.dumps({"joined": len(crew.others)}), flush=True)
    about = {"kind": "run", "name": "many nodes", "command": WAITING, "started_at": output.now()}
    lead = Lead(crew, run, crowd())
    lead.open(kind="run")
    part = lead.announce(
        at=".", name="", counts=(), probes="none", options=WatchOptions(patience_s=PATIENCE_S)
    )
    told_when_judged(run)
    with contextlib.redirect_stdout(sys.stderr):
        run_command(
            WAITING, run, part.options, probes="none", make_watch=lead.make_watch(part, run),
            on_silence=load_analysis, on_stuck=lambda: answer_first(run),
        )  # fmt: skip
        lead.finish(run)
        judge_and_report(run, about)
    farewell(crew, {"summary": "", "exit_code": 0})
    status = Path("/proc/self/status").read_text()
    peak_kib = int(status.partition("VmHWM:")[2].split()[0])
    used = time.process_time()
    print(json.dumps({"peak_mib": peak_kib / 1024, "cpu_s": used, "ended_at": time.time()}), flush=True)


if __name__ == "__main__":
    main()
