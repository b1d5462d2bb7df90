"""`nsadiag attach ray:JOB` where actors are on several nodes, and nsadiag within actors."""

import json
import signal
import sys
import time
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest
from support.cluster.hosts import send
from support.cluster.ray_cluster import RayCluster
from support.jobs import BIN, GIVE_UP_S, wait_until

NSADIAG = BIN / "nsadiag"
# The collective's members are on two machines; one of them has a batch less.
APART = """
import ray
import torch
import torch.distributed as dist
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On

@ray.remote(num_cpus=0)
class Rollout:
    def join(self, address, rank):
        dist.init_process_group("gloo", init_method=address, rank=rank, world_size=2)

    def generate(self, batches):
        for _ in range(batches):
            dist.all_reduce(torch.ones(4))

@ray.remote(num_cpus=0)
class Trainer:
    def fit(self, rollouts):
        print("fits", flush=True)
        ray.get([rollout.generate.remote(3 - rank) for rank, rollout in enumerate(rollouts)])

ray.init()
here = {node["NodeManagerHostname"]: node for node in ray.nodes()}
rollouts = [Rollout.options(name=f"rollout-{rank}", scheduling_strategy=On(here[host]["NodeID"], soft=False)).remote()
            for rank, host in enumerate(("node0", "node1"))]
trainer = Trainer.options(name="trainer", scheduling_strategy=On(here["node1"]["NodeID"], soft=False)).remote()
address = f"tcp://{here['node0']['NodeManagerAddress']}:29511"
ray.get([rollout.join.remote(address, rank) for rank, rollout in enumerate(rollouts)])
ray.get(trainer.fit.remote(rollouts))
"""


@pytest.fixture
def directory(ray: RayCluster, request: pytest.FixtureRequest) -> Path:
    """One of its own for each test, on both hosts."""
    here = ray.directory / request.node.name[5:45]
    here.mkdir()
    return here


def driver(ray: RayCluster, directory: Path, script: str) -> Popen[str]:
    (directory / "rl.py").write_text(script)
    with (directory / "log").open("w") as log:
        return ray.head.start(sys.executable, directory / "rl.py", cwd=directory, stdout=log, stderr=log)


def says(directory: Path, words: str) -> bool:
    return words in (directory / "log").read_text()


def end(ray: RayCluster, started: Popen[str]) -> None:
    """A driver that has come to its end by itself needs no signal."""
    if started.poll() is None:
        send(started, signal.SIGKILL)
    started.wait()
    wait_until(lambda: ray.held() == [], "the job is gone")


def verdict_in(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((directory / "verdict.json").read_text())
    return found


def test_actors_on_two_nodes_are_one_graph(ray: RayCluster, directory: Path) -> None:
    started = driver(ray, directory, APART)
    try:
        wait_until(lambda: says(directory, "fits"), "the trainer waits")
        deadline = time.monotonic() + GIVE_UP_S
        verdict: dict[str, Any] = {}
        while verdict.get("outcome") != "hung" and time.monotonic() < deadline:
            done = ray.head.run(
                NSADIAG, "attach", "ray:", "--force", "--out", "out", cwd=directory, check=False
            )
            assert done.returncode in (0, 1), done.stdout + done.stderr + (directory / "log").read_text()
            verdict = verdict_in(directory / "out")
    finally:
        end(ray, started)
    assert (verdict["certainty"], verdict["class"]) == ("proven", "missing_rank"), verdict
    assert verdict["gaps"] == [], verdict
    assert verdict["summary"].startswith(
        "rollout-1 is in no call, while rollout-0 waits in all_reduce at rl.py:14"
    )
    assert verdict["summary"].endswith("rollout-1 is on node1.")
    assert (verdict["where"]["line"], verdict["where"]["host"]) == (20, "node1")
    assert verdict["peers_at"]["line"] == 14
    metas = [json.loads(path.read_text()) for path in (directory / "out/ranks").glob("*/meta.json")]
    assert sorted(meta["host"] for meta in metas) == ["node0", "node0", "node1", "node1"]
    assert ray.left() == []


# What a launcher would set, an actor sets by itself.
WATCHED = """
import os, time
import ray
import torch
import torch.distributed as dist
import nsadiag
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On

@ray.remote(num_cpus=0)
class Trainer:
    def fit(self, rank, address):
        about = {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": 2}
        os.environ.update({key: str(value) for key, value in about.items()})
        with nsadiag.watch(out=OUT, on_hang="stop") as run:
            dist.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
            for step in range(3 - rank):
                dist.all_reduce(torch.ones(4))
            dist.barrier()
        return rank

ray.init()
here = On(ray.get_runtime_context().get_node_id(), soft=False)
trainers = [Trainer.options(name=f"trainer-{rank}", scheduling_strategy=here).remote() for rank in range(2)]
asked = [trainer.fit.remote(rank, "tcp://127.0.0.1:29517") for rank, trainer in enumerate(trainers)]
try:
    print(ray.get(asked), flush=True)
except ray.exceptions.RayError as error:
    print("ended by", type(error).__name__, flush=True)
    time.sleep(600)
"""


@pytest.mark.slow
def test_a_watch_within_actors_judges_them(ray: RayCluster, directory: Path) -> None:
    """A rank that has a batch less than its peer; on_hang="stop" ends both actors, which the driver sees."""
    started = driver(ray, directory, WATCHED.replace("OUT", repr(str(directory / "out"))))
    try:
        wait_until(lambda: says(directory, "ended by"), "the actors are ended")
        wait_until((directory / "out/report.md").exists, "the report is written")
    finally:
        end(ray, started)
    verdict = verdict_in(directory / "out")
    assert (verdict["outcome"], verdict["class"]) == ("hung", "uneven_inputs"), verdict
    assert verdict["where"]["file"] == str(directory / "rl.py"), verdict
    assert says(directory, "ended by ActorDiedError")
    wait_until(lambda: ray.left() == [], "nobody watches any more")


TRAIN = """
import time
import ray.train
import torch
from ray.train.torch import TorchTrainer
from torch.nn.parallel import DistributedDataParallel
from nsadiag.integrations.ray_train import NsadiagCallback, TrainingHungError

def train():
    rank = ray.train.get_context().get_world_rank()
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    for step in range(6 - rank):
        model(torch.randn(2, 4)).sum().backward()
        if step < 2:
            ray.train.report({"step": step})

run = ray.train.RunConfig(storage_path=OUT + "/storage", callbacks=[NsadiagCallback(silence=5, out=OUT)])
scale = ray.train.ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.5})
try:
    TorchTrainer(train, scaling_config=scale, run_config=run).fit()
except TrainingHungError as error:
    print("FAILED", error, flush=True)
    print("RANKS", sorted(error.worker_failures), error.directory, flush=True)
    time.sleep(600)
"""


@pytest.mark.slow
def test_a_hang_of_ray_train_fails_the_run_with_its_verdict(ray: RayCluster, directory: Path) -> None:
    started = driver(ray, directory, TRAIN.replace("OUT", repr(str(directory / "out"))))
    try:
        wait_until(lambda: says(directory, "RANKS"), "the run fails")
    finally:
        end(ray, started)
    said = (directory / "log").read_text()
    failed = said.partition("FAILED ")[2]
    assert "missing_rank (proven: " in failed and "RayTrainWorker rank 1" in failed, said
    assert ".backward()" in failed or "rl.py" in failed, said
    assert f"RANKS [1] {directory}/out/look-" in said, said
