# how: rank
import os

pid = os.fork()
if pid == 0:
    raise ValueError("in the child")
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
