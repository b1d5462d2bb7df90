# how: rank
# exits: 1
import sys


def mine(kind, error, trace):
    frames = []
    while trace:
        frames.append(trace.tb_frame.f_code.co_name)
        trace = trace.tb_next
    print("mine", kind.__name__, error, frames, flush=True)


sys.excepthook = mine
raise KeyError("x")
