# how: many
import sys

import nets
import seen

model, calls = nets.Net(), []


def tracer(frame, event, arg):
    if event == "call" and frame.f_code.co_filename.endswith(("nets.py", "module.py", "linear.py", "sgd.py")):
        calls.append(f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_code.co_name}")
    return None


nets.train(model)
sys.settrace(tracer)
nets.train(model, 1)
sys.settrace(None)
seen.say(len(calls), seen.digest(calls))
for name in sorted(set(calls)):
    seen.say(name, calls.count(name))
