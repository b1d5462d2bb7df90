"""What a person does wrong, or the machine refuses, ends in one clear line, the documented code, and no litter."""

import importlib.util
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
import typer
from support.jobs import BIN, Jobs, wait_until
from typer.models import OptionInfo

from nsadiag import __version__
from nsadiag.cli import app
from nsadiag.commands.demo import demo_request
from nsadiag.errors import MachineError

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = ("run", "matrix", "analyze", "report")
SPEC = "name: tiny\ncommand: cell.py\naxes: {x: {values: [1, 2], args: '{value}'}}\n"
# A rank as the worker sees it, without torch and its seconds: RANK is set, the black box is opened.
RANK = ("env", "RANK=0", "WORLD_SIZE=1", "python", "rank.py")
TWO_RANKS = ("sh", "-c", "for r in 0 1; do RANK=$r WORLD_SIZE=2 python rank.py & done; wait")
SAY = """
import os, signal, sys
def say(word):
    with open(os.environ["SIGNALS"], "w") as signals:
        signals.write(word + "\\n")
def wait_for_go():
    with open(os.environ["GO"]) as go:
        go.readline()
"""


def write_rank(jobs: Jobs, source: str) -> None:
    (jobs.directory / "rank.py").write_text(SAY + source)


def in_look(run: Path, number: int = 1) -> bool:
    return (run / f"ranks/00000/captures/{number:02d}/proc.json").exists()


def assert_refused(done: subprocess.CompletedProcess[str], code: int, *named: str, hint: bool = True) -> None:
    """One line that names what is wrong, a hint, the code; no traceback, nothing on stdout."""
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    hints = [line for line in done.stderr.splitlines() if line.startswith("hint: ")]
    assert len(errors) == 1, done.stderr
    assert len(hints) == hint, done.stderr
    for word in named:
        assert word in errors[0]
    assert done.stdout == ""


def written(directory: Path) -> set[Path]:
    return {path for path in directory.rglob("*") if not path.is_fifo()}


# -- the command line itself ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("frobnicate", "frobnicate"),
        ("run --out new", "no command"),
        ("run --out new --", "no command"),
        ("run --out new -- no-such-launcher train.py", "no-such-launcher"),
        ("run --out new -- python nowhere.py", "nowhere.py"),
        ("run --out new -- torchrun --nproc-per-node 2 nowhere.py --lr 1", "nowhere.py"),
        ("run --out new --frobnicate -- true", "--frobnicate"),
        ("run --out new --timeout soon -- true", "--timeout"),
        ("run --out new --timeout -1 -- true", "--timeout"),
        ("run --out new --stall-after soon -- true", "soon"),
        ("run --out new --stall-after nan -- true", "nan"),
        ("run --out new --on-hang panic -- true", "panic"),
        ("run --out new --probes light,brain -- true", "brain"),
        ("matrix --out new --frobnicate", "--frobnicate"),
        ("matrix --out new nowhere.yaml", "nowhere.yaml"),
        ("matrix --out new no_yaml.txt", "no_yaml.txt"),
        ("matrix --out new unknown_key.yaml", "'comand'"),
        ("matrix --out new no_script.yaml", "cell.py"),
        ("matrix --out new bad_probe.yaml", "brain"),
        ("matrix --out new -k layers=3", "layers=3"),
        ("matrix --out new -k (ddp", "(ddp"),
        ("matrix --out new --resume", "--resume"),
        ("matrix --out new --repeat 0", "--repeat"),
        ("analyze nowhere", "nowhere"),
        ("analyze empty", "empty"),
        ("report nowhere", "nowhere"),
        ("report empty", "empty"),
        ("report no_yaml.txt", "no_yaml.txt"),
        ("report empty --format papyrus", "papyrus"),
        ("report", "artifacts"),
    ],
)
def test_a_wrong_line_is_refused_before_anything_is_written(jobs: Jobs, line: str, named: str) -> None:
    (jobs.directory / "no_yaml.txt").write_text("name: [\n")
    (jobs.directory / "unknown_key.yaml").write_text(SPEC.replace("command", "comand"))
    (jobs.directory / "no_script.yaml").write_text(SPEC)
    (jobs.directory / "bad_probe.yaml").write_text(SPEC.replace("cell.py", "-m this") + "probes: brain\n")
    (jobs.directory / "empty").mkdir()
    before = written(jobs.directory)
    assert_refused(jobs.run(*shlex.split(line)), 2, named)
    assert written(jobs.directory) == before


