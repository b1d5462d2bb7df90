# how: many
# slow
import nets
import torch

model = nets.Net()
try:
    print(nets.train(torch.compile(model), 3)[0], nets.digest(model))
except Exception as error:  # where there is no C++ compiler
    print(type(error).__name__)
