# how: rank
# by-design: frames
import signal

signal.signal(signal.SIGUSR1, lambda number, frame: print("came", number, frame.f_code.co_name))
signal.raise_signal(signal.SIGUSR1)
print("after")
