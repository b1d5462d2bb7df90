"""What a run leaves is for its user alone, tells no secrets, listens to nobody, and never runs what it reads."""

import ast
import contextlib
import copyreg
import json
import os
import pickle
import re
import socket
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.jobs import BIN, GIVE_UP_S, Jobs, wait_until

from nsadiag.analysis.ingest.dumps import plain
from nsadiag.evidence.layout import make_private_dir, open_private, write_json
from nsadiag.evidence.pickles import PickleRefused
from nsadiag.evidence.secrets.masking import mask_command, mask_text, secret_values

ROOT = Path(__file__).resolve().parents[2]
TORCHRUN = ("torchrun", "--standalone", "--nproc-per-node", "2")

# Names that say what they are, and values that occur nowhere else.
ENVIRONMENT = {
    "WANDB_API_KEY": "planted0env0wandb",
    "NSADIAG_TEST_TOKEN": "planted1env1nsadiag",
    "TORCH_HUB_PASSWORD": 'planted2"env"\\torch',
    "NCCL_TEST_ADDRESS": "https://user:planted3env3address@host.example/x",
    "CUDA_STORE": "s3://bucket/x?X-Amz-Signature=planted4env4query&part=1",
    "HF_HOME_URL": "https://hf_plantedplantedplanted5@huggingface.co",
    "UNRELATED": "planted6env6unrelated",  # not secret by its name, and nobody's business all the same
}
ARGUMENTS = (
    "--api-key",
    "planted7arg7",
    "--auth-token=planted8arg8",
    "postgres://me:planted9arg9@db/x",
    "sk-planted10planted10",
)
PLANTED = re.compile(r"planted\d")

# Rank 1 waits for what never comes; the logs are the job's own, and it prints no secret.
HANG = """
import os, subprocess, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
worker = "import sys; print('up', flush=True); sys.stdin.read()"
child = subprocess.Popen(
    [sys.executable, "-c", worker, "--password", sys.argv[2]], stdin=subprocess.PIPE, stdout=subprocess.PIPE
)
child.stdout.readline()
password = os.environ["WANDB_API_KEY"]
for step in range(4):
    model(torch.ones(2, 4)).sum().backward()
if rank == 1:
    with open(os.environ["SIGNALS"], "w") as signals:
        signals.write("stuck\\n")
    time.sleep(100_000)
dist.barrier()
"""
RAISE = """
import os, sys
import torch
def log_in(url):
    try:
        raise OSError(f"401 from {url} with {os.environ['WANDB_API_KEY']}, Authorization: Bearer planted11bearer11")
    except OSError as error:
        raise RuntimeError(f"cannot log in as {sys.argv[2]} at {sys.argv[4]} with {sys.argv[5]}") from error
model = torch.nn.Linear(2, 2)
model(torch.ones(1, 2)).sum().backward()
log_in(os.environ["NCCL_TEST_ADDRESS"] + " " + os.environ["TORCH_HUB_PASSWORD"])
"""


def files(run: Path) -> Iterator[Path]:
    return (path for path in run.rglob("*") if not path.is_dir())


def is_the_jobs_own(path: Path) -> bool:
    """What the job itself said: to hide it would be to change it."""
    return path.name in ("stdout.log", "stderr.log", "launcher.stdout.log", "launcher.stderr.log")


def loose(run: Path) -> list[str]:
    """What of it somebody else could open."""
    found = []
    for path in (run, *run.rglob("*")):
        mode = stat.S_IMODE(path.lstat().st_mode)
        if mode != (0o700 if path.is_dir() else 0o600):
            found.append(f"{path.relative_to(run.parent)} {mode:o}")
    return found


def telltales(run: Path) -> list[str]:
    """Lines with a planted value in them."""
    found = []
    for path in files(run):
        if not is_the_jobs_own(path):
            text = path.read_bytes().decode("latin-1")
            found += [
                f"{path.relative_to(run)}: {text[max(m.start() - 60, 0) : m.end() + 20]!r}"
                for m in PLANTED.finditer(text)
            ]
    return found


def script(jobs: Jobs, text: str) -> Path:
    path = jobs.directory / "job.py"
    path.write_text(text)
    return path


