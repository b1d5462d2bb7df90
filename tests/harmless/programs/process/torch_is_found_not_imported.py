# how: rank
import importlib.util
import sys

spec = importlib.util.find_spec("torch")
print(spec.name, type(spec.loader).__name__, "torch" in sys.modules)
spec = importlib.util.find_spec("torch.nn") if False else None
import torch

print(torch.__spec__.name, type(torch.__loader__).__name__, vars(torch.__spec__.loader).keys())
