"""The fields of TrainJob, JobSet, RayJob and DaemonSet that our manifests use, as their published definitions have them.

Written down from Kubeflow Trainer 2 (trainer.kubeflow.org/v1alpha1), JobSet (jobset.x-k8s.io/v1alpha2), KubeRay (ray.io/v1)
and Kubernetes (v1, batch/v1). A field that is not here is an error: look it up there first.
"""

from __future__ import annotations

from typing import Any

TEXT = {"type": "string", "minLength": 1}
NAME = {"type": "string", "pattern": r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "maxLength": 63}
COUNT = {"type": "integer", "minimum": 0}
FLAG = {"type": "boolean"}
QUANTITY = {"type": ["integer", "string"]}


def fields(required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def many(item: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": item, "minItems": 1}


def mapping(value: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": value}


METADATA = fields(("name",), name=NAME)
SECRET_KEY = fields(("name", "key"), name=NAME, key=TEXT, optional=FLAG)
ENV = {
    "type": "array",
    "items": fields(("name",), name=TEXT, value=TEXT, valueFrom=fields(secretKeyRef=SECRET_KEY)),
}
MOUNT = fields(("name", "mountPath"), name=NAME, mountPath={"type": "string", "pattern": "^/"})
VOLUME = fields(
    ("name",),
    name=NAME,
    emptyDir=fields(medium={"enum": ["", "Memory"]}),
    configMap=fields(name=NAME),
    persistentVolumeClaim=fields(("claimName",), claimName=NAME),
    hostPath=fields(
        ("path",),
        path={"type": "string", "pattern": "^/"},
        type={"enum": ["", "DirectoryOrCreate", "Directory"]},
    ),
)
PRIVILEGES = fields(capabilities=fields(add=many(TEXT)), runAsUser=COUNT, readOnlyRootFilesystem=FLAG)
RESOURCES = fields(limits=mapping(QUANTITY), requests=mapping(QUANTITY))
CONTAINER = fields(
    ("name", "image"), name=NAME, image=TEXT, command=many(TEXT), env=ENV, volumeMounts=many(MOUNT),
    securityContext=PRIVILEGES, resources=RESOURCES,
)  # fmt: skip
POD = fields(
    ("containers",),
    containers=many(CONTAINER),
    initContainers=many(CONTAINER),
    hostPID=FLAG,
    volumes=many(VOLUME),
    restartPolicy={"enum": ["Always", "OnFailure", "Never"]},
)


def of_kind(group: str, kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    about = {"apiVersion": {"const": group}, "kind": {"const": kind}, "metadata": METADATA, "spec": spec}
    return fields(tuple(about), **about)


# What a TrainJob may change of its runtime's pods is less than what a pod has.
CONTAINER_PATCH = fields(("name",), name=NAME, env=ENV, volumeMounts=many(MOUNT), securityContext=PRIVILEGES)
POD_PATCH = fields(spec=fields(volumes=many(VOLUME), containers=many(CONTAINER_PATCH)))
JOB_PATCH = fields(("name",), name=NAME, template=fields(spec=fields(template=POD_PATCH)))
RUNTIME_PATCH = fields(
    ("manager",),
    manager={"type": "string", "pattern": r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/.+$"},
    trainingRuntimeSpec=fields(template=fields(spec=fields(replicatedJobs=many(JOB_PATCH)))),
)
TRAINER = fields(
    image=TEXT, command=many(TEXT), env=ENV, numNodes=COUNT, resourcesPerNode=RESOURCES, numProcPerNode=COUNT
)
JOB = fields(
    ("template",), completionMode={"enum": ["Indexed", "NonIndexed"]}, parallelism=COUNT, completions=COUNT,
    backoffLimit=COUNT, template=fields(("spec",), spec=POD),
)  # fmt: skip
WORKERS = fields(
    ("groupName", "rayStartParams", "template"), groupName=NAME, replicas=COUNT, minReplicas=COUNT, maxReplicas=COUNT,
    rayStartParams=mapping({"type": "string"}), template=fields(("spec",), spec=POD),
)  # fmt: skip
HEAD = fields(
    ("rayStartParams", "template"),
    rayStartParams=mapping({"type": "string"}),
    template=fields(("spec",), spec=POD),
)

SCHEMAS = {
    "TrainJob": of_kind(
        "trainer.kubeflow.org/v1alpha1",
        "TrainJob",
        fields(
            ("runtimeRef",),
            runtimeRef=fields(("name",), name=NAME),
            trainer=TRAINER,
            runtimePatches=many(RUNTIME_PATCH),
        ),
    ),
    "JobSet": of_kind(
        "jobset.x-k8s.io/v1alpha2",
        "JobSet",
        fields(
            network=fields(enableDNSHostnames=FLAG, publishNotReadyAddresses=FLAG),
            failurePolicy=fields(maxRestarts=COUNT),
            replicatedJobs=many(
                fields(("name", "template"), name=NAME, replicas=COUNT, template=fields(("spec",), spec=JOB))
            ),
        ),
    ),
    "RayJob": of_kind(
        "ray.io/v1",
        "RayJob",
        fields(
            entrypoint=TEXT,
            shutdownAfterJobFinishes=FLAG,
            backoffLimit=COUNT,
            rayClusterSpec=fields(("headGroupSpec",), headGroupSpec=HEAD, workerGroupSpecs=many(WORKERS)),
        ),
    ),
    "DaemonSet": of_kind(
        "apps/v1",
        "DaemonSet",
        fields(
            ("selector", "template"),
            selector=fields(("matchLabels",), matchLabels=mapping(TEXT)),
            template=fields(
                ("metadata", "spec"), metadata=fields(("labels",), labels=mapping(TEXT)), spec=POD
            ),
        ),
    ),
    "ConfigMap": fields(
        ("data",),
        apiVersion={"const": "v1"},
        kind={"const": "ConfigMap"},
        metadata=METADATA,
        data=mapping(TEXT),
    ),
}
