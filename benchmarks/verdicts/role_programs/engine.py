"""An inference engine: a server of HTTP, whose loop generates what requests ask for, and takes new weights."""

from __future__ import annotations

import json
import queue
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from multiprocessing.connection import Connection
from urllib.request import urlopen

import torch
import torch.distributed as dist
from common import CASE, DEVICE, PORTS, QUIET_S, SHARED, arrived, begun, model, request, weights_group

ME = sys.argv[1]


class Engine:
    """The model, the requests that wait, and the group by which weights come."""

    def __init__(self) -> None:
        self.model = model(more=960 * (CASE == "other_sizes"))
        self.waiting: queue.Queue = queue.Queue()
        self.running = threading.Event()
        self.running.set()
        self.one_at_a_time = threading.Lock()
        self.group = self.store = self.worker = None
        self.done = 0

    def loop(self) -> None:
        while True:
            prompt, answer = self.waiting.get()
            self.done += 1
            if CASE == "engine_loop_dies" and self.done == 3:
                raise KeyError("kv block")
            if self.worker:
                self.worker.send(prompt)
                answer.put(self.worker.recv())
                continue
            if CASE == "long_rollout" and self.done == 3:
                begun()
                time.sleep(QUIET_S)
            if CASE == "busy_rollout" and self.done == 3:
                begun()
                until = time.monotonic() + QUIET_S
                while time.monotonic() < until:
                    self.model(torch.randn(64, 64, device=DEVICE))
            with torch.no_grad():
                answer.put(self.model(torch.tensor(prompt, device=DEVICE)).sum().item())

    def generate(self, prompt: list[float]) -> float:
        self.running.wait()
        if CASE == "policy_guard" and prompt[0] >= 3:
            # Not with a policy that is older than the step asks for.
            while not (SHARED / f"step_{int(prompt[0])}" / "STABLE").exists():
                time.sleep(0.5)
        answer: queue.Queue = queue.Queue()
        self.waiting.put((prompt, answer))
        return answer.get()

    def join(self, port: str, rank: int, size: int) -> None:
        if CASE == "join_refused":
            raise PermissionError("the engine serves, and takes no weights")
        with self.one_at_a_time:
            if CASE == "slow_join":
                time.sleep(QUIET_S)
            self.group = weights_group(port, rank, size)

    def update(self, step: int) -> None:
        for parameter in self.model.parameters():
            dist.broadcast(parameter.data, 0, group=self.group)
        if CASE == "extra_tensor" and step == 3:
            dist.broadcast(torch.zeros(1, device=DEVICE), 0, group=self.group)
        arrived()

    def load(self, path: str) -> None:
        if CASE == "slow_load":
            begun()
            time.sleep(QUIET_S)
        self.model.load_state_dict(torch.load(path))

    def reward(self, text: float) -> float:
        return json.loads(urlopen(request("orchestrator", "/reward", text=text)).read())["value"]


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_: object) -> None: ...

    def do_POST(self) -> None:
        told = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
        code, value = 200, 0.0
        if self.path == "/generate":
            value = engine.generate(told["prompt"])
        elif self.path == "/score":
            value = engine.reward(told["text"])
        elif self.path == "/join":
            try:
                engine.join(told["port"], told["rank"], told["size"])
            except PermissionError:
                code = 409
        elif self.path == "/update_weights":
            if (CASE, told["step"]) in (("update_refused", 3), ("refused_first", 1)):
                code = 409
            else:
                engine.update(told["step"])
        elif self.path == "/load":
            engine.load(told["path"])
        elif self.path == "/pause":
            engine.running.clear()
        elif self.path == "/resume":
            engine.running.set()
        self.send_response(code)
        self.end_headers()
        self.wfile.write(json.dumps({"value": value}).encode())


def worker_with_a_pipe() -> Connection:
    """A process that generates, and answers by the pipe by which it is asked."""
    import multiprocessing

    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    multiprocessing.get_context("spawn").Process(target=answer_by, args=(theirs,), daemon=True).start()
    return ours


def answer_by(pipe: Connection) -> None:
    net, done = model(), 0
    while True:
        prompt = pipe.recv()
        done += 1
        if done == 3:
            begun()
        try:
            if CASE == "pipe_reply_lost" and done == 3:
                raise KeyError("kv block")
            if CASE == "slow_pipe_worker" and done == 3:
                time.sleep(QUIET_S)
            pipe.send(net(torch.tensor(prompt)).sum().item())
        except KeyError as error:
            print(f"worker: {error}", flush=True)


def ready() -> None:
    """What a worker process of the engine says once it has loaded its part of the model."""
    import multiprocessing

    ours, theirs = multiprocessing.get_context("spawn").Pipe(duplex=False)
    worker = multiprocessing.get_context("spawn").Process(target=load_part, args=(theirs,), daemon=True)
    worker.start()
    ours.recv()


def load_part(pipe) -> None:
    if CASE == "worker_not_ready":
        dist.init_process_group(
            "gloo", init_method=f"tcp://127.0.0.1:{PORTS['weights']}", rank=0, world_size=2
        )
    if CASE == "slow_worker":
        time.sleep(QUIET_S)
    pipe.send("READY")
    time.sleep(3600)


def load_and_tell() -> None:
    """By a store of the engine's own, in which the trainer waits for the key."""
    engine.store = dist.TCPStore("127.0.0.1", PORTS["weights0"], None, True, wait_for_workers=False)
    if CASE == "lost_key":
        threading.Event().wait()
    while not (SHARED / "begun").exists():
        time.sleep(0.1)
    time.sleep(QUIET_S)
    engine.store.set("weights_loaded", "1")


if __name__ == "__main__":
    engine = Engine()
    if CASE in ("lost_key", "slow_key"):
        threading.Thread(target=load_and_tell, name="loader", daemon=True).start()
    if CASE in ("worker_not_ready", "slow_worker"):
        ready()
    if CASE in ("pipe_reply_lost", "slow_pipe_worker"):
        engine.worker = worker_with_a_pipe()
    if CASE == "slow_start":
        begun()
        time.sleep(QUIET_S)
    threading.Thread(target=engine.loop, name="generation", daemon=True).start()
    kind = HTTPServer if CASE in ("asked_while_updating", "reward_cycle") else ThreadingHTTPServer
    server = kind(("127.0.0.1", PORTS[ME]), Handler)
    (SHARED / f"{ME}.up").touch()
    server.serve_forever()
