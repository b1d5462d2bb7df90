"""`nsadiag.watch` in a real kernel: the verdict in its own cell, nothing in others, the page as a cell's output."""

from __future__ import annotations

from pathlib import Path

import pytest

CELLS = (
    """
import torch, nsadiag
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
with nsadiag.watch(model) as run:
    for _ in range(12):
        with nsadiag.phase("train"):
            model(torch.randn(2, 4)).sum().backward()
            optimizer.step()
""",
    "print(run.parent.name, run.name)\nprint(run.verdict.summary)",
    "nsadiag.load(run)",
    "print(nsadiag.load(run))",
    # As somebody does who runs a cell once more.
    """
with nsadiag.watch(model) as run:
    model(torch.randn(2, 4)).sum().backward()
""",
    "print(run.verdict.outcome)\nprint(*run.glob('ranks/*/gaps*'))",
    "1 + 1",
)


def test_a_watch_in_a_notebook_is_quiet_and_its_verdict_comes_where_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    monkeypatch.chdir(tmp_path)
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3").execute()
    watched, asked, shown, text, again, outcome, plain = (cell.outputs for cell in notebook.cells)
    assert watched == []
    printed = "".join(each.text for each in asked)
    assert printed.startswith("artifacts ") and "-notebook-" in printed
    assert "Completed: 12 steps on 1 rank" in printed
    assert "<iframe" in shown[0].data["text/html"]
    assert [each.output_type for each in text] == ["stream"] and "\x1b" not in text[0].text
    assert again == []
    assert [each.text for each in outcome] == ["healthy\n\n"]
    assert [each.data["text/plain"] for each in plain] == ["2"]
