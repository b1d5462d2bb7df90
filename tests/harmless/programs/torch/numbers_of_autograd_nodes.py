# how: many
import nets
import torch

model = nets.Net()
before = (torch.ones(1, requires_grad=True) * 2).grad_fn._sequence_nr()
nets.train(model, 80)
print((torch.ones(1, requires_grad=True) * 2).grad_fn._sequence_nr() - before)
