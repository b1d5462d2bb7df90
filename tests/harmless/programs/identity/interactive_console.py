# how: many
import code
import contextlib
import io

import seen

caught = io.StringIO()
console = code.InteractiveConsole({"x": 1})
with contextlib.redirect_stdout(caught), contextlib.redirect_stderr(caught):
    for line in (
        "x + 1",
        "print('p')",
        "1 / 0",
        "import torch",
        "torch.nn.Linear(2, 2)(torch.ones(2)).shape",
        "def f():",
        "  return 3",
        "",
        "f()",
        "nowhere",
    ):
        console.push(line)
seen.say(caught.getvalue())
