# how: rank
# exits: 141
import os
import signal

signal.signal(signal.SIGPIPE, signal.SIG_DFL)
reading, writing = os.pipe()
os.close(reading)
os.write(writing, b"x")
