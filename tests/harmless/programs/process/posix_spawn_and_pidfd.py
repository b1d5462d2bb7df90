# how: rank
import os
import select

pid = os.posix_spawn("/bin/sh", ["sh", "-c", "exit 6"], os.environ)
fd = os.pidfd_open(pid)
select.select([fd], [], [])
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
