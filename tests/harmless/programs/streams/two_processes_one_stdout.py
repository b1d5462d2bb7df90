# how: rank
# alone
# unordered
import os

for n in range(50):
    print("parent", n, flush=True)
pid = os.fork()
for n in range(50):
    print("child" if pid == 0 else "after", n, flush=True)
if pid == 0:
    os._exit(0)
os.waitpid(pid, 0)
