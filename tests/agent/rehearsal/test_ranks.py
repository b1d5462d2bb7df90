"""Lines of torchrun that are started without it, and those that stay as they are."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from nsadiag.agent.rehearsal.ranks import environment, started_directly

TORCHRUN = str(Path(sys.executable).with_name("torchrun"))


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text(
        "import json, os, sys\nfrom pathlib import Path\n"
        "said = json.dumps([sys.argv[1:], dict(os.environ)])\n"
        "Path(__file__).with_name(f\"{os.environ['RANK']}.json\").write_text(said)\n"
    )
    return str(path)


@pytest.mark.parametrize(
    ("options", "ranks"),
    [
        ([], "1"),
        (["--standalone", "--nproc-per-node", "3"], "3"),
        (["--nproc_per_node=2", "--nnodes=1"], "2"),
    ],
)
def test_a_plain_line_is_started_directly(script: str, options: list[str], ranks: str) -> None:
    line = started_directly([TORCHRUN, *options, script, "--lr", "1"])
    assert line[1:3] == ["-m", "nsadiag.agent.rehearsal.ranks"]
    assert line[3] == ranks and line[5:] == [script, "--lr", "1"]


@pytest.mark.parametrize(
    "options", [["--nproc-per-node", "gpu"], ["--nnodes", "2"], ["--log-dir", "logs"], ["--module"]]
)
def test_any_other_line_is_the_launchers(script: str, options: list[str]) -> None:
    line = [TORCHRUN, *options, script]
    assert started_directly(line) == line


def test_another_program_is_itself(script: str) -> None:
    assert started_directly([sys.executable, script]) == [sys.executable, script]


def test_ranks_have_what_torchrun_gives_them(script: str) -> None:
    line = started_directly([TORCHRUN, "--nproc-per-node", "2", script, "x"])
    subprocess.run(line, check=True)
    ranks = [json.loads(Path(script).with_name(f"{rank}.json").read_text()) for rank in (0, 1)]
    assert [arguments for arguments, _ in ranks] == [["x"], ["x"]]
    assert [env["RANK"] for _, env in ranks] == ["0", "1"]
    assert {env["WORLD_SIZE"] for _, env in ranks} == {"2"}
    assert len({env["MASTER_PORT"] for _, env in ranks}) == 1


@pytest.mark.slow
def test_the_environment_has_every_variable_of_torchruns(script: str) -> None:
    subprocess.run([TORCHRUN, "--standalone", script], capture_output=True, check=True)
    theirs = json.loads(Path(script).with_name("0.json").read_text())[1]
    # Of torchrun's agent and of its terminal: nothing that a script asks for.
    agents = {"TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_SIGNALS_TO_HANDLE", "TORCHELASTIC_ERROR_FILE"}
    others = {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "COLUMNS", "LINES"}
    assert {name for name in theirs if name not in environment(0, 1, 1)} <= agents | others


def test_one_that_fails_ends_the_others(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import os, sys, time\nsys.exit(3) if os.environ['RANK'] == '1' else time.sleep(600)\n")
    line = started_directly([TORCHRUN, "--nproc-per-node", "2", str(script)])
    assert subprocess.run(line, check=False).returncode == 3
