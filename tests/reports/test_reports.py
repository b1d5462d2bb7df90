"""What the reports promise, tried on run directories made from verdicts."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import time
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from support.recordings.golden import archive_of, unpack
from support.reported import (
    AXES,
    CRASHED,
    FAILING,
    HEALTHY,
    HUNG,
    NASTY,
    cell_id,
    make_matrix,
    make_run,
)

from nsadiag.analysis.verdict import judge_directory
from nsadiag.errors import UsageError
from nsadiag.evidence.layout import make_private_dir, write_json
from nsadiag.evidence.phrases import rate
from nsadiag.evidence.records import (
    Evidence,
    PeerWait,
    Progress,
    Rejected,
    Verdict,
    Where,
)
from nsadiag.printing import clean
from nsadiag.reports import MatrixReport, RunReport, load_report, print_report
from nsadiag.reports.cleaners.markdown import Markdown, code, escape, table
from nsadiag.reports.facts import Fact, facts_of, headline
from nsadiag.reports.formats.plot import panels_of
from nsadiag.reports.formats.registry import REPORTERS, write_reports
from nsadiag.reports.grid import grid_of
from nsadiag.reports.sources import source_href
from nsadiag.reports.terminal.live import LiveProgress, PlainProgress, matrix_progress
from nsadiag.reports.terminal.screen import Screen
from nsadiag.reports.words import duration, mebibytes, rank_list

SLOW = replace(
    HUNG,
    outcome="slow",
    cls="slow_compute",
    guilty_ranks=(),
    blocked_ranks=(),
    summary="Every rank progresses, 40 times slower than the smaller cells predict.",
    progress=Progress(steps_done=2, rate_per_s=0.01, eta_s=4000.0, predicted_s=120.0),
)
UNKNOWN = replace(
    HEALTHY,
    outcome="unknown",
    cls="unknown",
    confidence=0.2,
    summary="No progress for 60 s, and nothing collected says why.",
    gaps=("no flight recorder: torch 2.4 has none on gloo",),
    next="nsadiag run --probes full -- python train.py",
)
ALL = (HUNG, CRASHED, SLOW, HEALTHY, UNKNOWN)
# The others are for programs: timelines of one run, a draft for somebody else's tracker, annotations of findings alone.
TOLD = [name for name in REPORTERS if name not in ("issue", "perfetto", "speedscope", "github", "sarif")]


@pytest.fixture(scope="module")
def matrix_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_matrix(tmp_path_factory.mktemp("matrix") / "quick", FAILING)


@pytest.fixture
def hung(tmp_path: Path) -> Path:
    return make_run(tmp_path / "hung", HUNG)


def on_terminal(directory: Path, **options: Any) -> str:
    console = Screen(file=io.StringIO(), **{"width": 80, **options})
    print_report(load_report(directory), console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def rendered(directory: Path, name: str) -> str:
    return REPORTERS[name](load_report(directory))


def flowing(text: str) -> str:
    """The text as a reader's eye takes it: line ends are spaces, and what buttons copy is not seen."""
    return " ".join(re.sub(r"<textarea.*?</textarea>", "", text, flags=re.DOTALL).split())


def without_code(text: str) -> str:
    """Markdown as it reads: `#17` is in code, where GitHub takes it for no issue."""
    return re.sub(r"`(#\d+)`", r"\1", text)


