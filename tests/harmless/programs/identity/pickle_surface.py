# how: many
import copyreg
import pickle
import typing  # noqa: F401 - Python 3.12's registers two of its classes

import seen

seen.surface(pickle)
seen.surface(copyreg)
seen.say(sorted(f"{k.__module__}.{k.__qualname__}" for k in copyreg.dispatch_table))
