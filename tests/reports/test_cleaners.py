"""Text that others wrote is shown, and obeyed by nobody: twelve payloads in every string of every document, in every format."""

from __future__ import annotations

import contextlib
import csv
import html.parser
import json
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from markdown_it import MarkdownIt
from support.recordings.golden import archive_of, unpack
from support.reported import FAILING, make_matrix

from nsadiag.analysis.snapshot import RankNow
from nsadiag.analysis.verdict import judge_directory
from nsadiag.cli.shared import app, console
from nsadiag.commands.agents import tools
from nsadiag.commands.agents.server import answers_of
from nsadiag.commands.live.screen import table_of
from nsadiag.evidence.layout import write_json
from nsadiag.reports import MatrixReport, load_report
from nsadiag.reports.cleaners.chat import chat
from nsadiag.reports.cleaners.data import csv_text
from nsadiag.reports.experiments import render_experiment
from nsadiag.reports.formats.registry import REPORTERS

ROOT = Path(__file__).resolve().parents[2]
PAYLOADS = {
    "escapes": "x\x1b]0;owned\x07\x1b[2J\x1b[31m\x07\x08",
    "eight-bit escapes": "x\x9b31m\x9d0;owned\x9c\x90q\x9c",
    "bidirectional controls": "x\u202egnp.exe\u2066\u061c",
    "unseen characters": "x\u200b\u2028\u2029\x85\ufeff\u00ad\u3164\ufe0f\U000e0041\U000e0101",
    "html": 'x"><script>alert(1)</script><img src=x onerror=alert(1)>&lt;b&gt;<!--',
    "blocks": "a`b\n```\n\n# Owned\n\n- x\n\n![pixel](http://evil.example/p.png)\n\n---|---\n| a | b |\n",
    "inline": "a`b \\` \\| `c`|`` d` ![p q](http://evil.example/p.png) [l](javascript:alert(1)) **b** [x]: http://evil.example",
    "references": (
        "@everyone (@a/team) fixes #1, closes o/r#2 GH-3 user@evil.example www.evil.example/x https://evil.example/y "
        "ftp://evil.example mailto:a@evil.example xmpp:a@evil.example $x$ `$x$` 0123456789abcdef0123456789abcdef01234567"
    ),
    "workflow commands": "x\n::error file=a.py,line=1::owned\n  ::add-mask::x ##[add-mask]y\n::stop-commands::z",
    "markup and templates": "[link=http://evil.example]x[/link] [bold red]y[/] :smile: {{ 7 * 7 }}{% raw %}",
    "xml": "x]]>\x00\ufffe\ud800<?xml?><!DOCTYPE a><![CDATA[",
    "formulas": "=cmd|'/c calc'!A1\t=1+1\r\n+2\n-3\n@SUM(1)",
}
# Fields with a closed list of values: another value is refused with the whole document, and shows nothing.
CLOSED = {"outcome", "certainty", "do", "kind", "schema_version"}
RUNS = {"hung": "local_lock_deadlock_dropped_record", "crashed": "rank_killed_sigkill"}
UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\ufffe\uffff\ud800-\udfff\U000e0000-\U000e0fff]"
)
# What GitHub makes links, notices and closed issues of, outside of code.
REFERENCE = re.compile(
    r"@[\w-]|#\d|\bGH-\d|https?://|ftp://|www\.\w|mailto:|xmpp:|\b[0-9a-f]{40}\b|\$\S", re.IGNORECASE
)
OUR_TAGS = {"<br>", "<details>", "</details>", "<summary>", "</summary>"}


def planted(value: Any, payload: Callable[[], str], key: str = "") -> Any:
    """The document with a payload behind each of its strings, keys of mappings that are names included."""
    if isinstance(value, str):
        return value if key in CLOSED else value + payload()
    if isinstance(value, list):
        return [planted(item, payload, key) for item in value]
    if isinstance(value, dict):
        named = key in ("versions", "environment", "machine")
        return {(k + payload() if named else k): planted(v, payload, k) for k, v in value.items()}
    return value


