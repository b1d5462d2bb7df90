# how: many
import nets
import torch

model = nets.Net()
nets.train(model, 80)
scripted = torch.jit.script(model)
print(scripted.graph, torch.equal(scripted(torch.ones(2, 8)), model(torch.ones(2, 8))))
torch.jit.save(scripted, "s.pt")
print(nets.digest(torch.jit.load("s.pt")) == nets.digest(model), scripted.code)