# -- files ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_is_private_though_the_users_umask_is_open(jobs: Jobs) -> None:
    job = script(jobs, HANG)
    line = ("run", "--stall-after", "3", "--out", "below/this/run", "--", *TORCHRUN, job, *ARGUMENTS)
    done = jobs.run(*line, env=ENVIRONMENT, behind=["sh", "-c", 'umask 0; exec "$@"', "sh"])
    run = jobs.directory / "below/this/run"
    assert done.returncode == 1, done.stderr
    assert loose(run) == []
    assert (run.stat().st_mode & 0o777, run.parent.stat().st_mode & 0o777) == (0o700, 0o700)
    names = {path.name for path in files(run)}
    assert names >= {
        "blackbox.bin", "meta.json", "py_spy.json", "native.txt", "fr.json", "proc.json",
        "answers.json", "counters.json", "verdict.json", "report.html", "report.md", "run.json", "watch.json", "ends.json",
        "launcher.stderr.log", "stdout.log", "tracebacks.log",
    }  # fmt: skip
    assert telltales(run) == []
    # Hidden, not left out: the reader sees that there was something.
    assert (
        json.loads((run / "run.json").read_text())["environment"]["NCCL_TEST_ADDRESS"]
        == "https://***@host.example/x"
    )
    shown = (run / "ranks/00000/meta.json").read_text()
    assert "--api-key" in shown and "***" in shown
    children = list(run.glob("ranks/*/captures/*/children/*/proc.json"))
    assert children, "the ranks' own processes were looked at"


def test_the_jobs_own_files_keep_the_users_umask(jobs: Jobs) -> None:
    job = script(jobs, "open('theirs.txt', 'w').close(); import os; os.mkdir('folder'); print('done')")
    done = jobs.run(
        "run", "--out", "run", "--", "python", job, behind=["sh", "-c", 'umask 002; exec "$@"', "sh"]
    )
    assert done.returncode == 0, done.stderr
    assert (jobs.directory / "theirs.txt").stat().st_mode & 0o777 == 0o664
    assert (jobs.directory / "folder").stat().st_mode & 0o777 == 0o775


@pytest.mark.slow
def test_a_matrix_is_private_and_tells_no_secrets(jobs: Jobs) -> None:
    train = "import sys, torch; m = torch.nn.Linear(2, 2); m(torch.ones(1, 2)).sum().backward()"
    job = script(jobs, f"{train}; raise ValueError(f'refused: {{sys.argv[2]}}')")
    spec = jobs.directory / "spec.yaml"
    spec.write_text(
        f"name: planted\ncommand: {job} --api-key planted7arg7\nworld_size: 1\ntimeout_s: 60\n"
        "axes:\n  store:\n    values: [a]\n    env: {STORE_TOKEN: 'planted1env1nsadiag'}\n"
    )
    done = jobs.run(
        "matrix", spec, "--out", "run", env=ENVIRONMENT, behind=["sh", "-c", 'umask 0; exec "$@"', "sh"]
    )
    assert done.returncode == 1, done.stderr
    assert "refused: ***" in (jobs.directory / "run/matrix.csv").read_text()
    assert loose(jobs.directory / "run") == []
    assert telltales(jobs.directory / "run") == []


def test_files_are_private_from_the_first_moment(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with open_private(make_private_dir(tmp_path / "a/b/c") / "file") as file:
            assert os.fstat(file.fileno()).st_mode & 0o777 == 0o600
        write_json(tmp_path / "a/document.json", {})
    finally:
        os.umask(before)
    assert loose(tmp_path / "a") == []


def test_a_directory_that_is_there_already_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o755)
    make_private_dir(tmp_path / "shared/run")
    assert (tmp_path / "shared").stat().st_mode & 0o777 == 0o755


# -- secrets --------------------------------------------------------------------------------------