def plant(run: Path, payload: Callable[[], str]) -> None:
    for path in sorted(run.rglob("*.json*")):
        if path.suffix in (".json", ".jsonl") and path.is_file():
            text = path.read_text()
            whole = [text] if path.suffix == ".json" else text.splitlines()
            rows = [json.dumps(planted(json.loads(row), payload)) for row in whole if row]
            path.write_text("\n".join(rows) + "\n")
    for path in [*run.rglob("*.log"), *run.glob("sources/*.py")]:
        path.write_bytes(path.read_bytes() + payload().encode(errors="surrogatepass"))


@pytest.fixture(scope="module", params=RUNS)
def judged(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = unpack(archive_of(RUNS[request.param]), tmp_path_factory.mktemp("runs") / request.param)
    verdict = judge_directory(run.path)
    assert verdict.outcome == request.param and verdict.evidence and verdict.rejected
    return run.path


@pytest.fixture
def sent(judged: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(judged, tmp_path / "sent", symlinks=True))


# -- what each medium obeys -------------------------------------------------------------------------


def unseen(text: str) -> set[str]:
    return set(UNSEEN.findall(text))


def commands(text: str) -> list[str]:
    """Lines that a runner of GitHub's takes for commands: it strips blanks first, and finds `##[` anywhere."""
    return [line for line in text.splitlines() if line.lstrip().startswith("::") or "##[" in line]


def nothing_on_a_terminal(text: str) -> None:
    assert not unseen(text)
    assert not commands(text)


def nothing_in_markdown(text: str) -> None:
    assert not unseen(text)
    for token in MarkdownIt("commonmark").enable("table").enable("strikethrough").parse(text):
        assert token.type != "html_block" or set(re.findall("<[^>]*>?", token.content)) <= OUR_TAGS, (
            token.content
        )
        for inline in token.children or ():
            assert inline.type != "image"
            if inline.type == "link_open":
                assert ":" not in str(inline.attrs["href"]).replace("%3A", "")
            if inline.type == "html_inline":
                assert inline.content in OUR_TAGS
            if inline.type == "text":
                assert not REFERENCE.search(inline.content), inline.content
        if token.type == "inline" and token.level == 1:
            assert not token.content.startswith("Owned")


class Elements(html.parser.HTMLParser):
    """The elements of a page, with their attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attributes)))


def nothing_on_a_page(text: str) -> None:
    assert not unseen(text)
    elements = Elements(text).found
    assert sum(tag == "script" for tag, _ in elements) == 1 and "img" not in {tag for tag, _ in elements}
    for _, attributes in elements:
        assert not [name for name in attributes if name.startswith("on")]
        assert ":" not in (attributes.get("href") or "").replace("data:,", "")


def nothing_in_xml(text: str) -> None:
    assert not unseen(text)
    tags = {element.tag for element in ET.fromstring(text.encode()).iter()}
    assert tags <= {"testsuites", "testsuite", "testcase", "failure", "error", "skipped", "system-out"}


def nothing_in_json(text: str) -> None:
    json.loads(text)
    assert not unseen(text)


def one_annotation(text: str) -> None:
    assert not unseen(text)
    (line,) = text.splitlines()
    assert re.fullmatch(r"::(?:error|warning) (?:\w+=[^,:]*,?)*::[^\n]*", line) and "##[" not in line
    assert not commands(line.partition("::")[2].split("::", 1)[1])


OBEYS: dict[str, Callable[[str], None]] = {
    "terminal": nothing_on_a_terminal,
    "md": nothing_in_markdown,
    "issue": nothing_in_markdown,
    "html": nothing_on_a_page,
    "junit": nothing_in_xml,
    "github": one_annotation,
    "json": nothing_in_json,
    "sarif": nothing_in_json,
    "perfetto": nothing_in_json,
    "speedscope": nothing_in_json,
}


def test_every_format_has_its_judge() -> None:
    assert set(OBEYS) == set(REPORTERS)


@pytest.mark.parametrize("name", PAYLOADS)
def test_no_format_obeys_what_a_sender_wrote(sent: Path, name: str) -> None:
    plant(sent, lambda: PAYLOADS[name])
    report = load_report(sent)
    assert "no verdict could be read" not in REPORTERS["terminal"](report)
    for format_, obeys_nothing in OBEYS.items():
        obeys_nothing(REPORTERS[format_](report))


@pytest.mark.parametrize("name", PAYLOADS)
def test_no_format_obeys_what_the_sender_of_a_matrix_wrote(tmp_path: Path, name: str) -> None:
    matrix = make_matrix(tmp_path / "matrix", FAILING)
    plant(matrix, lambda: PAYLOADS[name])
    report = load_report(matrix)
    assert isinstance(report, MatrixReport) and len(report.findings()) > 1
    for format_ in ("terminal", "md", "html", "junit", "json", "issue"):
        OBEYS[format_](REPORTERS[format_](report))
    for line in REPORTERS["github"](report).splitlines():
        one_annotation(line)


BISECTION: dict[str, Any] = {
    "name": "quick", "axis": "layers", "fixed": "ddp=on", "conclusion": "threshold", "summary": "4 is healthy, 5 is hung.",
    "first_bad": "5", "last_good": "4", "points_in_all": 2, "command": ["torchrun", "train.py"], "between": [], "slope": None,
    "points": [
        {"label": label, "state": state, "failures": failures, "step_s": 0.1, "subject": "s", "runs": [
            {"outcome": outcome, "class": "missing_rank", "directory": f"points/{label}/01", "summary": "It waits.", "fix": "Do.",
             "where": {"file": "train.py", "line": 4, "function": "train", "code": "wait()"}},
        ]}
        for label, state, failures, outcome in (("4", "good", 0, "healthy"), ("5", "bad", 1, "hung"))
    ],
}  # fmt: skip
SHRINKING = {
    "name": "quick", "conclusion": "lost", "why": "it was well", "trials": 3, "seconds": 2.0, "notes": ["a note"],
    "source": "import torch", "run": "python min.py", "script": "min.py",
}  # fmt: skip


@pytest.mark.parametrize("name", PAYLOADS)
@pytest.mark.parametrize(
    ("kind", "document", "formats"),
    [
        ("bisect", BISECTION, ("terminal", "md", "html", "json")),
        ("shrink", SHRINKING, ("terminal", "md", "json")),
    ],
    ids=("bisect", "shrink"),
)
def test_no_format_obeys_what_the_sender_of_an_experiment_wrote(
    tmp_path: Path, name: str, kind: str, document: dict[str, Any], formats: tuple[str, ...]
) -> None:
    # What decides is left as it is; all that is only shown is the sender's.
    kept = {key: document[key] for key in ("conclusion", "first_bad", "axis") if key in document}
    sent_ = planted(document, lambda: PAYLOADS[name]) | kept
    for point, as_it_was in zip(sent_.get("points", ()), document.get("points", ()), strict=True):
        point |= {key: as_it_was[key] for key in ("label", "state")}
    write_json(tmp_path / "run.json", {"kind": kind})
    (tmp_path / f"{kind}.json").write_text(json.dumps(sent_))
    for format_ in formats:
        OBEYS[format_](render_experiment(tmp_path, format_))


# -- what is sent elsewhere -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", PAYLOADS)
def test_no_chat_makes_anything_of_a_verdict(name: str) -> None:
    text = chat(f"HUNG: x{PAYLOADS[name]}y <!channel> <http://evil.example|safe>")
    assert not unseen(text) and not set("\n<>") & set(text)
    # Code spans are pairs of single backticks here.
    outside = text.split("`")
    assert len(outside) % 2 == 1
    assert not [part for part in outside[::2] if re.search(r"@|://|www\.|\]\(", part)]


@pytest.mark.parametrize("name", PAYLOADS)
def test_no_spreadsheet_computes_a_cell(name: str) -> None:
    payload = PAYLOADS[name]
    text = csv_text([{payload: payload, "wall_s": -1.5, "factor": "-2", "lead": f"\t{payload}"}])
    header, row = csv.reader(text.splitlines(keepends=True))
    assert header[1:3] == ["wall_s", "factor"] and row[1:3] == ["-1.5", "-2"]
    for field in (header[0], row[0], row[3]):
        assert not unseen(field) and not re.match(r"\s*[=+@-]", field)


# -- every command that prints ------------------------------------------------------------------------


def mixed(run: Path) -> None:
    """Each string has another of the payloads."""
    turn = iter(list(PAYLOADS.values()) * 100_000)
    plant(run, lambda: next(turn))


def printed(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    with contextlib.suppress(typer.Exit):
        typer.main.get_command(app)(arguments, standalone_mode=False)
    told = capsys.readouterr()
    return told.out + told.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["report", "RUN"], ["report", "RUN", "-v"], ["report", "RUN", "--json"], ["diff", "RUN", "BEFORE"],
        ["diff", "RUN", "BEFORE", "--all"], ["diff", "RUN", "BEFORE", "--json"], ["ls", "FOLDER"],
        ["ls", "FOLDER", "--json"], ["analyze", "RUN"], ["analyze", "RUN", "--explain"], ["analyze", "RUN", "--json"],
        ["analyze", "RUN", "--why-not", "missing_rank"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_no_command_prints_what_a_terminal_obeys(
    arguments: list[str], judged: Path, sent: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mixed(sent)
    places = {"RUN": str(sent), "BEFORE": str(judged), "FOLDER": str(sent.parent)}
    text = printed([places.get(word, word) for word in arguments], capsys)
    assert len(text) > 40
    nothing_on_a_terminal(text)


def asked() -> Iterator[Callable[[str], str]]:
    yield tools.verdict
    yield tools.code
    yield lambda run: tools.evidence("e1", run)
    yield lambda run: tools.runs(str(Path(run).parent))


@pytest.mark.parametrize("ask", list(asked()))
def test_a_coding_agent_is_given_no_controls(ask: Callable[[str], str], sent: Path) -> None:
    mixed(sent)
    text = answers_of(ask)(str(sent))
    assert text and not unseen(text)


def test_what_ranks_do_now_is_shown_without_controls(capsys: pytest.CaptureFixture[str]) -> None:
    for payload in PAYLOADS.values():
        rank = RankNow(
            rank=0, host=payload, pid=1, step=1, rate_per_s=1.0, phase=payload, place=payload, last=payload, quiet_s=1.0,
            ended=False,
        )  # fmt: skip
        screen = console()
        rows = [(payload, rank), ("b", rank)]
        screen.print(table_of(rows, rows, screen))
    text = capsys.readouterr().out
    assert text.count("owned") > 1
    nothing_on_a_terminal(text)


# -- a field that is forgotten ----------------------------------------------------------------------------

FORGOTTEN = """
from nsadiag.evidence.records import Verdict
from nsadiag.reports.cleaners.markdown import Markdown, table
from nsadiag.reports.formats.registry import Reporter
from nsadiag.reports.model import Report
from nsadiag.reports.terminal.run import print_report
from rich.console import Console

def heading(report: Report) -> str:
    return f"# {report.name}"

def fix(verdict: Verdict) -> Markdown:
    return f"**{verdict.fix}**"  # line 13

reporter: Reporter = heading  # line 15
rows = table(["a"], [["b"]])  # line 16

def shown(report: Report) -> None:
    print_report(report, Console())  # line 19

def cleaned(verdict: Verdict) -> Markdown:
    return Markdown("**{}**").format(verdict.fix)
"""


@pytest.mark.slow
def test_text_that_no_cleaner_has_seen_is_an_error_of_types(tmp_path: Path) -> None:
    module = tmp_path / "forgotten.py"
    module.write_text(FORGOTTEN)
    line = (sys.executable, "-m", "mypy", "--no-error-summary", module)
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    places = {int(number) for number in re.findall(r"forgotten.py:(\d+): error", done.stdout)}
    assert places == {13, 15, 16, 19}
