# how: many
import nets
import torch

model, x, calls = nets.Net(), torch.randn(8, 8), []
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4, line_search_fn="strong_wolfe")


def closure():
    calls.append(1)
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    return loss


print([optimizer.step(closure).item().hex() for _ in range(4)], len(calls), nets.digest(model))
sgd = torch.optim.SGD(model.parameters(), 0.1)
print(sgd.step(closure).item().hex(), sgd.step(closure=closure).item().hex(), sgd.step())
