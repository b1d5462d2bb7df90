# how: rank
import os
import subprocess
import sys

os.environ.clear()
print(
    dict(os.environ),
    subprocess.run(
        [sys.executable, "-c", "import os; print(sorted(os.environ))"], capture_output=True, text=True, env={}
    ).stdout,
)
