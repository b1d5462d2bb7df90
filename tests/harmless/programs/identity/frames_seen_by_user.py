# how: many
# by-design: frames
import sys

import nets
import seen
from torch import nn


def above():
    frame, names = sys._getframe(2), []
    while frame and frame.f_code.co_name != "<module>":
        names.append(f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_code.co_name}")
        frame = frame.f_back
    return names


class Looks(nn.Module):
    def forward(self, x):
        seen.say("forward", above())
        return x


nets.train(nets.Net())
Looks()(0)
nn.Sequential(Looks())(0)
model = nets.Net()
model.register_forward_hook(lambda *_: seen.say("hook", above()))
model.a.weight.register_hook(lambda g: seen.say("tensor hook", above()))
nets.train(model, 1)
