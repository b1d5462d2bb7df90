# how: rank
# alone
import os
import signal

print("now", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
