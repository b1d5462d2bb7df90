# how: rank
# exits: 3
import resource
import signal

signal.signal(signal.SIGXCPU, lambda *_: (print("out of time"), exit(3)))
used = resource.getrusage(resource.RUSAGE_SELF).ru_utime
resource.setrlimit(resource.RLIMIT_CPU, (int(used) + 1, 100))
while True:
    pass
