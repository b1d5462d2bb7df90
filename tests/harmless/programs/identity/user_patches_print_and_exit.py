# how: many
# by-design: wrappers
import builtins
import os
import sys

import seen

calls = []
for owner, name in ((builtins, "print"), (os, "kill"), (sys, "exit"), (os, "_exit")):
    before = getattr(owner, name)
    setattr(owner, name, lambda *args, _name=name, **kwargs: calls.append(_name))
    getattr(owner, name)(1)
    setattr(owner, name, before)
    seen.say(name, getattr(owner, name) is before, type(before).__name__)
seen.say(calls)
print("printed")
