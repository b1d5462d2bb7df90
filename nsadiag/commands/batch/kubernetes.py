"""`nsadiag matrix --engine kubernetes --dry-run`: manifests for the controllers that start several pods as one job.

Fields are those of TrainJob (trainer.kubeflow.org/v1alpha1, Kubeflow Trainer 2), JobSet (jobset.x-k8s.io/v1alpha2) and
RayJob (ray.io/v1, KubeRay).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from nsadiag.cluster.protocol.tokens import TOKEN_VARIABLE
from nsadiag.errors import UsageError
from nsadiag.spec import Matrix
from nsadiag.spec.strict import nearest

SPEC_DIR, OUT_DIR, SPEC_FILE = "/spec", "/out", "matrix.yaml"
RUNTIME, NODE = (
    "torch-distributed",
    "node",
)  # Kubeflow's runtime for torch, and what it calls its job and container
LONGEST_NAME = 40  # pods add to it, and a label has 63


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """A matrix, and the pods that are to run it."""

    matrix: Matrix
    selection: Sequence[str] = ()  # options of `nsadiag matrix` that choose cells
    nodes: int = 1
    gpus_per_node: int | None = None
    image: str | None = None
    claim: str | None = None  # a volume claim that all pods mount, for the results

    @property
    def name(self) -> str:
        """As Kubernetes takes it."""
        return (
            re.sub(r"[^a-z0-9]+", "-", self.matrix.name.lower()).strip("-")[:LONGEST_NAME].strip("-")
            or "matrix"
        )

    def line(self, *where: str) -> str:
        """For bash in each pod. A finding is a result: only what kept the matrix from its end lets the pod fail."""
        out = f"{OUT_DIR}/{self.name}"
        # `$NAME` is the pod's to expand.
        words = ["nsadiag", "matrix", f"{SPEC_DIR}/{SPEC_FILE}", *self.selection]
        return f"mkdir -p {out} && {shlex.join(words)} {' '.join(where)} --out {out} --resume || [ $? = 1 ]"


def manifests(kind: str, deployment: Deployment) -> str:
    """YAML documents for `kubectl apply`. Raises UsageError where something is missing."""
    if kind not in KINDS:
        raise UsageError(f"--manifest is {kind!r}", nearest(kind, list(KINDS)))
    documents = [_config_map(deployment), KINDS[kind](deployment)]
    name = deployment.name
    head = f"# nsadiag matrix ... --engine kubernetes --manifest {kind} --dry-run | kubectl apply -f -\n"
    if kind != "rayjob" and deployment.nodes > 1:
        head += (
            f"# Once before: kubectl create secret generic {name}-token "
            f"--from-literal={TOKEN_VARIABLE}=$(openssl rand -hex 16)\n"
        )
    return head + yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=110)


class _Dumper(yaml.SafeDumper):
    """Shows text of several lines as such."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def _config_map(deployment: Deployment) -> dict[str, Any]:
    """The spec with whatever it extends, so that the image need not hold it."""
    spec = yaml.safe_dump(deployment.matrix.model_dump(mode="json", exclude_defaults=True), sort_keys=False)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": f"{deployment.name}-spec"},
        "data": {SPEC_FILE: spec},
    }


def _train_job(deployment: Deployment) -> dict[str, Any]:
    where = _among(deployment, "$PET_NNODES", "$PET_NODE_RANK", "$PET_MASTER_ADDR")
    trainer: dict[str, Any] = {
        "numNodes": deployment.nodes,
        "command": ["bash", "-c", deployment.line(*where)],
        "env": _token(deployment),
    }
    if deployment.image:
        trainer["image"] = deployment.image
    if deployment.gpus_per_node:
        trainer["resourcesPerNode"] = _resources(deployment)
    container = {"name": NODE, "volumeMounts": _mounts(), "securityContext": _privileges()}
    pod = {"spec": {"volumes": _volumes(deployment), "containers": [container]}}
    job = {"name": NODE, "template": {"spec": {"template": pod}}}
    patch = {
        "manager": "nsadiag/manifest",
        "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [job]}}},
    }
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": deployment.name},
        "spec": {"runtimeRef": {"name": RUNTIME}, "trainer": trainer, "runtimePatches": [patch]},
    }


