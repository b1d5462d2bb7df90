# how: rank
import os
import signal

signal.signal(signal.SIGCHLD, signal.SIG_IGN)
pid = os.fork()
if pid == 0:
    os._exit(4)
try:
    os.waitpid(pid, 0)
except ChildProcessError:
    print("reaped by the kernel")
