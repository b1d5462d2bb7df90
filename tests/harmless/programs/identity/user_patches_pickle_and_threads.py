# how: many
import io
import pickle
import threading

import seen
import torch

calls = []
before = threading.Thread.start
threading.Thread.start = lambda self: calls.append(self.name[:6]) or before(self)
thread = threading.Thread(target=calls.append, args=("ran",))
thread.start()
thread.join()
threading.Thread.start = before


class Own(pickle.Pickler):
    def reducer_override(self, thing):
        calls.append(type(thing).__name__)
        return NotImplemented


Own(io.BytesIO()).dump({"a": torch.ones})
seen.say(
    calls, threading.Thread.start is before, isinstance(threading.Thread.__dict__["start"], type(lambda: 0))
)
