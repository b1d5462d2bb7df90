"""Answers for a coding agent: short, resolvable, and read-only unless it is said otherwise."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from pathlib import Path

import pytest
from support.recordings.golden import recorded
from support.reported import FAILING, LOCKED, judged, make_matrix

from nsadiag.commands import runs as listing
from nsadiag.commands.agents import server, tools
from nsadiag.deadlines import programs
from nsadiag.errors import MachineError, NsadiagError, UsageError


@pytest.mark.parametrize("name", recorded()[::9])
def test_a_verdict_is_short_and_every_id_resolves(name: str, tmp_path: Path) -> None:
    directory = str(judged(name, tmp_path).directory)
    answer = tools.verdict(directory)
    assert len(answer) <= tools.MOST_CHARACTERS
    document = json.loads(answer)
    assert {"outcome", "class", "summary", "world_size"} <= set(document)
    for id_, claim in document.get("facts", {}).items():
        found = json.loads(tools.evidence(id_, directory))
        assert found["claim"].startswith(claim) and found["source"] and found["record"]


def test_the_code_names_who_is_where(tmp_path: Path) -> None:
    shown = tools.code(str(judged("rank_conditional_validation", tmp_path).directory))
    assert re.search(r"   40 .*# <- rank 0$", shown, re.MULTILINE)
    assert re.search(r"   62 .*# <- branch$", shown, re.MULTILINE)


@pytest.mark.parametrize("id_", ["e0", "e99", "x", "", "e-1", "1"])
def test_an_id_that_is_none_is_refused(id_: str, tmp_path: Path) -> None:
    directory = str(judged(LOCKED, tmp_path).directory)
    with pytest.raises(UsageError) as caught:
        tools.evidence(id_, directory)
    assert "e1 to e" in caught.value.hint


def test_a_comparison_is_whole_rows_of_what_differs(tmp_path: Path) -> None:
    a, b = judged(LOCKED, tmp_path / "a"), judged("rank_conditional_validation", tmp_path / "b")
    answer = tools.compare(str(a.directory), str(b.directory))
    rows = json.loads(answer)["differs"]
    assert len(answer) <= tools.MOST_CHARACTERS + 100 and rows
    assert any("local_lock_deadlock" in json.dumps(row) for row in rows)


def test_what_cannot_be_reduced_is_a_mistake_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(NsadiagError) as caught:
        tools.shrink(str(tmp_path))
    assert str(tmp_path) in caught.value.message
    said = server.answers_of(tools.shrink)(str(tmp_path))
    assert said == f"error: {caught.value.message}\nhint: {caught.value.hint}"
    assert said.count("error: ") == said.count("hint: ") == 1 and caught.value.hint
    with pytest.raises(NsadiagError) as caught:
        tools.confirm(str(tmp_path))
    assert f"no verdict.json in {tmp_path}" in caught.value.message


def test_a_matrix_and_a_missing_directory_are_refused_with_a_hint(tmp_path: Path) -> None:
    for directory in (make_matrix(tmp_path / "m", FAILING), tmp_path / "none"):
        with pytest.raises(UsageError) as caught:
            tools.verdict(str(directory))
        assert caught.value.hint


def test_without_the_package_the_command_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "SERVERS", (("no.such.module", "Server"),))
    with pytest.raises(MachineError) as caught:
        server.server(may_act=False)
    assert "nsadiag[mcp]" in caught.value.hint


def test_a_client_hears_of_reading_tools_alone_and_gets_mistakes_as_answers(tmp_path: Path) -> None:
    mcp = pytest.importorskip("mcp")
    if not hasattr(mcp, "Client"):
        pytest.skip("version 1 of the package has no client in memory")
    directory = str(judged(LOCKED, tmp_path).directory)

    async def talk(may_act: bool) -> tuple[set[str], str, str]:
        async with mcp.Client(server.server(may_act=may_act)) as client:
            listed = {tool.name for tool in (await client.list_tools()).tools}
            good = await client.call_tool("verdict", {"directory": directory})
            bad = await client.call_tool("verdict", {"directory": str(tmp_path / "none")})
            return listed, good.content[0].text, bad.content[0].text

    listed, good, bad = asyncio.run(talk(False))
    assert listed == {"verdict", "evidence", "code", "compare", "patch", "runs"}
    assert json.loads(good)["class"] == "local_lock_deadlock"
    assert bad.startswith("error: ") and "\nhint: " in bad
    assert asyncio.run(talk(True))[0] == {*listed, "attach", "check", "confirm", "fix", "run", "shrink"}


def test_an_agent_talks_to_the_command_over_its_pipes(tmp_path: Path) -> None:
    mcp = pytest.importorskip("mcp")
    if not hasattr(mcp, "Client"):
        pytest.skip("version 1 of the package has another client")
    from mcp.client.stdio import stdio_client

    directory = judged(LOCKED, tmp_path).directory
    command = mcp.StdioServerParameters(command=sys.executable, args=["-m", "nsadiag", "mcp"], cwd=tmp_path)

    async def talk() -> tuple[str, str, str]:
        async with mcp.Client(stdio_client(command)) as client:
            at = {"directory": str(directory)}
            told = [
                await client.call_tool("verdict", at),
                await client.call_tool("code", at),
                await client.call_tool("evidence", {**at, "id": "e1"}),
            ]
            first, second, third = (answer.content[0].text for answer in told)
            return first, second, third

    verdict, code, evidence = asyncio.run(talk())
    assert json.loads(verdict)["class"] == "local_lock_deadlock"
    assert json.loads(verdict)["at"]["code"] in code
    assert json.loads(evidence)["record"]


def test_a_command_is_words_and_no_line_for_a_shell_or_options_for_nsadiag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.py").write_text("import sys; open('words', 'w').write(repr(sys.argv[1:]))")
    words = ["; touch made", "$(touch made)", "`touch made`", "--out", "elsewhere"]
    tools.run([sys.executable, "job.py", *words], timeout=60)
    assert (tmp_path / "words").read_text() == repr(words)
    assert not (tmp_path / "made").exists() and not (tmp_path / "elsewhere").exists()
    with pytest.raises(NsadiagError) as caught:
        tools.run(["--out=elsewhere", "sh", "-c", "true"], timeout=60)
    assert "--out" in caught.value.message and not (tmp_path / "elsewhere").exists()
    with pytest.raises(NsadiagError) as caught:
        tools.shrink("--out=elsewhere")
    assert "no verdict.json in --out=elsewhere" in caught.value.message


def test_the_verdict_is_on_the_run_that_was_asked_for_though_a_later_one_ended_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    later = [sys.executable, "-m", "nsadiag", "run", "--", sys.executable, "-c", "print('later')"]
    (tmp_path / "job.py").write_text(
        f"import subprocess; subprocess.run({later!r}, check=True); raise SystemExit(7)"
    )
    given = json.loads(tools.run([sys.executable, "job.py"], timeout=120))
    assert given["outcome"] == "crashed" and given["directory"].endswith("-job")
    assert json.loads(tools.verdict())["directory"] == "artifacts/latest"
    assert len(listing.runs(Path("artifacts"))) == 2


def test_a_job_that_prints_much_comes_to_its_own_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(programs, "MOST_OUTPUT", 2**20)
    (tmp_path / "job.py").write_text("for _ in range(300): print('x' * 9999)\nopen('ended', 'w')")
    assert json.loads(tools.run([sys.executable, "job.py"], timeout=60))["outcome"]
    assert (tmp_path / "ended").exists()


@pytest.mark.parametrize(("asked", "given"), [(5, "5.0"), (0, "600.0"), (-1, "600.0"), (1e9, "600.0"), (float("nan"), "600.0")])  # fmt: skip
def test_a_limit_is_some_seconds_and_ten_minutes_at_most(asked: float, given: str) -> None:
    assert tools._limit(asked) == given


def test_an_answer_is_bounded_whatever_a_job_has_written() -> None:
    def long() -> str:
        return "x" * 10**6

    def fails() -> str:
        raise NsadiagError("x" * 10**6, "y" * 10**6)

    for tool in (long, fails):
        assert len(server.answers_of(tool)()) < 3 * server.MOST_ANSWER


def test_an_agent_has_a_change_rehearsed_and_hears_both_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(
        "import torch, torch.distributed as dist\ndist.init_process_group('gloo')\n"
        "dist.all_reduce(torch.ones(2 + dist.get_rank()))\n"
    )
    torchrun = str(Path(sys.executable).with_name("torchrun"))
    answer = json.loads(tools.check([torchrun, "--standalone", "--nproc-per-node", "2", "train.py"]))
    assert answer["answer"].startswith("differs")
    assert sorted(call.split()[1] for call in answer["calls"]) == ["0", "1"]
    assert answer["verdict"]["class"] == "collective_args_mismatch" and answer["verdict"]["at"]["line"] == 3
    assert Path(answer["verdict"]["directory"], "rehearsal.json").exists()
