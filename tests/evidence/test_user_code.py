"""What counts as the user's own code: what the person runs, wherever it lies."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nsadiag.evidence.user_code import (
    counted,
    is_installed,
    is_library,
    is_user,
    is_user_of,
    roots_in,
    roots_of,
)

SITE = "/venv/lib/python3.12/site-packages"
CONSOLE_SCRIPT = """#!/venv/bin/python
# -*- coding: utf-8 -*-
import re
import sys
from {module} import main
if __name__ == '__main__':
    sys.argv[0] = re.sub(r'(-script\\.pyw|\\.exe)?$', '', sys.argv[0])
    sys.exit(main())
"""


@pytest.mark.parametrize(
    ("line", "roots"),
    [
        (["python", "-u", "-m", "uxpkg.train", "--lr", "1"], ["uxpkg"]),
        (["python", "-muxpkg.train"], ["uxpkg"]),
        (["python", "-X", "dev", "-W", "ignore", "-m", "uxpkg"], ["uxpkg"]),
        (["python", "-u", f"{SITE}/uxpkg/jobs/train.py"], ["uxpkg"]),
        (["python", "train.py", "-m", "other"], []),
        (["python", "-c", "import uxpkg"], []),
        (["python", "-m", "torch.distributed.run", "train.py"], []),
        (["python", "-m", "ipykernel_launcher", "-f", "kernel.json"], []),
        ([], []),
    ],
)
def test_the_package_of_the_entry_point_is_the_users(line: list[str], roots: list[str]) -> None:
    assert roots_of(line, 0) == roots


@pytest.mark.parametrize(("module", "roots"), [("uxpkg.cli", ["uxpkg"]), ("accelerate.commands.cli", [])])
def test_a_console_script_stands_for_the_package_that_it_calls(
    module: str, roots: list[str], tmp_path: Path
) -> None:
    script = tmp_path / "uxtrain"
    script.write_text(CONSOLE_SCRIPT.format(module=module))
    assert roots_of(["/venv/bin/python", str(script), "--lr", "1"], 0) == roots


def test_a_script_that_imports_others_is_no_entry_point_of_theirs(tmp_path: Path) -> None:
    script = tmp_path / "train"
    script.write_text("from numpy import array\nprint(array([1]))\n")
    assert roots_of(["python", str(script)], 0) == []


def test_packages_can_be_named_besides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NSADIAG_USER_CODE", "ours, tools.data,../etc,")
    assert roots_of(["python", "-m", "uxpkg"], 0) == ["ours", "tools/data", "uxpkg"]


def test_a_spawned_process_was_started_as_its_parent_was() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", "from multiprocessing.spawn import spawn_main; input()", "-m", "no"],
        stdin=subprocess.PIPE,
    )
    try:
        # Its own parent, this test, is what counts: pytest runs other people's code, and is nobody's.
        assert roots_of(
            [sys.executable, "-c", "from multiprocessing.spawn import spawn_main"], parent.pid
        ) == (roots_of(Path("/proc/self/cmdline").read_text().rstrip("\0").split("\0"), os.getppid()))
    finally:
        parent.communicate(b"\n")


@pytest.mark.parametrize(
    ("file", "user"),
    [
        (f"{SITE}/uxpkg/train.py", True),
        (f"{SITE}/uxpkg.py", True),
        (f"{SITE}/uxpkg_tools/train.py", False),
        (f"{SITE}/torch/nn/modules/module.py", False),
        (f"{SITE}/nsadiag/repro/healthy/healthy_ddp.py", True),
        (f"{SITE}/nsadiag/worker/failures/crash.py", False),
        ("/home/ada/nsadiag/worker/failures/crash.py", False),
        ("/home/ada/train.py", True),
        ("/usr/lib64/python3.11/threading.py", False),
        ("/usr/lib/python3.13t/threading.py", False),
        ("<frozen runpy>", False),
        ("", False),
    ],
)
def test_a_file_is_the_users_by_the_packages_that_the_rank_recorded(file: str, user: bool) -> None:
    with counted(["uxpkg"]):
        assert is_user(file) is user
    assert is_user_of(file, ("uxpkg",)) is user


def test_outside_the_block_the_package_is_a_librarys_again() -> None:
    file = f"{SITE}/uxpkg/train.py"
    with counted(["uxpkg"]):
        assert not is_installed(file)
    assert is_library(file)
    assert not is_library(f"{SITE}/torch/nn/modules/module.py")


@pytest.mark.parametrize(
    "document", [None, [], {"user_code": "uxpkg"}, {"user_code": [1, None, "", "../x", "/"]}]
)
def test_what_is_no_list_of_names_counts_as_none(document: object) -> None:
    assert roots_in(document) == ()


def test_the_ranks_record_what_counts(tmp_path: Path) -> None:
    """A rank asks of itself: nobody has to tell it."""
    package = tmp_path / "uxpkg"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(
        "from nsadiag.worker.place import learn_user_code\nprint(learn_user_code())\n"
    )
    path = os.pathsep.join([str(tmp_path), *sys.path])
    done = subprocess.run(
        [sys.executable, "-m", "uxpkg"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "['uxpkg']\n"