def test_an_exception_that_quotes_secrets_is_written_without_them(jobs: Jobs) -> None:
    job = script(jobs, RAISE)
    done = jobs.run("run", "--out", "run", "--", "python", job, *ARGUMENTS, env=ENVIRONMENT)
    run = jobs.directory / "run"
    verdict = json.loads((run / "verdict.json").read_text())
    assert (verdict["class"], verdict["where"]["function"]) == ("rank_exception", "log_in"), done.stderr
    assert telltales(run) == []
    exception = json.loads((run / "ranks/00000/exception.json").read_text())
    assert exception["message"] == "cannot log in as *** at postgres://***@db/x with ***"
    assert exception["cause"]["message"].count("***") >= 3
    # What we print is what we wrote; the job's own traceback is the job's.
    ours = done.stdout[done.stdout.index("CRASHED") :]
    assert not PLANTED.search(ours)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://user:pass@host/x", "https://***@host/x"),
        ("git+https://abcdef@host/x", "git+https://***@host/x"),
        ("https://host/x?token=abc&page=2", "https://host/x?token=***&page=2"),
        ("https://host/x?page=2&AWSAccessKeyId=abc", "https://host/x?page=2&AWSAccessKeyId=***"),
        ("Authorization: Bearer abc.def-ghi", "Authorization: Bearer ***"),
        ("key hf_abcdefghijklmnop, ghp_abcdefghij1 hf_aBcdefghij.pt", "key ***, *** ***.pt"),
        (
            "hf_rank0_evaluate.py hf_trainer/hf_accelerate.py",
            "hf_rank0_evaluate.py hf_trainer/hf_accelerate.py",
        ),
        ("eyJhbGciOiJI.eyJzdWIiOiIx.c2ln", "***"),
        ("https://host:8080/x?page=2#top", "https://host:8080/x?page=2#top"),
        (
            "gloo://10.0.0.1:29500 all_reduce sk-1 task-scheduler-42",
            "gloo://10.0.0.1:29500 all_reduce sk-1 task-scheduler-42",
        ),
    ],
)
def test_what_looks_like_a_secret_is_masked_and_the_rest_is_not(text: str, shown: str) -> None:
    assert mask_text(text) == shown
    assert json.loads(mask_text(json.dumps({"text": f'"{text}"'})))["text"] == f'"{shown}"'


def test_values_are_secret_by_the_name_of_their_variable_or_option() -> None:
    environment = {
        "API_KEY": "0123456789abcdef", "SHORT_KEY": "abc", "PATH_TO_KEY": "/home/me/.ssh/key", "KEYBOARD": "querty-layout",
        "TOKENIZERS_PARALLELISM": "false", "KEY_COUNT": "1234567890", "HOME": "/home/me/planted",
    }  # fmt: skip
    assert secret_values(environment, ["run", "--password", "correct1horse", "--lr", "0.0000001"]) == (
        "0123456789abcdef",
        "correct1horse",
    )


def test_command_lines_are_masked_by_option() -> None:
    words = [
        "python",
        "train.py",
        "--token",
        "abc",
        "--api-key=def",
        "-k",
        "v",
        "API_TOKEN=ghi",
        "--token",
        "--verbose",
    ]
    shown = [
        "python",
        "train.py",
        "--token",
        "***",
        "--api-key=***",
        "-k",
        "v",
        "API_TOKEN=***",
        "--token",
        "--verbose",
    ]
    assert mask_command(words) == shown


# -- the network ----------------------------------------------------------------------------------


LISTENS = "0A"


def listening(processes: dict[int, str]) -> list[str]:
    """Sockets of these processes on which anybody could call, as the kernel lists them."""
    inodes = set()
    for pid in processes:
        # A helper of a moment may be gone by now, and a descriptor closed.
        with contextlib.suppress(OSError):
            for entry in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    goal = str(entry.readlink())
                    if goal.startswith("socket:["):
                        inodes.add(goal[8:-1])
    found = []
    for table in ("tcp", "tcp6", "udp", "udp6"):
        lines = [line.split() for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]]
        # UDP has no state of listening: a bound socket is one.
        found += [
            table
            for words in lines
            if words[9] in inodes and (words[3] == LISTENS or table.startswith("udp"))
        ]
    return sorted(found)


@pytest.mark.slow
def test_nothing_listens_but_what_the_job_itself_opens_and_private_sockets(jobs: Jobs) -> None:
    job = script(jobs, HANG)
    environment = jobs.environment(ENVIRONMENT)
    plain = subprocess.Popen(
        [str(BIN / TORCHRUN[0]), *TORCHRUN[1:], str(job), *ARGUMENTS], cwd=jobs.directory, env=environment,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    assert jobs.signals.wait() == "stuck"
    without = listening(jobs.left())
    for pid in jobs.left():
        psutil.Process(pid).kill()
    plain.wait()
    wait_until(lambda: not jobs.left(), "the plain job gone")

    line = ("run", "--stall-after", "60", "--out", "run", "--", *TORCHRUN, job, *ARGUMENTS)
    started = jobs.start(*line, env=ENVIRONMENT, behind=["sh", "-c", 'umask 0; exec "$@"', "sh"])
    assert jobs.signals.wait() == "stuck"
    family = jobs.left()
    assert any("nsadiag" in line for line in family.values())
    within = listening(family)
    meta = json.loads((jobs.directory / "run/ranks/00000/meta.json").read_text())
    sockets = Path(psutil.Process(meta["pid"]).environ()["NSADIAG_SOCKET_DIR"])
    assert sorted(p.name for p in sockets.iterdir() if p.is_socket()) == ["0.sock", "1.sock"]
    assert loose(sockets) == []
    started.terminate()
    started.communicate(timeout=GIVE_UP_S)
    assert not sockets.exists()
    assert without != [], "gloo and torchrun's store do listen: the comparison can fail"
    assert within == without


def test_the_comparison_sees_a_socket_that_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)):
        assert listening({os.getpid(): ""})


