"""docs/clusters.md: its YAML is YAML, says what those systems expect, and its nsadiag lines have options that exist."""

import itertools
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from nsadiag.cli import app
from nsadiag.commands.batch.kubernetes import Deployment, manifests
from nsadiag.spec import Matrix

DOC = (Path(__file__).resolve().parents[2] / "docs/clusters.md").read_text()
DOCUMENTS = [
    document
    for block in re.findall(r"```yaml\n(.*?)```", DOC, re.DOTALL)
    for document in yaml.safe_load_all(block)
]


def of_kind(key: str, value: str) -> dict[str, Any]:
    (found,) = [document for document in DOCUMENTS if document.get(key) == value]
    return found


def lines() -> list[str]:
    """Every nsadiag line of the page, in YAML or in a shell block, joined where it is broken."""
    blocks = re.findall(r"```(?:sh|yaml)\n(.*?)```", DOC, re.DOTALL)
    joined = [re.sub(r"\\\n\s*", " ", block) for block in blocks]
    found = []
    for block in joined:
        # A folded block goes on as long as lines begin with an option.
        folded = re.sub(r"\n\s*(?=--\w|--\n|--$|torchrun train)", " ", block)
        found += re.findall(r"nsadiag (?:run|matrix|attach) [^'\n#]*", folded)
    return found


@pytest.mark.parametrize("line", lines())
def test_every_line_has_options_that_exist(line: str) -> None:
    words = shlex.split(line.replace("$(", "").replace(")", ""))
    command = get_command(app).commands[words[1]]  # type: ignore[attr-defined]
    known = {option for parameter in command.params for option in parameter.opts}
    ours = words[2 : words.index("--")] if "--" in words else words[2:]
    assert [word for word in ours if word.startswith("--") and word not in known] == []


def test_there_is_a_line_for_every_engine() -> None:
    said = "\n".join(lines())
    assert (
        said.count("--engine slurm") >= 3
        and said.count("--engine ray") >= 2
        and said.count("--node-rank") >= 7
        and "attach slurm:" in said
    )


def test_pods_of_the_indexed_job_find_each_other() -> None:
    job, service = of_kind("kind", "Job"), of_kind("kind", "Service")
    assert (
        job["spec"]["completionMode"] == "Indexed"
        and job["spec"]["completions"] == job["spec"]["parallelism"] == 2
    )
    pod, name = job["spec"]["template"]["spec"], service["metadata"]["name"]
    assert service["spec"]["clusterIP"] == "None" and service["spec"]["selector"] == {
        "job-name": job["metadata"]["name"]
    }
    assert pod["subdomain"] == name
    (container,) = pod["containers"]
    assert f"--master-addr {job['metadata']['name']}-0.{name}" in container["command"][-1]
    assert {mount["name"] for mount in container["volumeMounts"]} == {
        volume["name"] for volume in pod["volumes"]
    }
    assert container["envFrom"][0]["secretRef"]["name"] == of_kind("kind", "Secret")["metadata"]["name"]


def test_every_token_in_the_page_is_long_enough_to_be_accepted() -> None:
    from nsadiag.cluster.protocol.tokens import SHORTEST_TOKEN

    assert len(of_kind("kind", "Secret")["stringData"]["NSADIAG_RUN_TOKEN"]) >= SHORTEST_TOKEN


def test_the_trainjob_is_the_one_that_its_line_writes() -> None:
    """From the guide's spec, whose name the line's file has."""
    line = next(line for line in lines() if "--engine kubernetes" in line and "--manifest" not in line)
    options = dict(itertools.pairwise(shlex.split(line.partition("|")[0])))
    guide = Path(__file__).resolve().parents[2] / "docs/guide.md"
    spec = next(
        block
        for block in re.findall(r"```yaml\n(.*?)```", guide.read_text(), re.DOTALL)
        if "name: threads" in block
    )
    deployment = Deployment(
        matrix=Matrix(**yaml.safe_load(spec)),
        nodes=int(options["--nodes"]),
        gpus_per_node=int(options["--gpus-per-node"]),
        image=options["--image"],
        claim=options["--claim"],
    )
    written = list(yaml.safe_load_all(manifests("trainjob", deployment)))
    assert of_kind("kind", "TrainJob") in written


def test_skypilot_and_dstack_start_as_many_nodes_as_they_say() -> None:
    sky, dstack = of_kind("num_nodes", 2), of_kind("type", "task")  # type: ignore[arg-type]
    assert "$SKYPILOT_NUM_NODES" in sky["run"] and dstack["nodes"] == 2
    assert "$DSTACK_MASTER_NODE_IP" in dstack["commands"][-1]
