"""Between trainer and engine: takes rollouts, writes batches, and tells the engine of new weights."""

from __future__ import annotations

import json
import multiprocessing
import queue
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.request import urlopen

import torch
from common import CASE, PORTS, QUIET_S, SHARED, STEPS, begun, request


def rollouts(step: int) -> None:
    values = []
    for _ in range(4):
        answer = urlopen(request("engine", "/generate", prompt=[float(step)] * 64))
        values.append(json.loads(answer.read())["value"])
    if CASE == "verifier_dies" and step == 3:
        begun()
        scores: queue.Queue = queue.Queue()
        threading.Thread(target=verify, args=(values, scores), daemon=True).start()
        values = scores.get()
    if CASE == "eval_pause" and step == 3:
        urlopen(request("engine", "/pause")).read()
        begun()
        time.sleep(QUIET_S)
        urlopen(request("engine", "/resume")).read()
    if CASE == "sandbox" and step == 3:
        begun()
        subprocess.run(["sleep", str(QUIET_S)], check=True)
    if CASE == "slow_service" and step == 3:
        begun()
        urlopen(f"http://127.0.0.1:{PORTS['outside']}/").read()
    if CASE == "orchestrator_naps" and step == 3:
        begun()
        time.sleep(QUIET_S)
    if CASE in ("manager_queue", "slow_manager_queue") and step == 3:
        values = by_a_manager(values)
    torch.save(values, SHARED / f"rollouts_{step}.tmp")
    (SHARED / f"rollouts_{step}.tmp").rename(SHARED / f"rollouts_{step}.pt")


def verify(values: list[float], scores: queue.Queue) -> None:
    scores.put([value / 0 for value in values])


def by_a_manager(values: list[float]) -> list[float]:
    """Scores by a process that gives them back by a queue of a manager's."""
    manager = multiprocessing.Manager()
    scores = manager.Queue()
    multiprocessing.Process(target=score, args=(values, scores), daemon=True).start()
    return scores.get()


def score(values: list[float], scores: queue.Queue) -> None:
    begun()
    if CASE == "manager_queue":
        raise RuntimeError("the judge has crashed")
    time.sleep(QUIET_S)
    scores.put(values)


def wait_for_policy(step: int) -> None:
    while not (SHARED / f"step_{step}" / "STABLE").exists():
        time.sleep(0.5)


class Rewards(BaseHTTPRequestHandler):
    def log_message(self, *_: object) -> None: ...

    def do_POST(self) -> None:
        told = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        value = told["text"]
        if CASE == "reward_cycle" and value >= 3:
            # A judge by the same model.
            value = json.loads(urlopen(request("engine", "/generate", prompt=[value] * 64)).read())["value"]
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"value": value}).encode())


def main() -> None:
    threading.Thread(
        target=HTTPServer(("127.0.0.1", PORTS["orchestrator"]), Rewards).serve_forever, daemon=True
    ).start()
    while not (SHARED / "engine.up").exists():
        time.sleep(0.2)
    if CASE == "resumed":
        urlopen(request("engine", "/join", port="weights", rank=1, size=2)).read()
        urlopen(request("engine", "/update_weights", step=0)).read()
    for step in range(1, STEPS):
        if CASE == "reward_cycle":
            if step == 3:
                begun()
            urlopen(request("engine", "/score", text=float(step))).read()
        rollouts(step)
        wait_for_policy(step)
        urlopen(request("engine", "/load", path=str(SHARED / f"step_{step}" / "weights.pt"))).read()


if __name__ == "__main__":
    main()
