# how: many
import sys
import threading

import nets
import seen

lines = set()


def tracer(frame, event, arg):
    if not frame.f_code.co_filename.endswith("nets.py"):
        return None
    lines.add(frame.f_lineno)
    return tracer


threading.settrace(tracer)
sys.settrace(tracer)
nets.train(nets.Net(), 2)
sys.settrace(None)
threading.settrace(None)
seen.say(sorted(lines))
