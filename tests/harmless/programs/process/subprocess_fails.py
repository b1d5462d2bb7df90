# how: rank
# exits: 1
import subprocess
import sys

done = subprocess.run([sys.executable, "-c", "import sys; sys.exit(11)"])
print(done.returncode)
subprocess.run([sys.executable, "-c", "1/0"], check=True)
