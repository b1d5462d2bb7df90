"""What reads evidence needs neither torch nor numpy nor pandas: `pip install nsadiag` brings none of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from dump_maker import Job, write_dumps
from support.recordings.golden import GOLDEN, unpack

MISSING = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("numpy", "pandas", "torch"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
"""
COMMAND = MISSING + "from nsadiag.cli import main\nsys.argv[0] = 'nsadiag'\nmain()\n"
# In one process: to import what a report needs takes longer than to make one.
REPORTS = (
    MISSING
    + """
from nsadiag.cli import main
run = sys.argv[1]
for kind in ("terminal", "md", "html", "json", "junit", "perfetto"):
    sys.argv = ["nsadiag", "report", run, "--format", kind]
    try:
        main()
    except SystemExit as end:
        assert not end.code, kind
    print("the next", flush=True)
"""
)


def light(source: str, *arguments: str | Path, code: int = 0) -> str:
    """What Python prints where none of the three is installed."""
    done = subprocess.run(
        [sys.executable, "-c", source, *map(str, arguments)], capture_output=True, text=True, check=False
    )
    assert done.returncode in ((0, 1) if code == 0 else (code,)), done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack(GOLDEN / "straggler_slow_input.tar.xz", tmp_path_factory.mktemp("light")).path


def test_a_run_is_judged_and_reported(run: Path) -> None:
    assert "straggler_rank, rank 1 of 2" in light(COMMAND, "analyze", run)
    reports = light(REPORTS, run).split("the next\n")[:-1]
    assert len(reports) == 6 and all(reports)
    assert "No difference" in light(COMMAND, "diff", run, run)
    assert "ended" in light(COMMAND, "top", run, "--once")


def test_a_process_that_stands_still_is_attached_to(tmp_path: Path) -> None:
    source = "import time\nprint(flush=True)\ntime.sleep(600)\n"
    alone = {**os.environ, "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    with subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, env=alone) as rank:
        try:
            assert rank.stdout is not None and rank.stdout.readline()
            assert "HUNG" in light(COMMAND, "attach", str(rank.pid), "--out", tmp_path / "attached")
        finally:
            rank.kill()


def test_dumps_of_many_ranks_are_judged(tmp_path: Path) -> None:
    write_dumps(tmp_path, Job(ranks=16, entries=300, fault="missing", culprit=3))
    assert "rank 3 of 16" in light(COMMAND, "analyze", tmp_path)


@pytest.mark.parametrize(
    "module", ["agents.server", "attach", "analyze", "diff", "faults", "listing", "runs", "top", "run"]
)
def test_commands_load(module: str) -> None:
    light(f"{MISSING}import importlib\nimportlib.import_module('nsadiag.commands.{module}')")


def test_who_asks_for_a_data_frame_is_told_what_to_install(run: Path) -> None:
    source = f"""{MISSING}
import nsadiag
from nsadiag.errors import UsageError
loaded = nsadiag.load({str(run)!r})
assert loaded.ranks
for name in ("events", "steps", "calls"):
    try:
        getattr(loaded, name)
    except UsageError as error:
        print(error, error.hint)
"""
    told = "data frames need pandas, and it is not installed pip install 'nsadiag[run]'\n"
    assert light(source) == 3 * told
