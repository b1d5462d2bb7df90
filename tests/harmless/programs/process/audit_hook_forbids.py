# how: rank
# exits: 1
import os
import sys

import nets
import torch

home = os.getcwd()
model = nets.Net()
nets.train(model, 3)
allowed = (home, sys.prefix, sys.base_prefix, "/proc", "/dev", "/sys")


def guard(event, args):
    # A sandbox: what is not its own business may not be opened.
    if (
        event == "open"
        and isinstance(args[0], str)
        and not args[0].startswith(allowed)
        and args[0].startswith("/")
    ):
        raise RuntimeError(f"not allowed: {event}")
    if event in ("os.rename", "os.remove", "os.mkdir") and not str(args[0]).startswith(allowed):
        raise RuntimeError(f"not allowed: {event}")


sys.addaudithook(guard)
print(nets.train(model, 70)[0])
for n in range(3):
    torch.save(model.state_dict(), f"x{n}.pt")
    kind = type(f"Kind{n}", (torch.nn.Identity,), {})
    torch.nn.Sequential(kind(), nets.Net())(torch.ones(8)).sum().backward()
    try:
        torch.load("nowhere.pt")
    except FileNotFoundError as error:
        print("not there", error.errno)
print(nets.digest(model))
raise KeyError("end")