def test_no_arguments_at_all_show_the_help(jobs: Jobs) -> None:
    done = jobs.run()
    assert done.returncode == 2
    assert "Usage: nsadiag" in done.stdout + done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_help_ends_with_an_example_that_parses(jobs: Jobs, command: str) -> None:
    done = jobs.run(command, "--help")
    assert done.returncode == 0 and done.stderr == ""
    _, found, example = done.stdout.partition("Example: ")
    assert found, done.stdout
    program, name, *arguments = shlex.split(example)
    assert (program, name) == ("nsadiag", command)
    group = typer.main.get_command(app)
    assert group.commands[name].make_context(name, arguments).params  # type: ignore[attr-defined]
    # Whoever installed the wheel has no checkout.
    assert not [word for word in arguments if word.startswith(("repro/", "configs/", "docs/"))]


def test_the_help_lists_every_command(jobs: Jobs) -> None:
    done = jobs.run("--help")
    assert done.returncode == 0
    assert all(f"  {command} " in done.stdout for command in typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    assert not re.search(r"^  \w.*\.\.\.$", done.stdout, re.MULTILINE), "a line is cut off"


def test_the_version_is_one_line(jobs: Jobs) -> None:
    done = jobs.run("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"nsadiag {__version__}\n", "")


# -- the output directory ------------------------------------------------------------------------


def test_an_output_directory_with_something_in_it_is_left_alone(jobs: Jobs) -> None:
    precious = jobs.directory / "out" / "precious"
    precious.parent.mkdir()
    precious.write_text("kept")
    assert_refused(jobs.run("run", "--out", "out", "--", "true"), 2, "out")
    assert precious.read_text() == "kept" and list(precious.parent.iterdir()) == [precious]


def test_force_does_not_remove_what_nsadiag_did_not_write(jobs: Jobs) -> None:
    precious = jobs.directory / "out" / "precious"
    precious.parent.mkdir()
    precious.write_text("kept")
    assert_refused(jobs.run("run", "--force", "--out", "out", "--", "true"), 2, "out")
    (jobs.directory / "file").write_text("kept")
    assert_refused(jobs.run("run", "--force", "--out", "file", "--", "true"), 2, "file")
    assert precious.read_text() == (jobs.directory / "file").read_text() == "kept"


@pytest.mark.slow
def test_force_replaces_an_earlier_run_of_ours(jobs: Jobs) -> None:
    assert jobs.run("run", "--out", "out", "--", "true").returncode == 0
    assert_refused(jobs.run("run", "--out", "out", "--", "true"), 2, "out")
    (jobs.directory / "out" / "old").write_text("")
    assert jobs.run("run", "--force", "--out", "out", "--", "true").returncode == 0
    assert not (jobs.directory / "out" / "old").exists()


def test_an_output_directory_that_is_a_file_is_refused(jobs: Jobs) -> None:
    (jobs.directory / "file").write_text("kept")
    assert_refused(jobs.run("run", "--out", "file", "--", "true"), 2, "file")
    assert_refused(jobs.run("run", "--out", "file/below", "--", "true"), 3, "file/below")
    assert (jobs.directory / "file").read_text() == "kept"


def test_an_output_directory_that_cannot_be_made_is_the_machines_fault(jobs: Jobs) -> None:
    assert_refused(jobs.run("run", "--out", "/proc/nowhere/run", "--", "true"), 3, "/proc/nowhere/run")


def test_a_read_only_output_directory_is_the_machines_fault(jobs: Jobs, read_only_disk: Path) -> None:
    for out in (read_only_disk, read_only_disk / "run"):
        assert_refused(jobs.run("run", "--out", out, "--", "true"), 3, str(out), "Read-only")


# -- what the machine refuses while the job runs --------------------------------------------------


def test_a_full_disk_ends_neither_the_job_nor_costs_it_the_verdict(jobs: Jobs, tiny_disk: Path) -> None:
    write_rank(jobs, "say('training'); wait_for_go(); print('a line', flush=True); say('done')")
    started = jobs.start("run", "--stall-after", "0.2", "--out", tiny_disk / "run", "--", *RANK)
    assert jobs.signals.wait() == "training"
    fill(tiny_disk)
    # A look that finds no room for its evidence must not be the end of the job either.
    # A directory takes no room on this file system.
    wait_until((tiny_disk / "run/ranks/00000/captures/02").is_dir, "a look")
    jobs.go()
    assert jobs.signals.wait() == "done"
    assert_judged_all_the_same(jobs.finish(started))


def test_a_disk_that_is_full_from_the_start_costs_the_evidence_alone(jobs: Jobs, tiny_disk: Path) -> None:
    fill(tiny_disk)
    done = jobs.run("run", "--out", tiny_disk / "run", "--", "true")
    assert_judged_all_the_same(done)


def assert_judged_all_the_same(done: subprocess.CompletedProcess[str]) -> None:
    """The job's own success counts, its verdict is on the terminal, and one line says what could not be written."""
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "No space left on device" in line]
    assert "not written" in line and "verdict.json" in line
    assert re.search(r"HEALTHY|UNKNOWN|Nothing to diagnose", done.stdout), done.stdout


def fill(disk: Path) -> None:
    with (disk / "filling").open("wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
        while True:
            file.write(bytes(4096))


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="drops a capability of root")
def test_without_permission_to_read_stacks_the_verdict_names_the_gap(jobs: Jobs) -> None:
    # PR_SET_DUMPABLE 0: the process may be read by nobody without CAP_SYS_PTRACE.
    write_rank(jobs, "import ctypes; ctypes.CDLL(None).prctl(4, 0); say('training'); signal.pause()")
    behind = ("setpriv", "--bounding-set", "-sys_ptrace", "--inh-caps", "-sys_ptrace")
    done = jobs.run("run", "--stall-after", "0.2", "--out", "run", "--", *RANK, behind=behind)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    verdict = json.loads((jobs.directory / "run/verdict.json").read_text())
    assert verdict["outcome"] == "hung"
    assert [gap for gap in verdict["gaps"] if "py-spy" in gap and "ermission" in gap], verdict["gaps"]


# -- interrupted ---------------------------------------------------------------------------------

either_signal = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "sigterm"])


