"""A launcher line runs as it stands; it is refused only where the script that it opens is surely not there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.jobs import Jobs

from nsadiag.agent.job.entry_script import check_script, entry_script
from nsadiag.errors import UsageError

SAYS = "import sys; print('ran', sys.argv[0])\n"


@pytest.mark.parametrize(
    "line",
    [
        ("env", "-C", "sub", "python", "only.py"),
        ("sh", "-c", "cd sub && exec python $0", "only.py"),
        ("python", "-c", "print('ran')", "--output", "new_model.py"),
        ("python", "-um", "says", "new_model.py"),
        ("python", "says.py", "--output", "new_model.py"),
        ("./python", "only.py"),
        ("./without_a_shebang", "new_model.py"),
    ],
    ids=" ".join,
)
def test_a_line_that_runs_without_nsadiag_runs_with_it(jobs: Jobs, line: tuple[str, ...]) -> None:
    (jobs.directory / "sub").mkdir()
    (jobs.directory / "sub" / "only.py").write_text(SAYS)
    (jobs.directory / "says.py").write_text(SAYS)
    for name, text in (
        ("python", '#!/bin/sh\ncd sub && exec python "$@"\n'),
        ("without_a_shebang", "echo ran\n"),
    ):
        (jobs.directory / name).write_text(text)
        (jobs.directory / name).chmod(0o755)
    done = jobs.run("run", "--passthrough", "--out", "run", "--", *line)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("ran"), done.stdout + done.stderr


@pytest.mark.parametrize(
    "options",
    [
        (), ("-u",), ("-uB",), ("-X", "dev"), ("-Xdev",), ("-W", "ignore"), ("-uWignore",), ("--",), ("-I", "-s", "-E"),
        ("--check-hash-based-pycs", "always"), ("-OO", "--"), ("-c", "pass"), ("-cpass",), ("-uc", "pass"), ("-m", "this"),
        ("-mthis",), ("-V",), ("-h",), ("-",), ("-i",), ("-x",),
    ],
    ids=" ".join,
)  # fmt: skip
def test_the_word_that_python_opens_is_known_as_python_knows_it(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    (tmp_path / "says.py").write_text("\n" + SAYS)  # -x passes over the first line
    line = [sys.executable, *options, "says.py", "other.py"]
    done = subprocess.run(
        line, cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    opens = "ran says.py" in done.stdout
    assert entry_script(line) == ("says.py" if opens else None)


@pytest.mark.parametrize(
    ("line", "script"),
    [
        ("torchrun train.py", "train.py"),
        ("torchrun --standalone --nproc_per_node=2 train.py --config other.py", "train.py"),
        ("torchrun --nnodes 2 --rdzv-endpoint host:1 -- train.py", None),
        ("torchrun -m train.py", None),
        ("torchrun --no-python train.py", None),
        ("torchrun --nproc 2 train.py", None),  # shortened
        ("torchrun --from-the-future 2 train.py", None),
        ("torchrun -t 3 train.py", None),
        ("python -m torch.distributed.run train.py", None),
        ("srun --chdir sub python only.py", None),
        ("ssh host python only.py", None),
        ("docker run image python only.py", None),
    ],
)
def test_only_torchruns_own_script_is_known_of_a_launcher(
    monkeypatch: pytest.MonkeyPatch, line: str, script: str | None
) -> None:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")
    assert entry_script(line.split()) == script


def test_a_variable_that_makes_torchruns_first_argument_a_module_leaves_the_script_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PET_MODULE", "1")
    assert entry_script([str(Path(sys.executable).parent / "torchrun"), "train.py"]) is None


def test_a_script_that_may_not_be_looked_at_is_not_called_missing() -> None:
    for script in ("a\0b.py", "n" * 300 + ".py"):
        check_script([sys.executable, script])
    with pytest.raises(UsageError, match=r"no such script: nowhere\.py"):
        check_script([sys.executable, "nowhere.py"])
