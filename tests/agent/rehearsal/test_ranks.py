"""Lines of torchrun that are started without it, and those that stay as they are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nsadiag.agent.rehearsal.ranks import common_environment, own_environment, started_directly

TORCHRUN = str(Path(sys.executable).with_name("torchrun"))


SAYS = """
import json, os, sys, tempfile
from pathlib import Path
main = sys.modules["__main__"]
said = {
    "argv": sys.argv, "orig_argv": sys.orig_argv[2:], "env": dict(os.environ), "path": sys.path, "pid": os.getpid(), "parent": os.getppid(),
    "main": [main.__file__, main.__spec__ and main.__spec__.name, main.__name__, vars(main) is globals(), main.__builtins__ is __builtins__],
    "hash": hash("a text"), "temporary": next(tempfile._get_candidate_names()),
}
import numpy
said["numpy"] = numpy.random.random()
Path(__file__).with_name(os.environ["RANK"] + ".json").write_text(json.dumps(said))
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text(SAYS)
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
    "options", [["--nproc-per-node", "gpu"], ["--nnodes", "2"], ["--log-dir", "logs"], ["--no-python"]]
)
def test_any_other_line_is_the_launchers(script: str, options: list[str]) -> None:
    line = [TORCHRUN, *options, script]
    assert started_directly(line) == line


def test_another_program_is_itself(script: str) -> None:
    assert started_directly([sys.executable, script]) == [sys.executable, script]


def test_a_module_is_started_as_one() -> None:
    assert started_directly([TORCHRUN, "-m", "package.train", "x"])[-3:] == ["-m", "package.train", "x"]


def test_the_number_of_ranks_may_be_another(script: str) -> None:
    assert started_directly([TORCHRUN, "--nproc-per-node", "gpu", script], ranks=3)[3] == "3"


def started(tmp_path: Path, *words: str, env: dict[str, str] | None = None) -> int:
    """The exit code of a torchrun line that is started directly, in a directory of its own."""
    line = started_directly([TORCHRUN, *words])
    environment = {**os.environ, "NSADIAG_RUN_DIR": str(tmp_path / "run"), **(env or {})}
    return subprocess.run(line, check=False, cwd=tmp_path, env=environment).returncode


def said_by(script: str, ranks: int) -> list[dict[str, Any]]:
    return [json.loads(Path(script).with_name(f"{rank}.json").read_text()) for rank in range(ranks)]


def test_ranks_have_what_torchrun_gives_them(script: str, tmp_path: Path) -> None:
    assert started(tmp_path, "--nproc-per-node", "2", script, "x") == 0
    ranks = said_by(script, 2)
    assert [rank["argv"] for rank in ranks] == [[script, "x"]] * 2
    assert [rank["env"]["RANK"] for rank in ranks] == ["0", "1"]
    assert {rank["env"]["WORLD_SIZE"] for rank in ranks} == {"2"}
    assert len({rank["env"]["MASTER_PORT"] for rank in ranks}) == 1
    assert len({rank["parent"] for rank in ranks}) == 1


def test_ranks_differ_in_all_that_processes_differ_in(script: str, tmp_path: Path) -> None:
    assert started(tmp_path, "--nproc-per-node", "3", script) == 0
    ranks = said_by(script, 3)
    assert len({rank["numpy"] for rank in ranks}) == 3
    assert len({rank["temporary"] for rank in ranks}) == 3
    assert len({rank["pid"] for rank in ranks}) == 3
    assert len({rank["hash"] for rank in ranks}) == 2  # that of either zygote


def test_a_hash_salt_that_the_person_chose_is_that_of_all_ranks(script: str, tmp_path: Path) -> None:
    assert started(tmp_path, "--nproc-per-node", "2", script, env={"PYTHONHASHSEED": "7"}) == 0
    assert len({rank["hash"] for rank in said_by(script, 2)}) == 1


@pytest.mark.parametrize("as_module", [False, True])
def test_a_rank_is_what_python_makes_of_the_script(script: str, tmp_path: Path, *, as_module: bool) -> None:
    words = ["-m", "train"] if as_module else [script]
    subprocess.run([sys.executable, "-u", *words], check=True, cwd=tmp_path, env={**os.environ, "RANK": "0"})
    (alone,) = said_by(script, 1)
    assert started(tmp_path, *words) == 0
    (rank,) = said_by(script, 1)
    # What `sitecustomize` adds to the path is the test's, in both.
    for name in ("argv", "path", "main", "orig_argv"):
        assert rank[name] == alone[name], name


def test_ranks_share_what_their_script_imports_of_torch_and_never_collect_it(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import gc, sys\n"
        "assert 'torch.distributed.elastic.timer' in sys.modules and gc.get_freeze_count() > 10**5\n"
        "import torch.distributed.elastic.timer\n"
    )
    assert started(tmp_path, str(script)) == 0


@pytest.mark.slow
def test_the_environment_has_every_variable_of_torchruns(script: str) -> None:
    subprocess.run([TORCHRUN, "--standalone", script], capture_output=True, check=True)
    (theirs,) = said_by(script, 1)
    # Of torchrun's agent and of its terminal: nothing that a script asks for.
    agents = {"TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_SIGNALS_TO_HANDLE", "TORCHELASTIC_ERROR_FILE"}
    others = {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "COLUMNS", "LINES"}
    ours = {**common_environment(1, 1), **own_environment(0)}
    assert {name for name in theirs["env"] if name not in ours} <= agents | others


@pytest.mark.parametrize(
    ("ends", "code"),
    [("sys.exit(3)", 3), ("os._exit(4)", 4), ("1 / 0", 1), ("os.kill(os.getpid(), 9)", 137)],
    ids=["exit", "_exit", "exception", "signal"],
)
def test_one_that_fails_ends_the_others(tmp_path: Path, ends: str, code: int) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"import os, sys, time\nif os.environ['RANK'] == '1': {ends}\ntime.sleep(600)\n")
    assert started(tmp_path, "--nproc-per-node", "2", str(script)) == code


def test_exit_handlers_and_threads_have_their_end(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import atexit, pathlib, threading, time\n"
        "note = lambda name: pathlib.Path(name).touch()\n"
        "atexit.register(note, 'handler')\n"
        "threading.Thread(target=lambda: (time.sleep(0.2), note('thread'))).start()\n"
    )
    assert started(tmp_path, str(script)) == 0
    assert (tmp_path / "handler").exists() and (tmp_path / "thread").exists()


def test_a_script_that_has_no_torch_is_run(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('no torch here')\n")
    (tmp_path / "train.py").write_text("open('ran', 'w')\n")
    assert started(tmp_path, str(tmp_path / "train.py")) == 0
    assert (tmp_path / "ran").exists()
