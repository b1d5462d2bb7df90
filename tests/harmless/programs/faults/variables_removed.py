# how: rank
import os
import subprocess
import sys

for name in [n for n in os.environ if n.startswith("NSADIAG_")]:
    del os.environ[name]
import nets

print(nets.train(nets.Net(), 5)[0])
print(subprocess.run([sys.executable, "-c", "print('child')"], capture_output=True, text=True))
