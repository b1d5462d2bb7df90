# how: rank
import importlib

import torch
import torch.utils.data.dataloader as module

again = importlib.reload(module)
print(again is module, torch.utils.data.DataLoader is again.DataLoader)