def _job_set(deployment: Deployment) -> dict[str, Any]:
    name, nodes = deployment.name, deployment.nodes
    where = _among(deployment, str(nodes), "$JOB_COMPLETION_INDEX", f"{name}-{NODE}-0-0.{name}")
    pod = _pod(deployment, NODE, deployment.line(*where)) | {"restartPolicy": "Never"}
    # A pod that is started over alone would find its run gone.
    job = {
        "completionMode": "Indexed", "parallelism": nodes, "completions": nodes, "backoffLimit": 0, "template": {"spec": pod},
    }  # fmt: skip
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name},
        "spec": {
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "failurePolicy": {"maxRestarts": 0},
            "replicatedJobs": [{"name": NODE, "replicas": 1, "template": {"spec": job}}],
        },
    }


def _ray_job(deployment: Deployment) -> dict[str, Any]:
    if not deployment.claim:
        raise UsageError(
            "a RayJob's pods have to share the results", "give --claim, a volume claim that all can mount"
        )
    nodes = deployment.nodes
    gpus = ("--gpus-per-node", str(deployment.gpus_per_node)) if deployment.gpus_per_node else ()
    line = deployment.line("--engine", "ray", "--nodes", str(nodes), *gpus)
    workers = {
        "groupName": "nodes", "replicas": nodes, "minReplicas": nodes, "maxReplicas": nodes, "rayStartParams": {},
        "template": {"spec": _pod(deployment, "ray-worker", None)},
    }  # fmt: skip
    # The driver is there, and none of the cells.
    without_gpus = Deployment(matrix=deployment.matrix, image=deployment.image, claim=deployment.claim)
    head = {
        "rayStartParams": {"num-cpus": "0"},
        "template": {"spec": _pod(without_gpus, "ray-head", None)},
    }
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {"name": deployment.name},
        "spec": {
            "entrypoint": f"bash -c {shlex.quote(line)}",
            "shutdownAfterJobFinishes": True,
            "backoffLimit": 0,
            "rayClusterSpec": {"headGroupSpec": head, "workerGroupSpecs": [workers]},
        },
    }


KINDS: Mapping[str, Callable[[Deployment], dict[str, Any]]] = {
    "trainjob": _train_job,
    "jobset": _job_set,
    "rayjob": _ray_job,
}


def _among(deployment: Deployment, nnodes: str, node_rank: str, master_addr: str) -> list[str]:
    """The options of one node among several."""
    if deployment.nodes == 1:
        return []
    return ["--nnodes", nnodes, "--node-rank", node_rank, "--master-addr", master_addr]


def _pod(deployment: Deployment, container: str, line: str | None) -> dict[str, Any]:
    if not deployment.image:
        raise UsageError("--image is missing", "name an image with nsadiag, torch and the script in it")
    about: dict[str, Any] = {"name": container, "image": deployment.image}
    if line is not None:
        about |= {"command": ["bash", "-c", line], "env": _token(deployment)}
    about |= {"securityContext": _privileges(), "volumeMounts": _mounts()}
    if deployment.gpus_per_node:
        about["resources"] = _resources(deployment)
    return {"containers": [about], "volumes": _volumes(deployment)}


def _token(deployment: Deployment) -> list[dict[str, Any]]:
    if deployment.nodes == 1:
        return []
    of = {"secretKeyRef": {"name": f"{deployment.name}-token", "key": TOKEN_VARIABLE}}
    return [{"name": TOKEN_VARIABLE, "valueFrom": of}]


def _privileges() -> dict[str, Any]:
    # Without it stacks are those that faulthandler can give.
    return {"capabilities": {"add": ["SYS_PTRACE"]}}


def _resources(deployment: Deployment) -> dict[str, Any]:
    return {"limits": {"nvidia.com/gpu": deployment.gpus_per_node}}


def _mounts() -> list[dict[str, Any]]:
    places = {"shm": "/dev/shm", "spec": SPEC_DIR, "out": OUT_DIR}
    return [{"name": name, "mountPath": path} for name, path in places.items()]


def _volumes(deployment: Deployment) -> list[dict[str, Any]]:
    kept = (
        {"persistentVolumeClaim": {"claimName": deployment.claim}} if deployment.claim else {"emptyDir": {}}
    )
    return [
        {"name": "shm", "emptyDir": {"medium": "Memory"}},
        {"name": "spec", "configMap": {"name": f"{deployment.name}-spec"}},
        {"name": "out", **kept},
    ]
