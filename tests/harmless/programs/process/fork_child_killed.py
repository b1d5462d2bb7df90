# how: rank
import os
import signal

pid = os.fork()
if pid == 0:
    os.kill(os.getpid(), signal.SIGKILL)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
