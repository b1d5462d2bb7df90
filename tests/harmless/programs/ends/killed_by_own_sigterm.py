# how: rank
# exits: 143
# slow
# alone
import os
import signal

print("now", flush=True)
os.kill(os.getpid(), signal.SIGTERM)
