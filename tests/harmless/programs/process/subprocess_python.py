# how: rank
# slow
import subprocess
import sys

import nets

nets.train(nets.Net())
text = "import torch, os; torch.nn.Linear(2, 2)(torch.ones(2)).sum().backward(); print('child', os.environ['RANK'])"
done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)
print(done.stdout, done.stderr, done.returncode)
