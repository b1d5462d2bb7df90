# how: rank
import importlib.util
import sys

spec = importlib.util.find_spec("torch")
loader = importlib.util.LazyLoader(spec.loader)
spec.loader = loader
torch = importlib.util.module_from_spec(spec)
sys.modules["torch"] = torch
loader.exec_module(torch)
print(type(torch).__name__)
try:
    print(torch.ones(1), type(torch).__name__)
    import nets

    print(nets.train(nets.Net())[0])
except Exception as error:
    print(type(error).__name__, str(error)[:80])
