# how: rank
import os
import signal

got = []
for number in range(signal.SIGRTMIN, signal.SIGRTMAX + 1):
    signal.signal(number, lambda n, f: got.append(n))
    os.kill(os.getpid(), number)
print(len(got), got == sorted(got))
