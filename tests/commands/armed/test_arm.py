"""`nsadiag arm` and `disarm`: one file, taken back without a trace; what cannot be armed is refused in one line."""

from __future__ import annotations

import json
import subprocess
import sys

import jsonschema
import pytest
import yaml
from support.cluster.kubernetes_fields import SCHEMAS
from support.jobs import Jobs
from support.processes.armed import ROOT, Armed, tree
from typer.main import get_command

from nsadiag.cli import app
from nsadiag.commands.armed.environments import BOOTSTRAP
from nsadiag.evidence.arming.settings import MARK, PTH, settings_in


@pytest.fixture
def armed(jobs: Jobs) -> Armed:
    return Armed(jobs)


def refusal(armed: Armed, code: int, *words: str, behind: tuple[str, ...] = ()) -> str:
    done = armed.nsadiag(*words, behind=behind)
    lines = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (code, "")
    assert lines[0].startswith("error: ") and all(line.startswith("hint: ") for line in lines[1:])
    assert len(lines) <= 2
    return lines[0]


def test_an_environment_is_armed_by_one_file_and_disarmed_without_a_trace(armed: Armed) -> None:
    before = tree(armed.venv)
    armed.arm()
    new = set(tree(armed.venv)) - set(before)
    assert [name.rpartition("/")[2] for name in new] == [PTH]
    assert armed.status()["armed"]
    armed.disarm()
    assert tree(armed.venv) == before
    status = armed.nsadiag("arm", "--status", "--python", str(armed.python))
    assert status.returncode == 1 and "not armed" in status.stdout


def test_what_is_armed_again_has_the_new_settings(armed: Armed) -> None:
    armed.arm()
    armed.arm("--quota", "77")
    assert settings_in((armed.site / PTH).read_text()).quota_mib == 77


def test_an_address_to_notify_is_not_shown(armed: Armed) -> None:
    armed.arm("--notify", "https://hooks.example.org/secret")
    shown = armed.nsadiag("arm", "--status", "--json", "--python", str(armed.python)).stdout
    assert json.loads(shown)["settings"]["notify"] == 2 and "secret" not in shown


def test_python_starts_as_before_where_nothing_names_a_rank(armed: Armed) -> None:
    ask = "import sys; print(sorted(m for m in sys.modules if 'nsadiag' in m), sys.meta_path)"
    line = [str(armed.python), "-c", ask]
    plain = subprocess.run(line, capture_output=True, text=True, check=False, env=armed.environment())
    armed.arm()
    seen = subprocess.run(line, capture_output=True, text=True, check=False, env=armed.environment())
    assert (seen.stdout, seen.stderr) == (plain.stdout, plain.stderr)
    switched_off = armed.environment({"RANK": "0", "WORLD_SIZE": "1", "NSADIAG_ARMED": "0"})
    left_alone = subprocess.run(line, capture_output=True, text=True, check=False, env=switched_off)
    assert left_alone.stdout == plain.stdout