def assert_interrupted(done: subprocess.CompletedProcess[str], run: Path) -> None:
    assert done.returncode == 130, done.stderr
    assert "Traceback" not in done.stderr
    assert [line for line in done.stderr.splitlines() if line.startswith("error: ")] == ["error: interrupted"]
    assert json.loads((run / "run.json").read_text())["kind"] in ("run", "matrix")


@either_signal
def test_an_interrupt_at_the_start_leaves_no_process(jobs: Jobs, number: int) -> None:
    write_rank(jobs, "say('training'); signal.pause()")
    run = jobs.directory / "run"
    started = jobs.start("run", "--out", run, "--", *RANK)
    wait_until((run / "run.json").exists, "the run begun")
    started.send_signal(number)
    assert_interrupted(jobs.finish(started), run)


@either_signal
def test_an_interrupt_while_ranks_train_still_gives_a_verdict(jobs: Jobs, number: int) -> None:
    write_rank(jobs, "say('training'); signal.pause()")
    run = jobs.directory / "run"
    started = jobs.start("run", "--out", run, "--", *TWO_RANKS)
    assert [jobs.signals.wait(), jobs.signals.wait()] == ["training"] * 2
    started.send_signal(number)
    assert_interrupted(jobs.finish(started), run)
    assert json.loads((run / "verdict.json").read_text())["summary"].startswith("Interrupted")
    assert json.loads((run / "watch.json").read_text())["stopped"] == "interrupt"
    assert (run / "report.html").exists()


