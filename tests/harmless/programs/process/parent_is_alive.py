# how: rank
import os

print(os.getppid() > 1, len(os.listdir(f"/proc/{os.getpid()}/task")))
