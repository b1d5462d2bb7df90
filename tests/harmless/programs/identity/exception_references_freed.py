# how: many
import gc
import logging
import sys
import traceback
import weakref

import seen


class Held:
    pass


def fail():
    held = Held()
    refs.append(weakref.ref(held))
    raise ValueError(held and "x")


refs = []
gc.disable()
for speak in (
    print,
    logging.getLogger("quiet").debug,
    lambda e: traceback.format_exception(e),
    lambda e: None,
):
    try:
        fail()
    except ValueError as error:
        speak(error)
    seen.say([sys.getrefcount(r()) if r() is not None else None for r in refs])
gc.enable()
