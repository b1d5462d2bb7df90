"""Whoever waits for a job hears of it: lines on stderr, a webhook, a command, GitHub."""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from support.jobs import Jobs
from support.recordings.golden import archive_of, unpack
from support.reported import FAILING, HEALTHY, HUNG, make_matrix, make_run

from nsadiag.agent.watching.state import Suspicion
from nsadiag.commands.messages import first_step, notify
from nsadiag.commands.messages.github import annotate
from nsadiag.commands.messages.metrics import MetricsFile
from nsadiag.commands.messages.metrics import check as check_metrics
from nsadiag.commands.messages.notices import IN_VAIN, Lines
from nsadiag.errors import UsageError
from nsadiag.evidence.layout import RunDir
from nsadiag.evidence.records import Where
from nsadiag.evidence.ring.blackbox import BlackBox, Counter
from nsadiag.reports import load_report
from nsadiag.reports.formats.registry import REPORTERS

SUSPICION = Suspicion(t_s=20.0, quiet_s=12.0, says="Rank 1 never reached all_reduce #17.")

# -- on the terminal -----------------------------------------------------------------------------------


def test_each_turn_of_a_silence_has_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    told: list[str] = []
    lines = Lines(lambda event, text: told.append(event))
    lines.looking(6.2)
    lines.suspected(SUSPICION, 120.0)
    lines.withdrawn(SUSPICION, 30.0)
    lines.stopping("Rank 1 is blocked on a queue.")
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "nsadiag: no progress for 6 s: taking two snapshots of every rank."
    assert said[1].startswith("nsadiag: suspected hang, no progress for 12 s: Rank 1 never reached")
    assert said[2] == "nsadiag: no hang: the job continued after 30 s."
    assert said[3].startswith("nsadiag: Rank 1 is blocked on a queue. Stopping the job. Reports of")
    assert told == ["suspected", "withdrawn"]


