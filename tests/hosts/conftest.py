"""What tests on several hosts share. All of them are marked `cluster`, and say why where they cannot run."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cluster import hosts as namespaces
from support.cluster import ray_cluster as rays
from support.cluster import slurm as slurms
from support.cluster.hosts import Hosts
from support.cluster.ray_cluster import RayCluster
from support.cluster.slurm import Slurm


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = f"{Path(__file__).parent}{os.sep}"
    for item in items:
        if str(item.path).startswith(here):  # of thousands; paths take their time to compare
            item.add_marker(pytest.mark.cluster)


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    """node0 and node1, which share tmp_path; what runs on them ends with the test."""
    if reason := namespaces.unavailable():
        pytest.skip(reason)
    both = Hosts(("node0", "node1"), tmp_path)
    try:
        yield both
    finally:
        both.close()


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[Slurm]:
    """A controller on `head`, and node0 and node1 with two fake GPUs each; all share tmp_path."""
    if reason := namespaces.unavailable() or slurms.unavailable():
        pytest.skip(reason)
    directory = slurms.short_directory()
    three = Hosts(("head", "node0", "node1"), tmp_path, directory)
    try:
        yield Slurm(three, directory)
    finally:
        three.close()
        shutil.rmtree(directory)


@pytest.fixture(scope="module")
def ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    """node0, where the head is, and node1, with two CPUs each; both share `directory`. One for all tests of a module."""
    if reason := namespaces.unavailable() or rays.unavailable():
        pytest.skip(reason)
    directory = tmp_path_factory.mktemp("ray")
    both = Hosts(("node0", "node1"), directory)
    try:
        yield RayCluster(both, directory)
    finally:
        both.close()