# -- pickles --------------------------------------------------------------------------------------


UNPICKLERS = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}


def imported(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in (
            "import_module",
            "__import__",
        ):
            found |= {str(a.value).partition(".")[0] for a in node.args[:1] if isinstance(a, ast.Constant)}
    return found


def calls(path: Path) -> set[str]:
    """`eval`, `exec`, and `owner.load` of what could unpickle."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            found.add(node.func.id)
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Name)
        ):
            found.add(f"{node.func.value.id}.{node.func.attr}")
    return found


# The one that dumps of thousands of ranks need for its speed: it may import pickle for a subclass that finds no name.
NAMELESS = ROOT / "nsadiag/analysis/ingest/dumps/plain.py"
# What nsadiag tells the guard that it has just started, over a socket that only these two have.
GUARD = [ROOT / "nsadiag/agent/job/guard.py", ROOT / "nsadiag/agent/job/guarded_process.py"]

# The function that `nsadiag.check` was given, as multiprocessing's spawn hands one over: in a folder of the caller's own.
CALLED = [
    ROOT / "nsadiag/commands/experiments/check_function.py",
    ROOT / "nsadiag/worker/rehearsal/function.py",
]
# It becomes a rank, and runs the user's script as Python itself would.
ZYGOTE = ROOT / "nsadiag/worker/rehearsal/zygote.py"


def test_no_part_of_nsadiag_has_an_unpickler_or_runs_text() -> None:
    sources = sorted((ROOT / "nsadiag").rglob("*.py"))
    assert {p: found for p in sources if (found := imported(p) & UNPICKLERS)} == {
        NAMELESS: {"pickle"},
        # It writes the bytes of what was read, to compare them, and reads none.
        ROOT / "nsadiag/analysis/ingest/dumps/columns.py": {"marshal"},
        **{path: {"marshal"} for path in GUARD},
        **{path: {"pickle"} for path in CALLED},
    }
    forbidden = {"eval", "exec", "torch.load", "yaml.load", "pd.read_pickle", "pandas.read_pickle"}
    # A file of ours beside it, which is to be no module that the job could see.
    by_its_text = ROOT / "nsadiag/worker/bootstrap/sitecustomize.py"
    found = {p: found for p in sources if (found := calls(p) & forbidden)}
    assert found == {ZYGOTE: {"exec"}, by_its_text: {"exec"}}


class Calls:
    """What a hostile pickle would have made: the test fails if anybody makes it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, ("made-by-a-pickle",))


def test_the_one_unpickler_finds_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used = [
        node
        for node in ast.walk(ast.parse(NAMELESS.read_text()))
        if isinstance(node, ast.Attribute) and getattr(node.value, "id", None) == "pickle"
    ]
    assert [node.attr for node in used] == ["Unpickler"]  # the base class, and nothing else of the module
    monkeypatch.chdir(tmp_path)
    copyreg.add_extension("posix", "mkdir", 0x4E53)
    try:
        by_name = [pickle.dumps(Calls(), protocol) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)]
        assert any(b"made-by-a-pickle" in data and b"mkdir" not in data for data in by_name)  # by its number
    finally:
        copyreg.remove_extension("posix", "mkdir", 0x4E53)
    persistent = b"\x80\x04X\x01\x00\x00\x00aQ."
    for data in (*by_name, *(pickle.dumps(Calls(), n) for n in (0, 2, 4)), persistent):
        with pytest.raises(PickleRefused):
            plain.unpickle(data)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "source", ["import pickle", "from _pickle import loads", "def f():\n  __import__('pickle')"]
)
def test_a_planted_unpickler_is_seen(tmp_path: Path, source: str) -> None:
    (tmp_path / "planted.py").write_text(source)
    assert imported(tmp_path / "planted.py") & UNPICKLERS
