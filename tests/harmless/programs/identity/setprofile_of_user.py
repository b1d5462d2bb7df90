# how: many
import sys

import nets
import seen

model, calls = nets.Net(), []


def profiler(frame, event, arg):
    if event in ("call", "c_call") and frame.f_code.co_filename.endswith(
        ("nets.py", "module.py", "linear.py", "sgd.py")
    ):
        calls.append(arg.__name__ if event == "c_call" else frame.f_code.co_name)


nets.train(model)
sys.setprofile(profiler)
nets.train(model, 1)
sys.setprofile(None)
seen.say(len(calls), seen.digest(sorted(calls)))
