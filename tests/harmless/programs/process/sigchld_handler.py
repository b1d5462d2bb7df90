# how: rank
import os
import signal
import time

ended = []
signal.signal(signal.SIGCHLD, lambda *_: ended.append(os.waitpid(-1, os.WNOHANG)[1]))
if os.fork() == 0:
    os._exit(4)
while not ended:
    time.sleep(0.01)
print([os.waitstatus_to_exitcode(s) for s in ended])