def test_an_interrupt_while_a_look_is_taken_still_gives_a_verdict(jobs: Jobs) -> None:
    write_rank(jobs, "say('training'); signal.pause()")
    run = jobs.directory / "run"
    started = jobs.start("run", "--stall-after", "0.2", "--out", run, "--", *RANK)
    wait_until(lambda: in_look(run), "a look")
    started.send_signal(signal.SIGINT)
    assert_interrupted(jobs.finish(started), run)
    assert json.loads((run / "verdict.json").read_text())["outcome"] == "incomplete"


def test_a_second_interrupt_does_not_leave_a_job_that_is_slow_to_end(jobs: Jobs) -> None:
    write_rank(
        jobs,
        "signal.signal(signal.SIGTERM, lambda *_: say('asked to end'))\n"
        "say('training')\nwhile True: signal.pause()",
    )
    run = jobs.directory / "run"
    started = jobs.start("run", "--out", run, "--", *RANK)
    assert jobs.signals.wait() == "training"
    # Registered, hence known to the watch, which then has someone to ask.
    started.send_signal(signal.SIGINT)
    assert jobs.signals.wait() == "asked to end"
    started.send_signal(signal.SIGINT)
    assert_interrupted(jobs.finish(started), run)
    assert (run / "verdict.json").exists()


# -- exit codes and output -----------------------------------------------------------------------


def test_the_timeout_of_a_job_that_still_works_has_a_code_of_its_own(jobs: Jobs) -> None:
    write_rank(jobs, "while True: pass")
    done = jobs.run("run", "--timeout", "1.5", "--out", "run", "--", *RANK)
    assert done.returncode == 124, done.stderr
    assert json.loads((jobs.directory / "run/verdict.json").read_text())["outcome"] != "hung"


@pytest.mark.parametrize(("command", "code"), [("exit 0", 0), ("exit 37", 37), ("kill -9 $$", 137)])
def test_passthrough_ends_with_the_jobs_own_code(jobs: Jobs, command: str, code: int) -> None:
    done = jobs.run("run", "--passthrough", "--out", "run", "--", "sh", "-c", command)
    assert done.returncode == code


def test_json_is_one_document_on_stdout_and_the_job_speaks_on_stderr(jobs: Jobs) -> None:
    done = jobs.run("run", "--json", "--out", "run", "--", "sh", "-c", "echo '{loud}'; exit 3")
    assert done.returncode == 1
    assert json.loads(done.stdout)["verdict"]["outcome"] == "crashed"
    assert "{loud}" in done.stderr
    for command in ("report", "analyze"):
        assert json.loads(jobs.run(command, "run", "--json").stdout)["verdict"]["outcome"] == "crashed"


@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {"NO_COLOR": "1", "FORCE_COLOR": "1"}, {}])
def test_no_escape_codes_where_they_are_not_wanted(jobs: Jobs, environment: dict[str, str]) -> None:
    done = jobs.run("run", "--out", "run", "--", "false", env={"TERM": "xterm", **environment})
    assert "\x1b[3" not in done.stdout + done.stderr and "\x1b[1;3" not in done.stdout + done.stderr
    if "FORCE_COLOR" not in environment:
        assert "\x1b" not in done.stdout + done.stderr


def test_the_jobs_own_output_passes_through_unchanged(jobs: Jobs) -> None:
    done = jobs.run("run", "--out", "run", "--", "sh", "-c", "echo to stdout; echo to stderr >&2")
    assert done.stdout.startswith("to stdout\n") and "to stderr\n" in done.stderr


