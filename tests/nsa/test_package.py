"""The distribution nsa: built and installed into an empty directory, where torch is all that it finds."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
EXAMPLES = re.findall(
    r"^```python\n(.*?)^```", (ROOT / "nsa/README.md").read_text(), re.DOTALL | re.MULTILINE
)


def pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def with_dependencies(name: str, found: dict[str, importlib.metadata.Distribution]) -> None:
    """Add the distribution and all that it requires here, in `found`."""
    if name in found:
        return
    try:
        found[name] = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return  # of another platform
    for text in found[name].requires or ():
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            with_dependencies(requirement.name.lower(), found)


def links_to(directory: Path, *names: str) -> Path:
    """A directory that holds these distributions and what they require, and nothing else."""
    found: dict[str, importlib.metadata.Distribution] = {}
    for name in names:
        with_dependencies(name, found)
    directory.mkdir()
    for distribution in found.values():
        for top in {
            file.parts[0] for file in distribution.files or () if file.parts[0] not in ("..", "__pycache__")
        }:
            link = directory / top
            if not link.exists():
                link.symlink_to(distribution.locate_file(top))
    return directory


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Where the wheel was installed."""
    directory = tmp_path_factory.mktemp("package")
    pip(
        "wheel",
        str(ROOT / "packaging/nsa"),
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(directory / "wheels"),
    )
    (wheel,) = (directory / "wheels").glob("nsa-*.whl")
    pip("install", str(wheel), "--no-deps", "--target", str(directory / "site"))
    return directory / "site"


def run(code: str, *path: Path, cwd: Path) -> str:
    """What `code` prints with these directories, and the standard library, to import from."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path)), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-S", "-c", code]  # -S: without site-packages
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def needed(example: str) -> tuple[str, ...]:
    return tuple(re.findall(r"^# needs: (\S+)", example, re.MULTILINE))


@pytest.mark.parametrize(
    "number", [0, 1, *(pytest.param(n, marks=pytest.mark.slow) for n in range(2, len(EXAMPLES)))]
)
def test_an_example_of_the_readme_runs_from_the_wheel_with_torch_alone(number, installed, tmp_path):
    for name in needed(EXAMPLES[number]):
        pytest.importorskip({"pyyaml": "yaml"}.get(name, name), reason="pip install 'nsadiag[hf]'")
    site = links_to(tmp_path / "site", "torch", *needed(EXAMPLES[number]))
    run(EXAMPLES[number], installed, site, cwd=tmp_path)


def test_the_trainer_wants_numpy_and_yaml_alone_and_its_configurations_are_in_the_wheel(installed, tmp_path):
    site = links_to(tmp_path / "site", "torch", "numpy", "pyyaml")
    said = run("import nsa.train as t; t.main(['tiny'])", installed, site, cwd=tmp_path)
    assert "done: 3 steps" in said


@pytest.mark.slow
def test_the_trainer_says_what_it_wants(installed, tmp_path):
    said = run("""
try:
    import nsa.train
except ModuleNotFoundError as error:
    print(error)
""", installed, links_to(tmp_path / "site", "torch"), cwd=tmp_path)  # fmt: skip
    assert said == "the trainer needs numpy and PyYAML: pip install numpy PyYAML\n"


def test_the_source_distribution_builds_the_same_wheel(installed, tmp_path):
    build = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT / "packaging/nsa", check=True, capture_output=True, timeout=600)
    (sdist,) = tmp_path.glob("nsa-*.tar.gz")
    pip("wheel", str(sdist), "--no-deps", "--no-build-isolation", "-w", str(tmp_path))
    (wheel,) = tmp_path.glob("nsa-*.whl")
    (direct,) = (installed.parent / "wheels").glob("nsa-*.whl")
    assert contents(wheel) == contents(direct)


def contents(wheel: Path) -> dict[str, int]:
    """The package's files and their checksums."""
    with zipfile.ZipFile(wheel) as file:
        return {each.filename: each.CRC for each in file.infolist() if each.filename.startswith("nsa/")}


def test_the_wheel_requires_torch_alone_and_holds_its_readme(installed):
    (metadata,) = installed.glob("nsa-*.dist-info/METADATA")
    requires = re.findall(r"^Requires-Dist: (.*)$", metadata.read_text(), re.MULTILINE)
    assert [name for name in requires if "extra ==" not in name] == ["torch>=2.5"]
    assert "# nsa: Native Sparse Attention for PyTorch" in metadata.read_text()
    assert (installed / "nsa/LICENSE").read_text() == (ROOT / "LICENSE").read_text()
    assert not list(installed.glob("nsadiag*"))


@pytest.mark.parametrize("path", ["pyproject.toml", "packaging/nsa/pyproject.toml"])
def test_the_extra_of_flash_attn_4_takes_its_pre_releases_as_there_are_no_others(path):
    (text,) = re.findall(r'^flash = \["(.*?)"\]', (ROOT / path).read_text(), re.MULTILINE)
    assert Requirement(text).specifier.prereleases  # else pip would not look at them


def test_both_distributions_have_one_version():
    versions = [
        re.search(r'^version = "(.*)"', (ROOT / path).read_text(), re.MULTILINE)[1]
        for path in ("pyproject.toml", "packaging/nsa/pyproject.toml")
    ]
    assert versions[0] == versions[1]
