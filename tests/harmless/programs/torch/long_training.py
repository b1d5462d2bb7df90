# how: many
import nets
import torch

torch.manual_seed(7)
model = torch.nn.Sequential(*[nets.Net() for _ in range(4)], torch.nn.Dropout(0.1))
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
print(nets.train(model, 600, optimizer)[0], nets.digest(model), nets.draws(), len(optimizer.state))