class Page(HTMLParser):
    """What a browser would make of the tags, as far as these tests ask."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.script = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][0] == "script":
            self.script += data if not self.script else ""

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


# What every format says


@pytest.mark.parametrize("name", ["terminal", "md", "html"])
@pytest.mark.parametrize("verdict", ALL, ids=lambda verdict: verdict.outcome)
def test_every_format_leads_with_the_outcome_and_the_sentence(
    tmp_path: Path, verdict: Verdict, name: str
) -> None:
    text = without_code(flowing(rendered(make_run(tmp_path / "run", verdict), name)))
    body = text if name != "html" else text[text.index("<main>") :]
    outcome = body.lower().index(verdict.outcome)
    sentence = body.index(verdict.summary.split("`")[0].strip())
    assert outcome < sentence < 700


@pytest.mark.parametrize("name", ["terminal", "md", "html"])
def test_a_gap_that_ranks_have_alike_is_named_once(tmp_path: Path, name: str) -> None:
    gaps = (
        "rank 0: no stacks: refused",
        "no counters",
        *(f"rank {n}: no stacks: refused" for n in (1, 2, 3, 4, 7)),
    )
    text = flowing(rendered(make_run(tmp_path / "run", replace(HUNG, gaps=gaps)), name))
    assert text.count("refused") == 1 and "ranks 0-4, 7: no stacks: refused" in text
    assert "no counters" in text


@pytest.mark.parametrize("name", ["terminal", "md", "html"])
def test_every_format_names_place_peers_collective_and_parameter(hung: Path, name: str) -> None:
    text = without_code(flowing(rendered(hung, name)))
    for expected in (
        "examples/train.py:41 in train",
        "if rank == 0: dist.all_reduce(loss)",
        "examples/train.py:44 in train",
        "all_reduce #17 of default_pg",
        "blocks.3.mlp.fc2.weight",
        "step 5, backward, bucket 2",
        "rank 1 never issued all_reduce #17",
        "straggler_rank",
        "ptrace not permitted",
        "move it out of the branch on rank",
        "nsadiag run --probes full",
        "SIGTERM",
    ):
        assert expected in text


@pytest.mark.parametrize("name", ["terminal", "md", "html", "issue", "junit"])
def test_a_hang_that_is_proven_is_told_apart_from_its_cause_that_is_not(tmp_path: Path, name: str) -> None:
    proven = replace(HUNG, certainty="proven", confidence=0.85)
    assert headline(proven).endswith(", hang proven, cause 85 % sure")
    assert headline(proven) in flowing(rendered(make_run(tmp_path / "run", proven), name))
    assert headline(replace(CRASHED, confidence=0.85)).endswith(", 85 % sure")


@pytest.mark.parametrize("name", ["terminal", "md", "html"])
def test_a_parts_absence_leaves_no_none_behind(tmp_path: Path, name: str) -> None:
    text = rendered(make_run(tmp_path / "run", HEALTHY), name)
    assert "None" not in text
    assert "guilty" not in text.split("<main>")[-1]


@pytest.mark.parametrize("name", TOLD)
def test_a_run_without_a_verdict_says_so(tmp_path: Path, name: str) -> None:
    text = rendered(make_run(tmp_path / "run", None), name)
    assert "verdict.json is missing" in text


@pytest.mark.parametrize("name", TOLD)
def test_an_outcome_of_a_newer_version_is_spelt_out(tmp_path: Path, name: str) -> None:
    directory = make_run(tmp_path / "run", HUNG)
    document = HUNG.to_json() | {"outcome": "corrupted", "new_key": 1}
    write_json(directory / "verdict.json", document)
    assert "corrupted" in rendered(directory, name).lower()


# Loading


def test_a_finding_of_a_matrix_shows_its_line(matrix_directory: Path) -> None:
    finding = rendered(matrix_directory, "html").partition("<h2>Findings")[2].partition("</article>")[0]
    assert "examples/train.py:41 in train" in finding and "if rank == 0: dist.all_reduce(loss)" in finding


def test_a_half_written_verdict_is_a_gap_and_no_traceback(tmp_path: Path) -> None:
    directory = make_run(tmp_path / "run", None)
    (directory / "verdict.json").write_text('{"outcome": "hu')
    report = load_report(directory)
    assert isinstance(report, RunReport)
    assert report.verdict is None
    assert report.gaps == ("verdict.json is half written or not JSON",)


@pytest.mark.parametrize("damage", [{"where": "train.py"}, {"evidence": [1]}, {"guilty_ranks": None}])
def test_a_verdict_of_unexpected_shape_is_a_gap(tmp_path: Path, damage: dict[str, Any]) -> None:
    directory = make_run(tmp_path / "run", HUNG)
    write_json(directory / "verdict.json", HUNG.to_json() | damage)
    report = load_report(directory)
    assert "verdict.json" in report.gaps[0]
    write_reports(directory)


@pytest.mark.parametrize("broken", ["run.json", "ends.json"])
def test_any_other_broken_file_is_named_and_the_verdict_still_shown(hung: Path, broken: str) -> None:
    (hung / broken).write_bytes(b"\x00\xff[")
    text = on_terminal(hung)
    assert f"{broken} is half written" in text
    assert "Rank 1 skipped" in text


def test_a_run_that_only_left_rank_directories_is_reported(tmp_path: Path) -> None:
    (tmp_path / "ranks" / "00000").mkdir(parents=True)
    report = load_report(tmp_path)
    assert isinstance(report, RunReport)
    assert [rank.rank for rank in report.ranks] == [0]


def test_an_unlisted_matrix_is_read_from_its_folders(tmp_path: Path) -> None:
    directory = tmp_path / "killed"
    for name, verdict in FAILING.items():
        make_run(directory / "cells" / name, verdict)
    (directory / "matrix.json").write_text('{"cells": [')
    report = load_report(directory)
    assert isinstance(report, MatrixReport)
    assert report.counts() == {"hung": 2, "crashed": 1}
    assert [axis.name for axis in report.axes] == list(AXES)
    assert "matrix.json is half written or not JSON" in report.gaps


def test_a_verdict_that_matrix_json_lacks_is_taken_from_the_cell(tmp_path: Path) -> None:
    directory = make_matrix(tmp_path / "m", {cell_id(1, "none", "ddp"): None})
    write_json(directory / "cells" / cell_id(1, "none", "ddp") / "verdict.json", CRASHED.to_json())
    report = load_report(directory)
    assert isinstance(report, MatrixReport)
    assert report.counts()["crashed"] == 1


def test_a_cell_of_a_matrix_is_itself_a_run(matrix_directory: Path) -> None:
    report = load_report(matrix_directory / "cells" / cell_id(4, "none", "ddp"))
    assert isinstance(report, RunReport)
    assert report.state == "hung"


@pytest.mark.parametrize("what", ["nothing", "a file", "a stranger"])
def test_a_directory_that_is_none_of_ours_is_refused_with_a_hint(tmp_path: Path, what: str) -> None:
    path = tmp_path / "there"
    if what == "a file":
        path.write_text("")
    elif what == "a stranger":
        path.mkdir()
        (path / "notes.txt").write_text("")
    with pytest.raises(UsageError) as error:
        load_report(path)
    assert str(path) in error.value.message
    assert "nsadiag" in error.value.hint


def test_a_cell_id_cannot_lead_out_of_the_matrix(tmp_path: Path) -> None:
    make_run(tmp_path / "elsewhere", HUNG)
    (tmp_path / "m").mkdir()
    cell = {"id": "../../elsewhere", "state": "done", "verdict": None}
    write_json(tmp_path / "m" / "matrix.json", {"cells": [cell]})
    report = load_report(tmp_path / "m")
    assert isinstance(report, MatrixReport)
    assert report.cells[0].verdict is None


# Terminal


def test_a_verdict_fits_one_screen_of_eighty_columns(hung: Path) -> None:
    lines = on_terminal(hung).splitlines()
    assert len(lines) <= 32, "\n".join(lines)
    assert max(len(line) for line in lines if not line.startswith(("  next", "  report", "  files"))) <= 80


def test_a_command_to_copy_is_never_broken_by_a_line_end(hung: Path) -> None:
    assert f"  next    {HUNG.next}" in on_terminal(hung, width=40).splitlines()


def test_colour_is_never_the_only_signal_and_no_color_is_honoured(
    hung: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "\x1b[" in on_terminal(hung, force_terminal=True, color_system="truecolor")
    monkeypatch.setenv("NO_COLOR", "1")
    plain = on_terminal(hung, force_terminal=True)
    assert not re.search(r"\x1b\[[\d;]*(?:3|4|9)\d", plain)
    assert "HUNG" in plain


def test_terminal_escapes_and_markup_in_a_verdict_are_not_obeyed(tmp_path: Path) -> None:
    summary = "[bold red]loud[/] \x1b[2J\x1b]0;title\x07:smile: done"
    text = on_terminal(make_run(tmp_path / "run", replace(HUNG, summary=summary)))
    assert "[bold red]loud[/] :smile: done" in text
    assert "\x1b" not in text


def test_a_terminal_that_knows_only_ascii_gets_ascii(matrix_directory: Path, tmp_path: Path) -> None:
    directory = make_run(tmp_path / "run", replace(HUNG, summary="Das Maß: 4 µs · 2 …"))
    for path in (directory, matrix_directory):
        stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
        print_report(load_report(path), Screen(file=stream, width=80))
        stream.flush()
        assert stream.buffer.getvalue().isascii()  # type: ignore[attr-defined]


def test_more_ranks_than_a_line_holds_are_written_as_spans() -> None:
    assert rank_list([1], 2) == "rank 1 of 2"
    assert rank_list([0, 1, 2, 3, 7], 8) == "ranks 0-3, 7 (5 of 8)"
    assert rank_list(range(8), 8) == "all 8 ranks"
    assert rank_list(range(2), 2) == "both ranks"
    assert len(rank_list(range(0, 4096, 2), 4096)) < 80


def test_a_matrix_fits_eighty_columns_and_shows_each_letter_with_its_legend(matrix_directory: Path) -> None:
    text = on_terminal(matrix_directory)
    assert max(len(line) for line in text.splitlines() if not line.startswith("report:")) <= 80
    assert re.search(r"4 +none +✓ +H +✓", text)
    assert re.search(r"H hung +C crashed +✓ healthy", text)
    assert "2 hung, 1 crashed, 33 healthy in 98.4 s" in text


def test_a_matrix_ends_with_its_failures_and_the_path_of_the_report(tmp_path: Path) -> None:
    directory = make_matrix(tmp_path / "m", FAILING)
    write_reports(directory)
    last = " ".join(on_terminal(directory, width=200).splitlines()[-16:])
    assert "Rank 1 raised ValueError" in last
    assert cell_id(5, "reentrant", "ddp") in last
    assert str(directory / "report.html") in last


def test_failing_cells_come_first_in_the_costs(matrix_directory: Path) -> None:
    rows = [line for line in on_terminal(matrix_directory).splitlines() if " MiB" in line]
    assert len(rows) == 36
    assert [row.split()[4] for row in rows[:3]] == ["hung", "hung", "crashed"]
    assert "healthy" in rows[3]


def test_the_same_failure_in_many_cells_is_told_once(matrix_directory: Path) -> None:
    text = on_terminal(matrix_directory, width=120)
    assert text.count("Rank 1 skipped all_reduce #17") == 1
    assert text.count(f"in {cell_id(4, 'none', 'ddp')}") == 1


# The grid and the plot


def test_the_grid_orders_rows_by_the_axes_and_names_fixed_axes_once(tmp_path: Path) -> None:
    document = {
        "axes": [
            {"name": "dtype", "values": ["fp32"]},
            {"name": "layers", "values": ["2", "12"]},
            {"name": "parallel", "values": ["single", "ddp"]},
        ],
        "cells": [
            {"id": f"{n},{p}", "state": "pending", "factors": {"dtype": "fp32", "layers": n, "parallel": p}}
            for n, p in (("12", "ddp"), ("2", "ddp"), ("2", "single"))
        ],
    }
    write_json(tmp_path / "matrix.json", document)
    report = load_report(tmp_path)
    assert isinstance(report, MatrixReport)
    grid = grid_of(report)
    assert [row.labels for row in grid.rows] == [("2",), ("12",)]
    assert grid.rows[1].slots[0] == ()
    assert grid.fixed == (("dtype", "fp32"),)


@pytest.mark.parametrize("name", TOLD)
def test_a_matrix_without_cells_or_axes_is_still_a_report(tmp_path: Path, name: str) -> None:
    write_json(tmp_path / "matrix.json", {"name": "empty", "cells": [], "axes": []})
    assert "empty" in rendered(tmp_path, name)


@pytest.mark.parametrize("name", TOLD)
def test_a_matrix_with_one_axis_or_none_is_rendered(tmp_path: Path, name: str) -> None:
    for axes in ([], [{"name": "layers", "values": ["1", "2"]}]):
        cells = [{"id": f"layers={n}", "factors": {"layers": n} if axes else {}, "verdict": HUNG.to_json()}
                 for n in ("1", "2")]  # fmt: skip
        write_json(tmp_path / "matrix.json", {"name": "thin", "cells": cells, "axes": axes})
        assert "Rank 1 skipped" in rendered(tmp_path, name)


def test_the_plot_has_a_panel_per_checkpointing_and_a_line_per_parallel_mode(matrix_directory: Path) -> None:
    report = load_report(matrix_directory)
    assert isinstance(report, MatrixReport)
    panels = panels_of(report)
    assert [panel.title for panel in panels] == [f"checkpointing {c}" for c in AXES["checkpointing"]]
    assert [line.label for line in panels[0].lines] == list(AXES["parallel"])
    single = panels[0].lines[0]
    # 4 to 5 layers is half as far as 2 to 4: a straight line means linear cost.
    xs = [point.x for point in single.points]
    assert xs[3] - xs[2] == pytest.approx((xs[2] - xs[1]) / 2)
    assert single.points[0].text == "layers 1, single: 10.0 ms"


# Markdown


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("a|b", "a\\|b"),
        ("<b>&amp;", "\\<b\\>\\&amp;"),
        ("rank_killed by __init__", "rank_killed by \\_\\_init\\_\\_"),
        ("- not a list", "\\- not a list"),
        ("12. not one either", "12\\. not one either"),
        ("# no heading", "\\# no heading"),
        ("-0.5 is a number", "-0.5 is a number"),
        ("two\nlines", "two lines"),
        ("cost $x$ and `y`", "cost `$x$` and `y`"),
        ("one ` alone", "one \\` alone"),
        ("`a | b`", "`a | b`"),
        ("``a `b` c``, (#10), see @me", "``a `b` c``, (`#10`), see `@me`"),
        ("`x`@y", "`x` `@y`"),
        ("/close this", "\\/close this"),
    ],
)
def test_markdown_takes_nothing_in_a_text_as_its_own(text: str, escaped: str) -> None:
    assert escape(text) == escaped


def test_code_spans_hold_backticks_and_pipes() -> None:
    assert code("a `b` c") == "``a `b` c``"
    assert code("`b`") == "`` `b` ``"
    (_, _, row) = table([Markdown("x")], [[code("a | b") + escape("c|d \\|")]]).splitlines()
    assert row == "| `a \\| b`c\\|d \\\\\\| |"


def test_markdown_links_evidence_relative_to_the_report(hung: Path, matrix_directory: Path) -> None:
    assert "(ranks/00001/captures/01/fr.json)" in rendered(hung, "md")
    inside = f"(cells/{cell_id(4, 'none', 'ddp')}/ranks/00001/captures/01/fr.json)"
    assert inside in rendered(matrix_directory, "md")


def test_every_markdown_table_has_as_many_cells_in_each_row(tmp_path: Path, matrix_directory: Path) -> None:
    where = replace(HUNG.where or Where(), code="x = a | b  # `c`", parameter="odd|name")
    nasty = make_run(tmp_path / "run", replace(HUNG, where=where, summary=NASTY), host="a|b")
    for directory in (nasty, matrix_directory):
        blocks = re.findall(r"(?:^\|.*\n)+", rendered(directory, "md"), flags=re.MULTILINE)
        assert blocks
        for block in blocks:
            pipes = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}
            assert len(pipes) == 1


@pytest.mark.parametrize(
    ("per_s", "text"),
    [(1267.0, "1,270"), (104_321.5, "104,000"), (114.2, "114"), (19.53, "19.5"), (0.01234, "0.0123"),
     (1.2e-5, "0.000012"), (0.0, "0"), (float("nan"), "0")],
)  # fmt: skip
def test_a_rate_has_no_exponent(per_s: float, text: str) -> None:
    assert rate(per_s) == text


def test_markdown_says_how_to_reproduce_with_quoting(hung: Path) -> None:
    text = rendered(hung, "md")
    assert "nsadiag run -- torchrun --nproc-per-node 2 examples/train.py --name 'two words'" in text
    assert f"nsadiag analyze {hung}" in text  # from any directory


def test_markdown_keeps_html_and_scripts_inert(tmp_path: Path) -> None:
    text = rendered(make_run(tmp_path / "run", replace(HUNG, summary=NASTY)), "md")
    assert not re.search(r"(?<!\\)<script", text.split("## Environment")[0])
    assert "\x1b" not in text


# HTML


def only_our_script(page: Page) -> bool:
    """Whether the page has one script, which its policy names by its hash, and no handler in an attribute."""
    handlers = [name for _, attributes in page.tags for name in attributes if name.startswith("on")]
    hashed = base64.b64encode(hashlib.sha256(page.script.encode()).digest()).decode()
    policy = str(page.all("meta"))
    return len(page.all("script")) == 1 and not handlers and f"script-src 'sha256-{hashed}'" in policy


def test_html_asks_nothing_of_the_network(hung: Path, matrix_directory: Path) -> None:
    for directory in (hung, matrix_directory):
        page = Page(rendered(directory, "html"))
        assert only_our_script(page) and not page.all("iframe") and not page.all("img")
        for tag in ("link", "a"):
            for attributes in page.all(tag):
                assert re.match(r"#|ranks/|cells/|data:,", attributes["href"] or "")
        assert "default-src 'none'" in str(page.all("meta"))


def test_html_escapes_scripts_wherever_they_come_from(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>"
    where = replace(HUNG.where or Where(), code=evil, file=evil, function=evil, parameter=evil)
    verdict = replace(
        HUNG, cls=evil, summary=evil, fix=evil, next=evil, gaps=(evil,), where=where,
        evidence=(Evidence(claim=evil, source=evil), Evidence(claim="x", source="javascript:alert(1)")),
        rejected=(Rejected(cls=evil, because=evil),),
    )  # fmt: skip
    run = make_run(tmp_path / "run", verdict, name=evil, host=evil, environment={evil: evil}, command=[evil])
    (run / "ranks" / "00001" / "stderr.log").write_text(evil)
    cells = [{"id": evil, "factors": {evil: evil}, "verdict": verdict.to_json()}]
    matrix = tmp_path / "m"
    matrix.mkdir()
    write_json(
        matrix / "matrix.json", {"name": evil, "cells": cells, "axes": [{"name": evil, "values": [evil]}]}
    )
    for directory in (run, matrix):
        page = Page(rendered(directory, "html"))
        assert only_our_script(page) and not page.all("img")
        assert not any("javascript:" in (a["href"] or "") for a in page.all("a"))


def test_secrets_in_a_log_are_masked_also_where_nobody_knows_their_values(tmp_path: Path) -> None:
    run = make_run(tmp_path, HUNG)
    token = "ghp_" + "Ab1" * 12
    (run / "ranks" / "00001" / "stderr.log").write_text(
        f"RuntimeError: DB_PASSWORD=letmein1 refused, {token} too, args --api-pass letmein2 --lr 0.1\n"
    )
    shown = rendered(run, "html")
    assert "letmein" not in shown and token not in shown
    assert "--lr 0.1" in shown


def test_every_link_of_the_grid_leads_to_its_cells_section(matrix_directory: Path) -> None:
    page = Page(rendered(matrix_directory, "html"))
    ids = {a["id"] for _, a in page.tags if "id" in a}
    targets = {(a["href"] or "")[1:] for a in page.all("a") if (a["href"] or "").startswith("#")}
    assert len(targets) == 36
    assert targets <= ids


def test_html_headings_tables_and_plots_are_for_everyone(matrix_directory: Path) -> None:
    html = rendered(matrix_directory, "html")
    page = Page(html)
    assert page.all("html")[0]["lang"] == "en"
    assert len(page.all("h1")) == 1
    assert all("scope" in attributes for attributes in page.all("th"))
    assert all("role" in a or "aria-hidden" in a for a in page.all("svg"))
    assert html.count("<b>H</b>") == 2


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_colour_of_text_has_the_contrast_of_wcag_aa(hung: Path, scheme: str) -> None:
    themes = re.findall(r":root \{(.*?)\}", rendered(hung, "html"), flags=re.DOTALL)
    colours = dict(re.findall(r"--([\w-]+): (#\w{6})", themes[0 if scheme == "light" else 1]))
    for name in ("text", "muted", "link", "hung", "crashed", "slow", "wrong", "healthy", "unknown"):
        for ground in ("bg", "raised"):
            assert contrast(colours[name], colours[ground]) >= 4.5, (name, ground)


def contrast(one: str, other: str) -> float:
    """WCAG 2.1, section 1.4.3."""
    darker, lighter = sorted(luminance(colour) for colour in (one, other))
    return (lighter + 0.05) / (darker + 0.05)


def luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_a_source_becomes_a_link_only_to_a_file_inside_the_run(hung: Path) -> None:
    (hung.parent / "secret.txt").write_text("")
    assert source_href(hung, hung, "ends.json#0") == "ends.json"
    for source in ("../secret.txt", "/etc/passwd", "javascript:alert(1)", "gone.json", "", "#x", "a\x00b"):
        assert source_href(hung, hung, source) is None


# JSON and files


def test_json_is_one_strict_document_with_the_verdict_in_it(hung: Path, matrix_directory: Path) -> None:
    def refuse(word: str) -> None:
        raise AssertionError(word)

    run = json.loads(rendered(hung, "json"), parse_constant=refuse)
    assert run["kind"] == "run"
    assert run["verdict"] == json.loads((hung / "verdict.json").read_text())
    matrix = json.loads(rendered(matrix_directory, "json"), parse_constant=refuse)
    assert matrix["totals"] == {"cells": 36, "healthy": 33, "findings": 3, "wall_s": 98.4}


def test_numbers_that_json_cannot_hold_are_null(tmp_path: Path) -> None:
    progress = Progress(steps_done=1, rate_per_s=float("inf"), eta_s=float("nan"))
    directory = make_run(tmp_path / "run", replace(SLOW, progress=progress))
    document = json.loads(rendered(directory, "json"))
    assert document["verdict"]["progress"]["rate_per_s"] is None
    write_reports(directory)


def test_reports_are_replaced_in_one_step_and_leave_nothing_else(hung: Path) -> None:
    before = set(hung.iterdir())
    (hung / "report.md").write_text("old")
    write_reports(hung)
    write_reports(hung)
    assert {path.name for path in set(hung.iterdir()) - before} == {"report.md", "report.html"}
    assert (hung / "report.md").read_text().startswith("# HUNG")


def test_a_reports_numbers_read_well() -> None:
    values = (0.0, 4e-6, 0.0123, 0.9999, 4.2, 59.9, 99.4, 133, 3600, None)
    words = [
        "0 s",
        "4 µs",
        "12.3 ms",
        "1.00 s",
        "4.20 s",
        "59.9 s",
        "99.4 s",
        "2 min 13 s",
        "1 h 00 min",
        "-",
    ]
    assert [duration(value) for value in values] == words
    assert [mebibytes(value) for value in (410.4, 2048.0, None)] == ["410 MiB", "2.00 GiB", "-"]
    assert clean("\x1b[31mred\x1b[0m\x00") == "red"


def test_nothing_is_said_of_ranks_that_all_ended_well(tmp_path: Path) -> None:
    directory = make_run(tmp_path / "run", HEALTHY)
    write_json(
        directory / "ends.json", {str(r): {"exit_code": 0, "signal": None, "t_s": 6.0} for r in (0, 1)}
    )
    report = load_report(directory)
    assert isinstance(report, RunReport)
    assert Fact(
        label="progress", text="20 steps done, 8.1 steps/s (123 ms each), verdict at 6.00 s"
    ) in facts_of(report)
    assert not [fact for fact in facts_of(report) if fact.label == "ended"]


def test_of_very_many_ranks_the_guilty_are_shown_first_and_the_rest_counted(tmp_path: Path) -> None:
    verdict = replace(HUNG, world_size=4096, guilty_ranks=(4000,), blocked_ranks=tuple(range(4000)))
    directory = make_run(tmp_path / "run", verdict)
    write_json(directory / "ends.json", {str(rank): {"exit_code": 1, "t_s": 1.0} for rank in range(4096)})
    html = rendered(directory, "html")
    assert "and 4032 other ranks under ranks/" in html
    assert re.search(r'<th scope="row" class="number">4000</th>\s*<td><strong>guilty', html)
    assert html.count('<th scope="row" class="number">') == 64


# Progress


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_progress_elsewhere_than_on_a_terminal_is_one_line_a_cell() -> None:
    stream = io.StringIO()
    with matrix_progress(Screen(file=stream, width=40)) as progress:
        assert isinstance(progress, PlainProgress)
        progress.start("nsa-quick", ["layers=1", "layers=2"])
        for name, verdict in (("layers=1", HEALTHY), ("layers=2", HUNG)):
            progress.cell_started(name)
            progress.cell_finished(name, verdict, 2.0)
        progress.note("warm ranks restarted")
    lines = stream.getvalue().splitlines()
    assert lines[0] == "nsa-quick: 2 cells"
    assert lines[1] == "[1/2] ✓ healthy   2.00 s  layers=1"
    assert lines[2].startswith("[2/2] H hung      2.00 s  layers=2: rank_conditional_collective, rank 1")
    assert lines[3] == "warm ranks restarted"
    assert lines[4].startswith("nsa-quick: 1 hung, 1 healthy in ")
    assert len(lines) == 5


def test_plain_progress_survives_a_stream_that_knows_only_ascii() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    with matrix_progress(Screen(file=stream)) as progress:
        progress.start("m", ["a"])
        progress.cell_finished("a", HEALTHY, 1e-5)
    stream.flush()


def test_the_live_view_shows_counts_time_left_what_runs_and_what_failed() -> None:
    clock = Clock()
    console = Screen(file=io.StringIO(), force_terminal=True, width=100, height=30)
    progress = LiveProgress(console, clock)
    progress.start("nsa-quick", [f"layers={n}" for n in range(36)])
    for n in range(3):
        progress.cell_started(f"layers={n}")
        clock.now += 2
        progress.cell_finished(f"layers={n}", CRASHED if n == 1 else HEALTHY, 2.0)
    progress.cell_started("layers=3")
    text = view_of(progress)
    assert "3/36  6 s, about 66 s left" in text
    assert "✓C✓R····" in text
    assert "R running      0 s  layers=3" in text
    assert "C crashed   2.00 s  layers=1: rank_exception" in text
    assert "1 crashed, 2 healthy" in text


def test_the_live_view_never_outgrows_a_short_terminal() -> None:
    console = Screen(file=io.StringIO(), force_terminal=True, width=60, height=6)
    progress = LiveProgress(console, Clock())
    progress.start("m", [str(n) for n in range(400)])
    for n in range(20):
        progress.cell_finished(str(n), HUNG, 1.0)
    lines = view_of(progress, height=6).splitlines()
    assert len(lines) <= 5
    assert max(map(len, lines)) <= 60


def test_the_live_view_is_chosen_on_a_terminal_and_leaves_its_last_state() -> None:
    stream = io.StringIO()
    with matrix_progress(Screen(file=stream, force_terminal=True, width=80, height=20)) as progress:
        assert isinstance(progress, LiveProgress)
        progress.start("nsa-quick", ["a", "b"])
        progress.note("kept above")
        progress.cell_finished("a", None, 1.0)
        progress.cell_finished("b", HEALTHY, 1.0)
    plain = clean(stream.getvalue())
    assert "kept above" in plain
    assert "2/2" in plain and "? unknown   1.00 s  a: no verdict" in plain


def view_of(progress: LiveProgress, height: int = 30) -> str:
    """What one redraw prints."""
    console = Screen(file=io.StringIO(), width=60 if height < 30 else 100, height=height)
    console.print(progress._view())
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_a_matrix_fits_the_terminal_and_breaks_no_word(
    width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    report = load_report(make_matrix(tmp_path / "m", FAILING))
    assert isinstance(report, MatrixReport)
    console = Screen(file=io.StringIO(), width=width, no_color=True)
    print_report(report, console)
    table = console.file.getvalue().partition("Findings")[0].splitlines()  # type: ignore[attr-defined]
    assert all(len(line) <= width for line in table)
    if width >= 60:  # each setting in a column of its own, whole
        assert any(line.split()[:3] == ["5", "reentrant", "ddp"] for line in table)
        assert any(line.split()[:2] == ["layers", "checkpointing"] for line in table)


def test_a_verdict_on_very_many_ranks_is_shown_as_quickly_as_one_on_few(tmp_path: Path) -> None:
    """Each of the ranks that left something is looked for among the guilty: in a list that was a million times a thousand."""
    run = unpack(archive_of("rank_conditional_save"), tmp_path)
    judge_directory(run.path)
    verdict = json.loads(run.verdict.read_text())
    for rank in range(2, 400):
        make_private_dir(run.rank(rank).path)
        write_json(run.rank(rank).meta, {"rank": rank})

    def seconds(ranks: int) -> float:
        named = {"guilty_ranks": list(range(400, ranks)), "world_size": ranks, "blocked_ranks": [0]}
        write_json(run.verdict, verdict | named)
        report = load_report(run.path)
        began = time.process_time()
        for render in REPORTERS.values():
            render(report)
        return time.process_time() - began

    few, many = seconds(500), seconds(200_000)
    assert many < 5 * few, (few, many)


def test_what_a_straggler_costs_its_peers_is_said_in_the_time_that_they_lost(tmp_path: Path) -> None:
    slow = replace(HUNG, outcome="slow", cls="straggler_rank", certainty=None)
    for lost_s, on_gpus, said in (
        (180.0, False, "at most, which cost them 3 min of rank time"),
        (7200.0, True, "at most, which cost them 2.0 GPU hours"),
        (3.1, False, "113 ms at most"),
    ):
        wait = PeerWait(
            rank=1, total_s=2.9, now_s=0.0, longest_s=0.113, times=30, lost_s=lost_s, on_gpus=on_gpus
        )
        run = make_run(tmp_path / said[-9:], replace(slow, peer_waits=(wait,)))
        line = next(line for line in facts_of(load_report(run)) if line.label == "waits").text  # type: ignore[arg-type]
        assert line.endswith(said)
