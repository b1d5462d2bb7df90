# how: shell
# slow
# alone
# unordered
# line: RANK=0 WORLD_SIZE=1 python train.py & sleep 0.1; wait %1; echo $?
import os
import signal
import subprocess

child = subprocess.Popen(["bash", "-c", f"sleep 0.3; kill -CONT {os.getpid()}"])
os.kill(os.getpid(), signal.SIGSTOP)
print("continued", child.wait())