# -- secrets -------------------------------------------------------------------------------------

SECRETS = {
    "HF_TOKEN": "hf_AbCdEfGhIjKlMnOp",
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMIK7MDENG",
    "NCCL_AUTH_COOKIE": "cookie-of-nccl-1",
    "PYTHON_INDEX": "https://someone:open-sesame@example.org/simple",
}
SECRET_WORDS = ("--api-key", "key-after-a-space", "--db-password=word-after-equals", "sk-0123456789abcdef")


def files_with(words: Sequence[str], directory: Path) -> list[str]:
    pattern = re.compile("|".join(map(re.escape, words)).encode())
    return [
        f"{path.relative_to(directory)}: {found.group().decode()}"
        for path in sorted(directory.rglob("*"))
        if path.is_file() and (found := pattern.search(path.read_bytes()))
    ]


HIDDEN = (
    "hf_AbCdEfGhIjKlMnOp", "wJalrXUtnFEMIK7MDENG", "cookie-of-nccl-1", "open-sesame",
    "key-after-a-space", "word-after-equals", "sk-0123456789abcdef",
)  # fmt: skip


def test_secrets_are_nowhere_in_the_run_directory(jobs: Jobs) -> None:
    # A child that carries them on too, as loaders and launchers do: captures list children.
    write_rank(
        jobs,
        "import subprocess\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)', *sys.argv[1:]])\n"
        "say('training'); signal.pause()",
    )
    done = jobs.run("run", "--stall-after", "0.2", "--out", "run", "--", *RANK, *SECRET_WORDS, env=SECRETS)
    assert done.returncode == 1, done.stderr
    assert (jobs.directory / "run/ranks/00000/captures/02/native.txt").exists()
    assert files_with(HIDDEN, jobs.directory / "run") == []
    assert not [word for word in HIDDEN if word in done.stdout + done.stderr]


def test_nobody_else_may_read_a_run_directory(jobs: Jobs) -> None:
    write_rank(jobs, "say('training')")
    jobs.run("run", "--out", "deep/run", "--", *RANK)
    run = jobs.directory / "deep/run"
    assert [str(p) for p in (run, run / "ranks/00000") if p.stat().st_mode & 0o077] == []


def test_where_torch_is_missing_what_needs_it_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MachineError) as caught:
        demo_request("rank_killed_sigkill", out=tmp_path / "run", force=False, quiet_stdout=False)
    assert caught.value.exit_code == 3
    assert "torch is not installed in this environment, and demo needs it" in caught.value.message
    assert "nsadiag[run]" in caught.value.hint
    assert not (tmp_path / "run").exists()


def test_an_option_whose_metavar_is_its_name_says_its_name() -> None:
    """typer of 2025 takes a metavar PID for the name of an option `pid`: `--PID`, and no `--pid`."""
    for command in app.registered_commands:
        assert command.callback
        for name, hint in get_type_hints(command.callback, include_extras=True).items():
            for option in (o for o in get_args(hint) if isinstance(o, OptionInfo)):
                if (option.metavar or "").lower().replace("-", "_") == name:
                    # Its first name is where a default stands outside of Annotated.
                    assert str(option.default).startswith("--"), f"--{name} of {command.callback.__name__}"


def test_whoever_reads_the_first_line_alone_changes_no_exit_code(jobs: Jobs) -> None:
    """A pipe that is closed early is the reader's affair, as `head` closes it."""
    run = jobs.directory / "run"
    run.mkdir()
    (run / "run.json").write_text(
        json.dumps({"kind": "run", "name": "train", "environment": {str(n): "x" * 99 for n in range(4000)}})
    )
    for line in ("report run --format json", "facts run"):
        script = f"nsadiag {line} | head -c 1 >/dev/null; exit ${{PIPESTATUS[0]}}"
        environment = {**jobs.environment(), "PATH": f"{BIN}:{os.environ['PATH']}"}
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=jobs.directory,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
