# how: rank
import sys

sys.modules["torch"] = None
try:
    import torch
except ImportError as error:
    print(error)
del sys.modules["torch"]
import torch

print(torch.ones(1))
