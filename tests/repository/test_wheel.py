"""The wheel as a person installs it: in an environment without the checkout, from an empty directory."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from support.jobs import Jobs
from support.promises import script_of

ROOT = Path(__file__).resolve().parents[2]
MAY_TAKE_S = 600.0  # on a machine that is busy; 25 s on one that is not


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment that sees what this one has installed, and nsadiag from its wheel alone."""
    home = tmp_path_factory.mktemp("wheel")
    # Where the build backend is at hand no other has to be fetched for it.
    offline = ["--no-build-isolation"] if importlib.util.find_spec("hatchling") else []
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*pip, "wheel", "--no-deps", *offline, "-w", home, ROOT], check=True)
    venv.create(home / "env", symlinks=True)
    python = home / "env" / "bin" / "python"
    shared = [p for p in sys.path if p.endswith(("site-packages", "dist-packages"))]
    (packages(python) / "shared.pth").write_text("".join(f"{path}\n" for path in shared))
    (wheel,) = home.glob("*.whl")
    # What is never imported need not be compiled.
    install = ["install", "--no-deps", "--no-compile", "--force-reinstall"]
    subprocess.run([*pip, "--python", python, *install, wheel], check=True)
    return python


def packages(python: Path) -> Path:
    (found,) = (python.parents[1] / "lib").glob("python3*/site-packages")
    return found


def nsadiag(python: Path, jobs: Jobs, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The installed command, as its person would type it."""
    environment = jobs.environment({"COLUMNS": "500"})
    environment.pop("PYTHONPATH", None)
    environment["PATH"] = f"{python.parent}{os.pathsep}{environment['PATH']}"
    done = subprocess.run(
        [python.parent / "nsadiag", *arguments],
        cwd=jobs.directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=MAY_TAKE_S,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    return done


def as_printed(text: str) -> str:
    """From the verdict to the report's path, on one line; what a clock says, and where the script lies, left out.

    So are gaps: on a busy machine native frames may not come in time, and ranks wait for one another before the fault, too.
    """
    shown = text[text.index(" HUNG ") : text.index("  report  ")]
    shown = re.sub(r"\n  Gaps\n.*?\n(?=  fix )", "\n", re.sub(r"\S*repro/", "repro/", shown), flags=re.DOTALL)
    clockless = re.sub(r"(\d+ min )?\d+(\.\d+)? (s|ms|steps/s)\b", "...", " ".join(shown.split()))
    return clockless.replace(" (... in all)", "")


@pytest.mark.timeout(MAY_TAKE_S)
def test_the_demo_of_the_wheel_prints_what_the_guide_shows(installed: Path, jobs: Jobs) -> None:
    done = nsadiag(installed, jobs, "demo")
    assert as_printed(done.stdout) == as_printed((ROOT / "docs/guide.md").read_text())


@pytest.mark.timeout(MAY_TAKE_S)
def test_an_installed_package_that_is_run_is_the_users_code(installed: Path, jobs: Jobs) -> None:
    package = packages(installed) / "uxpkg"
    package.mkdir()
    (package / "__init__.py").touch()
    shutil.copy(script_of("rank_conditional_save"), package / "train.py")
    launcher = [str(installed), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = nsadiag(installed, jobs, "run", "--json", "--", *launcher, "-m", "uxpkg.train")
    verdict = json.loads(done.stdout)["verdict"]
    assert (verdict["class"], verdict["guilty_ranks"]) == ("rank_conditional_collective", [0])
    assert verdict["where"]["file"] == str(package / "train.py")
    assert (package / "train.py").read_text().splitlines()[verdict["where"]["line"] - 1].strip() == (
        verdict["where"]["code"]
    )
    assert not verdict["where"]["library"]
