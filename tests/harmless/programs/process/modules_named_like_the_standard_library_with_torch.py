# how: shell
# line: printf 'import sys\nbefore = set(sys.modules)\nimport torch\nsys.modules\n' > look.py; for n in resource statistics shlex mmap fcntl profile queue code calendar cmd; do echo "print('the user own', __name__)" > $n.py; done; RANK=0 WORLD_SIZE=1 python train.py; rm -r *.py __pycache__
import sys

print(
    sorted(
        m for m in ("resource", "statistics", "shlex", "mmap", "fcntl") if hasattr(sys.modules.get(m), "own")
    )
)
import nets

model = nets.Net()
print(nets.train(model, 40)[0], nets.digest(model))
import calendar
import cmd
import code
import fcntl
import mmap
import profile
import queue
import resource
import shlex
import statistics
