"""The HTML report in a real browser: what Chromium makes of the page, and what it complains about."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest
from support.recordings.crowds import dumps_of
from support.reported import FAILING, HUNG, LOCKED, NASTY, cell_id, judged, make_matrix, make_run

from nsadiag.analysis.scale.digests.equivalence import newest
from nsadiag.analysis.scale.digests.representatives import representatives
from nsadiag.analysis.scale.digests.shape import packed, unpacked
from nsadiag.analysis.verdict import judge_directory
from nsadiag.evidence.layout import RunDir, write_json
from nsadiag.evidence.records import Where
from nsadiag.reports.formats.registry import write_reports

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--enable-logging=stderr",
)

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed"),
]


def browse(page: Path, profile: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """Opens the page in a browser of its own; the DOM is on stdout, the console on stderr."""
    assert CHROMIUM
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", *flags, page.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)


def opened(directory: Path, profile: Path) -> str:
    """The DOM of the directory's report; fails on whatever the page puts on the console."""
    write_reports(directory)
    done = browse(directory / "report.html", profile, "--dump-dom")
    assert not [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return done.stdout


def visible(dom: str) -> str:
    """The text of the body, tags gone, in one line."""
    body = re.sub(r"<script>.*?</script>", "", dom[dom.index("<main>") :], flags=re.DOTALL)
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", body)).split())


def test_the_verdict_is_on_the_page(tmp_path: Path) -> None:
    text = visible(opened(make_run(tmp_path / "run", HUNG), tmp_path / "profile"))
    assert "H hung rank_conditional_collective, rank 1 of 2, 95 % sure" in text
    assert "Rank 1 skipped all_reduce #17" in text
    assert "if rank == 0: dist.all_reduce(loss)" in text


def test_a_matrix_of_36_cells_is_on_the_page_with_its_grid_and_plots(tmp_path: Path) -> None:
    dom = opened(make_matrix(tmp_path / "matrix", FAILING), tmp_path / "profile")
    text = visible(dom)
    assert "H 2 hung C 1 crashed ✓ 33 healthy" in text
    assert len(re.findall(r'<a class="mark is-healthy"', dom)) == 33
    assert len(re.findall(r"<polyline", dom)) == 9
    assert f'id="cell-{cell_id(4, "none", "ddp")}"' in dom


def test_scripts_and_long_words_stay_text(tmp_path: Path) -> None:
    long = "averyverylongname" * 200
    where = replace(HUNG.where or Where(), code="<script>document.title='owned'</script>" + long, file=long)
    verdict = replace(
        HUNG, summary=f"{NASTY} <img src=x onerror=\"document.title='owned'\"> {long}", where=where
    )
    dom = opened(make_run(tmp_path / "run", verdict, name=long), tmp_path / "profile")
    assert "<title>hung: averyverylongname" in dom
    assert "<script>alert(1)</script> a|b tick **bold**" in visible(dom)
    assert dom.count("<script") == 1 and "<img" not in dom


def test_long_content_never_makes_a_phone_scroll_sideways(tmp_path: Path) -> None:
    long = "averyverylongname" * 40
    where = replace(HUNG.where or Where(), code=long, file=long, parameter=long)
    directory = make_run(
        tmp_path / "run", replace(HUNG, summary=long, where=where, fix=long, next=long), name=long
    )
    write_reports(directory)
    page = (directory / "report.html").read_text(encoding="utf-8")
    # A copy without its policy may run the one line that measures.
    page = re.sub(r"<meta http-equiv[^>]+>", "", page)
    measure = "document.title = document.documentElement.scrollWidth <= innerWidth ? 'fits' : 'too wide'"
    probe = tmp_path / "probe.html"
    probe.write_text(page.replace("</body>", f"<script>{measure}</script></body>"), encoding="utf-8")
    done = browse(probe, tmp_path / "profile", "--window-size=500,900", "--dump-dom")
    assert "<title>fits</title>" in done.stdout


def scripted(directory: Path, probe: Path, script: str) -> Path:
    """A copy of the page whose policy is gone, so that it may run one more script."""
    page = re.sub(
        r'<meta http-equiv="Content-Security-Policy"[^>]+>', "", (directory / "report.html").read_text()
    )
    probe.write_text(page.replace("</body>", f"<script>{script}</script></body>"), encoding="utf-8")
    return probe


KEYS = """
const view = document.querySelector(".view"), said = () => document.querySelector(".readout").textContent;
const press = (key) => { view.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true })); return said(); };
const heard = [press("ArrowRight"), press("ArrowUp"), press("ArrowDown"), press("ArrowLeft")];
press("+"); press("+");
const wide = view.scrollWidth > view.clientWidth * 1.5;
press("0");
document.title = JSON.stringify({ heard, wide, back: view.scrollWidth <= view.clientWidth + 1,
  tools: !document.querySelector(".tools").hidden });
"""


def test_the_timeline_answers_to_the_keyboard(tmp_path: Path) -> None:
    directory = judged(LOCKED, tmp_path / "run").directory
    write_reports(directory)
    probe = scripted(directory, tmp_path / "probe.html", KEYS)
    done = browse(probe, tmp_path / "profile", "--window-size=1000,900", "--dump-dom")
    found = json.loads(unescape(re.search(r"<title>(\{.*?)</title>", done.stdout)[1]))  # type: ignore[index]
    assert found["wide"] and found["back"] and found["tools"]
    assert found["heard"][0].startswith("rank 0: ") and found["heard"][2].startswith("rank 1: ")
    assert len(set(found["heard"])) >= 3


def test_the_pages_own_script_runs_under_its_policy_and_another_does_not(tmp_path: Path) -> None:
    directory = judged(LOCKED, tmp_path / "run").directory
    dom = opened(directory, tmp_path / "profile")
    assert re.search(r'<div class="tools"><button', dom)  # the script has shown them
    page = (directory / "report.html").read_text()
    (directory / "report.html").write_text(
        page.replace("</body>", "<script>document.title = 'owned'</script></body>")
    )
    done = browse(directory / "report.html", tmp_path / "profile2", "--dump-dom")
    assert "<title>hung" in done.stdout and "Content Security Policy" in done.stderr


@pytest.mark.parametrize("width", [500, 1280])
def test_a_page_with_pictures_fits_its_window(width: int, tmp_path: Path) -> None:
    directory = judged("rank_conditional_validation", tmp_path / "run").directory
    write_reports(directory)
    measure = "document.title = document.documentElement.scrollWidth <= innerWidth ? 'fits' : 'too wide'"
    probe = scripted(directory, tmp_path / "probe.html", measure)
    done = browse(probe, tmp_path / "profile", f"--window-size={width},900", "--dump-dom")
    assert "<title>fits</title>" in done.stdout


def test_the_cost_table_is_filtered_by_words(tmp_path: Path) -> None:
    directory = make_matrix(tmp_path / "matrix", FAILING)
    write_reports(directory)
    script = """
    const field = document.querySelector("input[data-filter]");
    field.value = "hung DDP"; field.dispatchEvent(new Event("input"));
    const left = [...document.querySelectorAll(".costs tbody tr")].filter((row) => !row.hidden).length;
    document.title = left + ", " + field.closest(".filter").querySelector("output").textContent;
    """
    probe = scripted(directory, tmp_path / "probe.html", script)
    done = browse(probe, tmp_path / "profile", "--dump-dom")
    assert "<title>2, 2 of 36</title>" in done.stdout


def test_the_page_prints_with_its_closed_parts_open(tmp_path: Path) -> None:
    directory = make_matrix(tmp_path / "matrix", FAILING)
    write_reports(directory)
    pdf = tmp_path / "report.pdf"
    browse(directory / "report.html", tmp_path / "profile", f"--print-to-pdf={pdf}")
    # Its 36 sections take 25 pages; closed, they would take 10.
    assert len(re.findall(rb"/Type\s*/Page\b", pdf.read_bytes())) >= 18


FIRST_SCREEN = """
const seen = [];
const walker = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const box = walker.currentNode.parentElement.getBoundingClientRect();
  if (box.height && box.bottom <= innerHeight) seen.push(walker.currentNode.textContent);
}
document.title = JSON.stringify({ ms: performance.now(), text: seen.join(" ").replace(/\\s+/g, " ") });
"""


def test_the_first_screen_of_ten_thousand_ranks_has_rank_line_and_reason(tmp_path: Path) -> None:
    crowd, _ = dumps_of("external_wait_stale_lock", tmp_path / "recorded", 10_000)
    many = RunDir(path=tmp_path / "many")
    for digest in crowd.digests(RunDir(path=tmp_path / "scratch")):
        path = many.digest(digest.host, digest.look)
        path.parent.mkdir(parents=True)
        path.write_bytes(packed(digest))
    crowd.write_frame(many)
    for rank in representatives(newest(unpacked(path.read_bytes()) for path in many.digests())):
        crowd.write_rank(many, rank)
    verdict = judge_directory(many.path)
    write_json(many.verdict, verdict.to_json())
    write_reports(many.path)
    assert (many.path / "report.html").stat().st_size < 1_000_000
    probe = scripted(many.path, tmp_path / "probe.html", FIRST_SCREEN)
    done = browse(probe, tmp_path / "profile", "--window-size=1280,900", "--dump-dom")
    found = json.loads(unescape(re.search(r"<title>(\{.*?)</title>", done.stdout)[1]))  # type: ignore[index]
    assert found["ms"] < 2000
    assert verdict.where is not None and verdict.where.code
    place = f"{Path(verdict.where.file or '').name}:{verdict.where.line}"
    text = re.sub(r"\W+", " ", found["text"])  # code in a sentence is an element of its own
    for said in (f"rank {verdict.guilty_ranks[0]} of 10000", place, verdict.where.code, verdict.summary):
        assert re.sub(r"\W+", " ", said).strip() in text