def test_a_rank_without_torch_has_no_module_of_ours(armed: Armed) -> None:
    armed.arm()
    ask = "import sys; print([m for m in sys.modules if 'nsadiag' in m])"
    env = armed.environment({"RANK": "0", "WORLD_SIZE": "1"})
    done = subprocess.run(
        [str(armed.python), "-c", ask], capture_output=True, text=True, check=False, env=env
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")
    assert not armed.home.exists()


def test_a_file_that_outlives_nsadiag_does_no_harm(armed: Armed) -> None:
    armed.arm()
    file = armed.site / PTH
    file.write_text(file.read_text().replace("worker/bootstrap", "no/such/folder"))
    env = armed.environment({"RANK": "0", "WORLD_SIZE": "1"})
    done = subprocess.run(
        [str(armed.python), "-c", "import torch; print('trains')"],
        capture_output=True,
        text=True,
        check=False,
        env=env,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "trains\n", "")


def test_another_versions_file_is_refused_and_disarmed(armed: Armed) -> None:
    armed.arm()
    file = armed.site / PTH
    file.write_text(file.read_text().replace('"version": "', '"version": "9'))
    assert "already armed, by nsadiag 9" in refusal(armed, 2, "arm", "--python", str(armed.python))
    armed.disarm()
    assert not file.exists()


@pytest.mark.parametrize("text", ["import os\n", f"{MARK}no json\n", f"{MARK}[]\n"])
def test_a_file_that_somebody_else_wrote_is_left(armed: Armed, text: str) -> None:
    file = armed.site / PTH
    file.write_text(text)
    for command in ("arm", "disarm"):
        assert "was not written by nsadiag" in refusal(armed, 2, command, "--python", str(armed.python))
    assert file.read_text() == text


def test_an_environment_that_cannot_be_written_is_refused(armed: Armed) -> None:
    (armed.site / PTH).mkdir()
    (armed.site / PTH / "in-the-way").touch()
    assert "cannot read" in refusal(armed, 3, "arm", "--python", str(armed.python))


@pytest.mark.skipif(
    subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode != 0,
    reason="needs to mount",
)
def test_a_read_only_environment_is_refused(armed: Armed) -> None:
    mounted = f'mount --bind {armed.site} {armed.site} && mount -o remount,ro,bind {armed.site} && exec "$@"'
    behind = ("unshare", "-m", "sh", "-c", mounted, "sh")
    assert "cannot arm" in refusal(armed, 3, "arm", "--python", str(armed.python), behind=behind)


def test_a_python_without_site_packages_is_refused(armed: Armed) -> None:
    bare = armed.directory / "bare"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    assert "has no site-packages" in refusal(armed, 3, "arm", "--python", str(bare))


def test_what_is_no_python_is_refused(armed: Armed) -> None:
    assert "does not answer" in refusal(armed, 3, "arm", "--python", "/bin/true")
    assert "does not answer" in refusal(armed, 3, "arm", "--python", str(armed.directory / "none"))


def test_a_quota_smaller_than_a_bundle_and_a_target_that_is_none_are_refused(armed: Armed) -> None:
    assert "no such command" in refusal(
        armed, 2, "arm", "--python", str(armed.python), "--notify", "/no/such"
    )
    assert "19" in refusal(armed, 2, "arm", "--python", str(armed.python), "--quota", "19")
    assert not (armed.site / PTH).exists()


def test_the_variables_arm_as_the_file_does(armed: Armed) -> None:
    lines = armed.nsadiag("arm", "--variables", "--out", str(armed.out)).stdout
    ask = "import sys; print(type(sys.meta_path[0]).__name__, '/job/libraries' in sys.path)"
    done = subprocess.run(
        ["sh", "-c", f'{lines}\nexec {armed.python} -c "{ask}"'],
        capture_output=True,
        text=True,
        check=False,
        env=armed.environment({"RANK": "0", "WORLD_SIZE": "1", "PYTHONPATH": "/job/libraries"}),
    )
    assert (done.stdout, done.stderr) == ("Waiting True\n", "")
    shown = f"{lines}\nexec {sys.executable} -m nsadiag arm --status --python {armed.python}"
    told = subprocess.run(
        ["sh", "-c", shown], capture_output=True, text=True, check=False, cwd=ROOT, env=armed.environment()
    )
    assert f"0 bundles in {armed.out}" in told.stdout


@pytest.mark.parametrize(
    ("numbers", "is_a_rank"),
    [
        ({"RANK": "0", "WORLD_SIZE": "1"}, True),
        ({"RANK": "0"}, False),
        ({"OMPI_COMM_WORLD_RANK": "1"}, True),
        ({"PMI_RANK": "1"}, True),
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2"}, True),
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}, False),
        ({"SLURM_PROCID": "0"}, False),
        ({}, False),
    ],
)
def test_file_and_variables_take_the_same_processes_for_ranks(
    armed: Armed, numbers: dict[str, str], is_a_rank: bool
) -> None:
    line = [str(armed.python), "-c", "import sys; print(type(sys.meta_path[0]).__name__ == 'Waiting')"]

    def said(**more: str) -> str:
        env = armed.environment({**numbers, **more})
        return subprocess.run(line, capture_output=True, text=True, check=False, env=env).stdout

    by_variables = said(NSADIAG_ARMED="1", PYTHONPATH=str(BOOTSTRAP))
    armed.arm()
    assert [by_variables, said()] == [f"{is_a_rank}\n"] * 2


def options_of_arm() -> set[str]:
    command = get_command(app).commands["arm"]  # type: ignore[attr-defined]
    return {option for parameter in command.params for option in parameter.opts}


def test_the_daemon_set_has_the_fields_that_its_controller_knows_and_a_line_that_nsadiag_accepts() -> None:
    document = yaml.safe_load((ROOT / "packaging/armed/daemonset.yaml").read_text())
    jsonschema.validate(document, SCHEMAS["DaemonSet"])
    spec = document["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    program, command, *options = container["command"]
    assert (program.rpartition("/")[2], command) == ("nsadiag", "arm")
    assert {word for word in options if word.startswith("-")} <= options_of_arm()
    mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert set(mounted) == {volume["name"] for volume in spec["volumes"]}
    environment = {row["name"]: row.get("value") for row in container["env"]}
    assert environment["NSADIAG_RUNTIME_DIR"] == mounted["runtime"]
    assert options[options.index("--out") + 1] == mounted["stalls"]


def test_the_unit_of_systemd_starts_a_line_that_nsadiag_accepts() -> None:
    unit = (ROOT / "packaging/armed/nsadiag-armed.service").read_text()
    line = next(line for line in unit.splitlines() if line.startswith("ExecStart="))
    assert set(line.split()[2:]) <= options_of_arm() and line.split()[1] == "arm"


def test_the_prolog_of_slurm_prints_the_variables_that_arm_a_task(jobs: Jobs) -> None:
    armed = Armed(jobs)
    variables = armed.nsadiag("arm", "--variables", "--out", "/scratch/stalls")
    file = jobs.directory / "armed.sh"
    file.write_text(variables.stdout)
    prolog = ["sh", str(ROOT / "packaging/armed/slurm-task-prolog.sh")]

    def printed(**more: str) -> dict[str, str]:
        environment = {"PATH": "/usr/bin:/bin", "NSADIAG_ARMED_FILE": str(file), **more}
        done = subprocess.run(prolog, env=environment, capture_output=True, text=True, check=True)
        words = (line.removeprefix("export ").partition("=") for line in done.stdout.splitlines())
        return {name: value for name, _, value in words}

    found = printed(PYTHONPATH="/job/libraries")
    assert (found["NSADIAG_ARMED"], found["NSADIAG_ARMED_OUT"]) == ("1", "/scratch/stalls")
    assert (
        found["PYTHONPATH"].endswith(":/job/libraries") and found["PYTHONPATH"].count("/job/libraries") == 1
    )
    assert printed(NSADIAG_ARMED="0") == {}
    assert printed(NSADIAG_ARMED_FILE="/nonexistent") == {}
