"""The first picture of what other tools collected: the last calls by number, a row a rank."""

from pathlib import Path

from support.recordings.collected import in_backward, stepping, watchdog_lines

from nsadiag.analysis.case import Case
from nsadiag.analysis.load import load_cell
from nsadiag.analysis.verdict import judge_evidence
from nsadiag.reports.formats.html import render_html
from nsadiag.reports.formats.markdown import render_markdown
from nsadiag.reports.model import RunReport
from nsadiag.reports.pictures.calls import CallGrid, call_grid


def grid_of(folder: Path, *lines: str) -> CallGrid:
    (folder / "job.log").write_text("".join(lines))
    found = call_grid(Case(load_cell(folder)), judge_evidence(folder))
    assert found is not None
    return found


def test_who_is_behind_and_who_is_ahead_is_seen_in_the_columns(tmp_path: Path) -> None:
    ahead = [watchdog_lines(rank, seq=4411) for rank in (0, 1, 3)]
    grid = grid_of(tmp_path, *ahead, watchdog_lines(2, seq=4410))
    rows = {row.name: row for row in grid.rows}
    at = {number: index for index, number in enumerate(grid.numbers)}
    assert rows["rank 2"].cells[at[4410]].state == "waits"
    assert rows["rank 0"].cells[at[4410]].state == "done"
    assert rows["rank 0"].cells[at[4411]].state == "waits"
    assert rows["rank 2"].role == "guilty"
    assert rows["rank 0"].says == "timed out in all_reduce #4411 of default_pg"


def test_a_silent_rank_has_a_row_of_its_own(tmp_path: Path) -> None:
    grid = grid_of(tmp_path, *(watchdog_lines(rank) for rank in (0, 1, 3)))
    silent = next(row for row in grid.rows if row.name == "rank 2")
    assert set(silent.letters) == {" "}
    assert silent.says.startswith("silent")


def test_another_operation_under_one_number_is_marked(tmp_path: Path) -> None:
    grid = grid_of(tmp_path, watchdog_lines(0), watchdog_lines(1), watchdog_lines(2, op="BROADCAST"))
    assert "X" in next(row for row in grid.rows if row.name == "rank 2").letters


def test_at_most_thirty_columns_and_above_64_ranks_rows_by_kind(tmp_path: Path) -> None:
    grid = grid_of(tmp_path, *(watchdog_lines(rank, seq=4411) for rank in range(200) if rank != 77))
    assert len(grid.numbers) <= 30
    assert [row.name for row in grid.rows] == ["rank 77", "ranks 0-76, 78-199 (199)"]


def test_stacks_alone_have_no_columns_and_say_where_each_rank_is(tmp_path: Path) -> None:
    for number, text in enumerate([in_backward(41), stepping(42)]):
        (tmp_path / f"stack_rank_{number}.txt").write_text(text)
    grid = call_grid(Case(load_cell(tmp_path)), None)
    assert grid is not None
    assert grid.numbers == ()
    assert grid.rows[0].says.startswith("in reduce_scatter_tensor, within backward")


def report_of(folder: Path) -> RunReport:
    lines = (watchdog_lines(rank) for rank in (0, 1, 3))
    (folder / "job.log").write_text("".join(lines))
    return RunReport(
        directory=folder, name="job", verdict=judge_evidence(folder), collected=load_cell(folder)
    )


def test_markdown_has_it_as_a_compact_table(tmp_path: Path) -> None:
    text = render_markdown(report_of(tmp_path))
    assert "silent: nothing was heard of it" in text
    assert "rank 2 (guilty)" in text


def test_the_page_begins_with_it(tmp_path: Path) -> None:
    page = render_html(report_of(tmp_path))
    assert 'id="calls"' in page
    assert "silent: nothing was heard of it" in page
    assert page.index('id="calls"') < page.index("Evidence</h2>")
