# how: rank
import os
import signal

signal.signal(signal.SIGSEGV, lambda *_: print("caught", flush=True))
os.kill(os.getpid(), signal.SIGSEGV)
print("after")
