"""`nsadiag matrix --engine kubernetes --dry-run`: manifests that the controllers accept, with lines that nsadiag accepts."""

import shlex
from typing import Any

import jsonschema
import pytest
import yaml
from support.cluster.kubernetes_fields import SCHEMAS
from support.jobs import Jobs
from typer.main import get_command

from nsadiag.cli import app
from nsadiag.commands.batch.kubernetes import KINDS, Deployment, manifests
from nsadiag.errors import UsageError
from nsadiag.spec import Matrix, find_spec, load_matrix

MATRIX = load_matrix(find_spec("nsa-quick"))


def documents(kind: str, **more: Any) -> dict[str, dict[str, Any]]:
    """By kind."""
    about: dict[str, Any] = {
        "matrix": MATRIX,
        "nodes": 2,
        "gpus_per_node": 8,
        "image": "registry.example.com/train:1",
        "claim": "results",
    }
    text = manifests(kind, Deployment(**about | more))
    return {document["kind"]: document for document in yaml.safe_load_all(text)}


def line_in(document: dict[str, Any]) -> str:
    """What bash is given in each pod, or the driver's."""
    spec = document["spec"]
    if document["kind"] == "TrainJob":
        return str(spec["trainer"]["command"][-1])
    if document["kind"] == "JobSet":
        return str(
            spec["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"][0]["command"][-1]
        )
    return shlex.split(spec["entrypoint"])[-1]


@pytest.mark.parametrize("more", [{}, {"nodes": 1, "gpus_per_node": None}])
@pytest.mark.parametrize("kind", KINDS)
def test_manifests_have_the_fields_that_controllers_know(kind: str, more: dict[str, Any]) -> None:
    found = documents(kind, **more)
    assert len(found) == 2
    for name, document in found.items():
        jsonschema.validate(document, SCHEMAS[name])


def test_a_field_that_no_controller_knows_is_seen() -> None:
    document = documents("trainjob")["TrainJob"]
    document["spec"]["podTemplateOverrides"] = []  # of an earlier version
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, SCHEMAS["TrainJob"])


@pytest.mark.parametrize("kind", KINDS)
def test_the_line_of_a_pod_has_options_that_exist_and_a_spec_that_is_mounted(kind: str) -> None:
    found = documents(kind, selection=["-k", "layers=1 and not fsdp2"])
    config = found.pop("ConfigMap")
    line = line_in(next(iter(found.values())))
    words = shlex.split(line.partition(" && ")[2].partition(" || ")[0])
    command = get_command(app).commands["matrix"]  # type: ignore[attr-defined]
    known = {option for parameter in command.params for option in parameter.opts}
    assert words[:2] == ["nsadiag", "matrix"] and "layers=1 and not fsdp2" in words
    assert [word for word in words if word.startswith("-") and word not in known] == []
    assert words[2] == "/spec/matrix.yaml"
    assert Matrix(**yaml.safe_load(config["data"]["matrix.yaml"])) == MATRIX
    assert (
        "'configMap': {'name': 'nsa-quick-spec'}" in str(found)
        and config["metadata"]["name"] == "nsa-quick-spec"
    )


def test_pods_of_a_job_set_are_told_the_name_of_the_first() -> None:
    """By JobSet's rule: job set, job, its number, the pod's number; in the job set's own subdomain."""
    assert "--node-rank $JOB_COMPLETION_INDEX --master-addr nsa-quick-node-0-0.nsa-quick " in line_in(
        documents("jobset")["JobSet"]
    )


def test_what_is_missing_is_said(jobs: Jobs) -> None:
    with pytest.raises(UsageError, match="--image is missing"):
        documents("jobset", image=None)
    with pytest.raises(UsageError, match="have to share the results"):
        documents("rayjob", claim=None)
    for words, said in (
        ([], "hint: add --dry-run, and pipe it to kubectl"),
        (["--dry-run", "--manifest", "jobsett"], "--manifest is 'jobsett'"),
        (["--dry-run", "--partition", "x"], "--partition is for another engine, not for kubernetes"),
    ):
        done = jobs.run("matrix", "--engine", "kubernetes", *words)
        assert done.returncode == 2 and said in done.stderr, done.stderr
    done = jobs.run("matrix", "--image", "x")
    assert done.returncode == 2 and "--image is for another engine" in done.stderr
    shown = jobs.run("matrix", "--engine", "kubernetes", "--dry-run", "--nodes", "2").stdout
    assert "kind: TrainJob" in shown and "kubectl create secret generic nsa-quick-token" in shown