def test_a_job_that_is_ended_at_its_limit_is_not_ended_without_a_word(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = Lines()
    lines.timed_out(60.0)
    assert capsys.readouterr().err.startswith("nsadiag: --timeout of 60 s is over: stopping the job. Reports")
    assert lines.after(b"Root Cause (first observed failure)") is None, "that is our doing"


def test_the_launchers_report_on_ranks_that_were_stopped_is_called_one_where_it_ends() -> None:
    lines = Lines()
    lines.stopping("Rank 1 is blocked on a queue.")
    assert lines.after(b"a line of the job's own\n====\n") is None
    assert (
        lines.after(b"====\ntrain.py FAILED\nRoot Cause (first observed failure):\n[0]:\n  rank : 0\n")
        is None
    )
    said = (lines.after(b"  traceback : Signal 15 (SIGTERM) received by PID 7\n=====\n") or b"").decode()
    assert said.startswith("nsadiag: the report above is the launcher's, on ranks that nsadiag stopped")
    assert lines.after(b"more\n====\n") is None
    # With -q too: the report stands there, and names a rank.
    silent = Lines(silent=True)
    silent.stopping("Rank 1 is blocked on a queue.")
    assert silent.after(b"Root Cause (first observed failure):\n====\n")


def test_a_job_that_pauses_often_is_not_told_of_every_snapshot(capsys: pytest.CaptureFixture[str]) -> None:
    lines = Lines()
    for quiet_s in (1.0, 2.0, *[8.0] * 20):
        lines.looking(quiet_s)
    assert len(capsys.readouterr().err.splitlines()) == IN_VAIN


def test_the_first_step_of_all_ranks_is_announced_once(tmp_path: Path) -> None:
    run, said, heard = RunDir(path=tmp_path), [], threading.Event()

    def say(text: str) -> None:
        said.append(text)
        heard.set()

    def recorder(rank: int) -> BlackBox:
        run.rank(rank).path.mkdir(parents=True)
        return BlackBox(run.rank(rank).blackbox, rank=rank, world_size=2)

    first = recorder(0)
    first.count(Counter.STEPS, 3)
    assert first_step.ready_ranks(run) == (0, 0), "the other rank has not opened its recorder"
    second = recorder(1)
    assert first_step.ready_ranks(run) == (2, 1)
    with first_step.announced(run, say):
        second.count(Counter.STEPS, 1)
        assert heard.wait(60)
    assert len(said) == 1 and said[0].startswith("first step done on both ranks within ")


# -- a webhook or a command ----------------------------------------------------------------------------


@pytest.fixture
def hook() -> Iterator[tuple[str, list[dict[str, str]]]]:
    """An address on this machine, and what was posted to it."""
    posted: list[dict[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response({"/broken": 500, "/moved": 302}.get(self.path, 200))
            self.send_header("Location", "/elsewhere")
            self.end_headers()

        def do_GET(self) -> None:
            posted.append({"asked": self.path})
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", posted
    server.shutdown()
    server.server_close()


def notifier(target: str, directory: Path) -> notify.Notifier:
    return notify.Notifier(targets=(target,), run=RunDir(path=directory), name="train")


def test_a_webhook_that_has_moved_has_not_got_the_message(
    hook: tuple[str, list[dict[str, str]]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Followed, a POST becomes a GET without the message, to whatever address the answer names.
    address, posted = hook
    notifier(f"{address}/moved", tmp_path).verdict(HUNG)
    assert capsys.readouterr().err == "nsadiag: --notify failed: the webhook answered 302\n"
    assert [list(each) for each in posted] == [["text"]]


def test_a_chat_gets_nothing_that_looks_like_a_secret(
    hook: tuple[str, list[dict[str, str]]], tmp_path: Path
) -> None:
    address, posted = hook
    said = replace(HUNG, summary="Rank 1 raised ValueError: no login with password=hunter2-s3cret!")
    notifier(f"{address}/services/secret", tmp_path).verdict(said)
    assert "hunter2" not in posted[0]["text"] and "password=***" in posted[0]["text"]


def test_a_webhook_gets_the_verdict_in_slacks_form(
    hook: tuple[str, list[dict[str, str]]], tmp_path: Path
) -> None:
    address, posted = hook
    notifier(f"{address}/services/secret", tmp_path).verdict(HUNG)
    assert list(posted[0]) == ["text"]
    assert "HUNG Rank 1 skipped all_reduce #17" in posted[0]["text"]
    assert "(examples/train.py:41)" in posted[0]["text"]


@pytest.mark.parametrize("path", ["/broken", ":1/secret-token"])
def test_a_webhook_that_fails_costs_one_line_without_its_address(
    hook: tuple[str, list[dict[str, str]]], tmp_path: Path, path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    target = hook[0] + path if path.startswith("/") else f"http://127.0.0.1{path}"
    notifier(target, tmp_path).verdict(HUNG)
    said = capsys.readouterr().err
    assert said.startswith("nsadiag: --notify failed: ") and said.count("\n") == 1
    assert "secret" not in said and "127.0.0.1" not in said


def test_every_target_is_notified_also_after_one_that_failed(
    hook: tuple[str, list[dict[str, str]]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    address, posted = hook
    targets = (f"{address}/one", f"{address}/broken", "false", f"{address}/two")
    notify.Notifier(targets=targets, run=RunDir(path=tmp_path), name="train").verdict(HUNG)
    assert len(posted) == 3
    said = capsys.readouterr().err.splitlines()
    assert said == [
        "nsadiag: --notify failed (target 2 of 4): the webhook answered 500",
        "nsadiag: --notify failed (target 3 of 4): the command ended with exit code 1",
    ]


def test_targets_in_the_environment_stand_on_lines_of_their_own() -> None:
    assert notify.targets_in("") == ()
    assert notify.targets_in("mail me\n\nhttps://host/x\n") == ("mail me", "https://host/x")


def test_a_command_gets_json_on_stdin(tmp_path: Path) -> None:
    script = tmp_path / "hear.py"
    script.write_text("import sys; open(sys.argv[1], 'w').write(sys.stdin.read())")
    heard = tmp_path / "two words.json"
    notifier(f"{sys.executable} {script} '{heard}'", tmp_path).verdict(HUNG)
    document = json.loads(heard.read_text())
    assert (document["event"], document["verdict"]["class"]) == ("verdict", HUNG.cls)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("ftp://host/x", "ftp is no scheme"),
        ("https://", "names no host"),
        ("no-such-command-at-all --x", "no such command: 'no-such-command-at-all'"),
        ("'unclosed", "No closing quotation"),
        ("", "no such command: ''"),
    ],
)
def test_a_target_that_cannot_be_notified_is_refused(target: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        notify.check([target])
    assert message in caught.value.message and caught.value.hint


def test_a_run_notifies_each_target_once_of_its_verdict(jobs: Jobs, tmp_path: Path) -> None:
    heard = tmp_path / "heard"
    (tmp_path / "hear.py").write_text("import sys; open(sys.argv[1], 'a').write(sys.stdin.read() + '\\n')")
    (tmp_path / "job.py").write_text("import torch\nraise ValueError('no loss')\n")
    target = f"{sys.executable} {tmp_path / 'hear.py'} {heard}"
    targets = ("--notify", f"{target}1", "--notify", f"{target}2")
    done = jobs.run("run", "--out", tmp_path / "run", *targets, "--", sys.executable, tmp_path / "job.py")
    assert done.returncode == 1
    for number in (1, 2):
        told = [json.loads(line) for line in Path(f"{heard}{number}").read_text().splitlines()]
        assert [each["event"] for each in told] == ["verdict"]
        assert told[0]["verdict"]["class"] == "rank_exception"


# -- metrics -------------------------------------------------------------------------------------------

SAMPLE = re.compile(
    r'(?P<name>[a-z_]+)\{(?P<labels>(?:[a-z]+="(?:[^"\\\n]|\\["\\n])*",?)+)\} (?P<value>[-+.e\d]+)'
)


def samples(text: str) -> dict[tuple[str, str], float]:
    """As a collector reads them; whatever it would refuse fails."""
    lines = text.splitlines()
    assert lines[-1] == "# EOF" and text.endswith("# EOF\n")
    families = {line.split()[2]: line.split()[3] for line in lines if line.startswith("# TYPE")}
    found: dict[tuple[str, str], float] = {}
    for line in lines:
        if not line.startswith("#"):
            match = SAMPLE.fullmatch(line)
            assert match, line
            family = match["name"].removesuffix("_total")
            assert (families[family] == "counter") == match["name"].endswith("_total")
            found[match["name"], match["labels"]] = float(match["value"])
    return found


def test_metrics_of_a_recording_are_openmetrics(tmp_path: Path) -> None:
    run = unpack(archive_of("straggler_slow_compute"), tmp_path)
    file = MetricsFile(path=tmp_path / "nsadiag.prom", run=run, name='a "name"\n\\x')
    file.write()
    running = samples(file.path.read_text())
    label = 'run="a \\"name\\"\\n\\\\x"'
    assert running["nsadiag_steps_total", f'{label},rank="1"'] == 30
    assert running["nsadiag_peer_wait_seconds_total", f'{label},rank="1"'] >= 0
    assert running["nsadiag_outcome", f'{label},outcome="running",class=""'] == 1
    file.write(HUNG)
    over = samples(file.path.read_text())
    assert over["nsadiag_guilty_rank", f'{label},rank="1"'] == 1
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_a_run_leaves_its_metrics(jobs: Jobs, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text("import torch\nraise ValueError('no loss')\n")
    file = tmp_path / "run.prom"
    command = (sys.executable, tmp_path / "job.py")
    done = jobs.run("run", "--out", tmp_path / "run", "--metrics", file, "--", *command)
    assert done.returncode == 1
    assert (
        samples(file.read_text())["nsadiag_outcome", 'run="job",outcome="crashed",class="rank_exception"']
        == 1
    )


def test_metrics_are_private_unless_the_user_let_others_read_the_file(jobs: Jobs) -> None:
    shown = jobs.directory / "shown.prom"
    shown.write_text("")
    shown.chmod(0o666)
    for name, mode in (("new.prom", 0o600), ("shown.prom", 0o644)):
        line = ("run", "--metrics", name, "--out", f"run-{name}", "--", "true")
        done = jobs.run(*line, behind=["sh", "-c", 'umask 0; exec "$@"', "sh"])
        assert done.returncode == 0, done.stderr
        assert (jobs.directory / name).read_text().endswith("# EOF\n")
        assert (jobs.directory / name).stat().st_mode & 0o777 == mode
    assert not [path for path in jobs.directory.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("file", [".", "no/such/folder/x.prom"])
def test_a_file_of_metrics_that_cannot_be_written_is_refused(file: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_metrics(Path(file))
    assert caught.value.hint


# -- GitHub --------------------------------------------------------------------------------------------


def test_github_shows_the_guilty_line_and_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = tmp_path / "summary.md"
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_WORKSPACE", "/w")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    where = Where(file="/w/src/train.py", line=41)
    hung = replace(HUNG, where=where, summary="100 % of ranks\n::set-env name=x::y wait")
    annotate(load_report(make_run(tmp_path / "run", hung)))
    said = capsys.readouterr().err.splitlines()
    assert said == [
        "::error file=src/train.py,line=41,title=nsadiag%3A rank_conditional_collective::"
        "100 %25 of ranks ::set-env name=x::y wait " + str(HUNG.fix)
    ]
    assert summary.read_text().startswith("# HUNG")
    monkeypatch.delenv("GITHUB_ACTIONS")
    assert REPORTERS["github"](load_report(tmp_path / "run")).splitlines() == said


def test_github_shows_each_finding_of_a_matrix_and_nothing_of_what_is_healthy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    matrix, healthy = make_matrix(tmp_path / "m", FAILING), make_run(tmp_path / "run", HEALTHY)
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    annotate(load_report(matrix))
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    annotate(load_report(healthy))
    assert capsys.readouterr().err == ""
    annotate(load_report(matrix))
    assert len(capsys.readouterr().err.splitlines()) == 2


GAVE_UP = b"[rank0]: RuntimeError: Timed out waiting 30000ms for recv operation to complete\n"


def test_a_timeout_of_the_jobs_own_is_followed_once_by_what_was_suspected() -> None:
    lines = Lines()
    assert lines.after(b"step 8\n") is None
    lines.suspected(Suspicion(t_s=20.0, quiet_s=5.0, says="Rank 1 never reached all_reduce #9."), 120.0)
    # The rank that gives up moves by that, a moment before its words are here.
    lines.withdrawn(Suspicion(t_s=20.0, quiet_s=5.0, says=""), 22.0)
    said = (lines.after(GAVE_UP) or b"").decode()
    assert said.startswith(
        "nsadiag: suspected before this: Rank 1 never reached all_reduce #9. The verdict follows"
    )
    assert lines.after(GAVE_UP) is None, "the other ranks say the same"


def test_what_a_job_says_that_is_stopped_is_no_timeout_of_its_own() -> None:
    lines = Lines()
    lines.stopping("Rank 1 never reached all_reduce #9.")
    assert lines.after(b"Root Cause (first observed failure):\n") is None
    assert Lines(silent=True).after(GAVE_UP) is None
