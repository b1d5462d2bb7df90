# how: many
# by-design: wrappers
import os
import sys

import seen
import torch


class Uses:
    leave, kill, show, save = os._exit, os.kill, print, torch.save


for name in ("leave", "kill", "show"):
    seen.say(name, type(getattr(Uses(), name)).__name__)
Uses().show("printed")
Uses().kill(os.getpid(), 0)
seen.say(type(Uses.__dict__["save"]).__name__, callable(sys.exit))
