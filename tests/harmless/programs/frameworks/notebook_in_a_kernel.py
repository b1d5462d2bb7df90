# how: python
# needs: nbclient ipykernel
# slow
import nbformat
from nbclient import NotebookClient

book = nbformat.v4.new_notebook()
for text in (
    "1 + 1",
    "print('printed')",
    "import torch; torch.nn.Linear(2, 2)(torch.ones(2)).shape",
    "import sys; (sys.stdout is sys.__stdout__, type(sys.stdout).__name__)",
    "1 / 0",
):
    book.cells.append(nbformat.v4.new_code_cell(text))
NotebookClient(book, allow_errors=True, timeout=100).execute()
for cell in book.cells:
    print([o.get("text") or o.get("data", {}).get("text/plain") or o.get("evalue") for o in cell.outputs])
