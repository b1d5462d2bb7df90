# how: many
import nets
import torch

table = torch.nn.Embedding(10, 4, sparse=True)
optimizer = torch.optim.SparseAdam(table.parameters())
for _ in range(4):
    table(torch.tensor([1, 2])).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
print(nets.digest(table))
nested = torch.nested.nested_tensor(
    [torch.ones(2, 4), torch.ones(3, 4)], layout=torch.jagged, requires_grad=True
)
torch.nn.Linear(4, 2)(nested).values().sum().backward()
print(nested.grad.shape[0])
