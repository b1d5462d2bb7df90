"""`nsadiag analyze` on files of others, as it is typed: any number of paths, standard input, --out and --format."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.documents.imports import ROOT
from support.jobs import Jobs
from support.recordings.collected import watchdog_lines

RAISED = """NCCL version 2.21.5+cuda12.4
export NCCL_DEBUG=INFO
NCCL_SOCKET_IFNAME=eth0
[rank{rank}]: Traceback (most recent call last):
[rank{rank}]:   File "/job/train.py", line 52, in train
[rank{rank}]: ValueError: bad batch, token=hf_abcdefghijklmnopqrstuvwxyz0123456789
[rank0]: waiting
"""


@pytest.fixture
def log(jobs: Jobs) -> Path:
    path = jobs.directory / "job.log"
    path.write_text(RAISED.format(rank=1))
    return path


def test_out_has_the_verdict_and_the_page_and_report_shows_it_again(jobs: Jobs, log: Path) -> None:
    done = jobs.run("analyze", log, "--out", "diag")
    assert done.returncode == 1, done.stderr
    out = jobs.directory / "diag"
    assert {path.name for path in out.iterdir()} == {"run.json", "verdict.json", "report.md", "report.html"}
    assert json.loads((out / "verdict.json").read_text())["class"] == "rank_exception"
    assert "bad batch" in (out / "report.html").read_text()
    again = jobs.run("report", out, "--format", "md")
    assert again.returncode == 0 and "Rank 1 raised ValueError: bad batch" in again.stdout
    page = jobs.run("report", out, "--format", "html")
    assert page.returncode == 0 and "could not be shown" not in page.stdout


def test_three_steps_lead_from_a_pasted_watchdog_to_the_answer_word_for_word(jobs: Jobs) -> None:
    """As the page says it: its commands, and what it shows of the answer."""
    page = (ROOT / "docs" / "my-job-hangs.md").read_text().partition("## I have only a log")[2]
    page = page.partition("\n## ")[0]
    assert re.findall(r"^(\d)\. ", page, re.MULTILINE) == ["1", "2", "3"]
    asked, sent = "nsadiag analyze job.log", "nsadiag report job.log --format issue"
    assert f"`{asked}`" in page and f"`{sent}`" in page
    log = "".join(watchdog_lines(rank, seq=9140, elements=1) for rank in (1, 3, 2))
    (jobs.directory / "job.log").write_text(log)
    done = jobs.run(*asked.split()[1:])
    assert done.returncode == 1, done.stderr
    shown = re.search(r"```text\n(.*?)```", page, re.DOTALL)
    assert shown is not None
    for line in shown[1].splitlines():
        assert " ".join(line.split()) in " ".join(done.stdout.split())
    issue = jobs.run(*sent.split()[1:])
    assert issue.returncode == 0 and "missing_rank, rank 0 of 4" in issue.stdout


def test_out_is_not_written_over(jobs: Jobs, log: Path) -> None:
    assert jobs.run("analyze", log, "--out", "diag").returncode == 1
    refused = jobs.run("analyze", log, "--out", "diag")
    assert refused.returncode == 2 and "exists and is not empty" in refused.stderr
    assert jobs.run("analyze", log, "--out", "diag", "--force").returncode == 1


def test_a_verdict_on_files_is_no_evidence_itself(jobs: Jobs, log: Path) -> None:
    jobs.run("analyze", log, "--out", "diag")
    refused = jobs.run("analyze", "diag")
    assert refused.returncode == 2
    assert "holds a verdict on" in refused.stderr and "nsadiag report diag shows it" in refused.stderr


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("md", "# CRASHED: rank_exception"),
        ("html", "<!doctype html>"),
        ("json", '"class": "rank_exception"'),
        ("junit", "<testsuite"),
        ("github", "::error"),
        ("issue", "### Crashed: rank_exception"),
        ("perfetto", "traceEvents"),
        ("speedscope", "speedscope"),
    ],
)
def test_each_format_of_a_run_is_one_of_files_too(jobs: Jobs, log: Path, name: str, said: str) -> None:
    done = jobs.run("analyze", log, "--format", name)
    assert done.returncode == 1, done.stderr
    assert said.lower() in done.stdout.lower()


def test_an_issue_has_versions_settings_and_each_ranks_last_lines_and_no_secret(
    jobs: Jobs, log: Path
) -> None:
    text = jobs.run("report", log, "--format", "issue").stdout
    for part in (
        "`2.21.5+cuda12.4`",
        "NCCL_DEBUG=INFO",
        "NCCL_SOCKET_IFNAME=eth0",
        "rank 0 (job.log)",
        "waiting",
    ):
        assert part in text
    assert "hf_abcdefghijklmnop" not in text
    assert "nsadiag run --" not in text


def test_a_log_may_come_from_a_pipe_packed_or_not(log: Path) -> None:
    for content in (log.read_bytes(), gzip.compress(log.read_bytes())):
        done = subprocess.run(
            [sys.executable, "-m", "nsadiag", "analyze", "-", "--json"],
            input=content,
            capture_output=True,
            check=False,
        )
        assert done.returncode == 1, done.stderr
        document = json.loads(done.stdout)
        assert document["verdict"]["guilty_ranks"] == [1]
        assert document["verdict"]["evidence"][0]["source"] == "stdin#line 4"


def test_nothing_from_a_pipe_is_refused_in_one_line() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "nsadiag", "analyze", "-"], input=b"", capture_output=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.decode().startswith(
        "error: nothing in standard input can be judged: stdin: empty\nhint: "
    )


def test_what_was_unpacked_is_gone_when_the_command_ends(log: Path, tmp_path: Path) -> None:
    subprocess.run(["tar", "czf", "logs.tgz", log.name], cwd=log.parent, check=True)
    (tmp_path / "tmp").mkdir()
    command = [sys.executable, "-m", "nsadiag", "analyze", str(log.parent / "logs.tgz")]
    done = subprocess.run(
        command, capture_output=True, check=False, env={"TMPDIR": str(tmp_path / "tmp"), "PATH": "/bin"}
    )
    assert done.returncode == 1, done.stderr
    assert not [*(tmp_path / "tmp").iterdir()]


def test_two_logs_are_compared(jobs: Jobs, log: Path) -> None:
    (jobs.directory / "other.log").write_text(RAISED.format(rank=3).replace("2.21.5", "2.27.3"))
    done = jobs.run("diff", log, "other.log")
    assert done.returncode == 1, done.stderr
    assert "guilty_ranks" in done.stdout and "2.27.3" in done.stdout


def test_too_many_words_are_named_as_typed(jobs: Jobs, log: Path) -> None:
    done = jobs.run("diff", log, log, "trace_2", "trace_3")
    assert done.returncode == 2
    assert "takes no argument 'trace_2 trace_3'" in done.stderr
