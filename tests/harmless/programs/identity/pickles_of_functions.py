# how: rank
import builtins
import logging
import os
import pickle
import signal
import sys
import threading

import seen
import torch
import torch.distributed as dist

functions = (
    os.kill, os._exit, os.abort, os.killpg, os.fork, os.write, os.open, os.close, sys.exit, print, open, builtins.print,
    signal.raise_signal, signal.signal, signal.pthread_kill, threading.Thread.start, logging.Logger.isEnabledFor,
    torch.save, torch.load, torch.autograd.backward, torch.autograd.grad, torch.nn.Module.__call__,
    torch.nn.Module.forward, torch.optim.Optimizer.step, torch.optim.SGD.step, torch.utils.data.DataLoader,
    dist.all_reduce, dist.barrier, dist.init_process_group, dist.broadcast_object_list, dist.new_group, dist.send,
)  # fmt: skip
for function in functions:
    for protocol in (0, 2, 5):
        try:
            data = pickle.dumps(function, protocol)
            seen.say(function.__qualname__, protocol, pickle.loads(data) is function, seen.digest(data))
        except Exception as error:
            seen.say(function.__qualname__, protocol, type(error).__name__)
