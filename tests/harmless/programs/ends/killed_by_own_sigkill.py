# how: rank
# exits: 137
# alone
import os
import signal

print("now", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
