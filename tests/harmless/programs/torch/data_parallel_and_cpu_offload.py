# how: many
import nets
import torch

model = torch.nn.DataParallel(nets.Net())
print(nets.train(model, 3)[0], type(model.module).__name__)
