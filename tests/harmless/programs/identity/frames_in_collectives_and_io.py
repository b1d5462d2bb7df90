# how: many
# by-design: frames
import sys

import seen
import torch


class Looks:
    def __reduce__(self):
        frame, names = sys._getframe(1), []
        while frame and frame.f_code.co_name != "<module>":
            names.append(f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_code.co_name}")
            frame = frame.f_back
        seen.say(names)
        return (dict, ())


torch.save({"x": Looks()}, "x.pt")
