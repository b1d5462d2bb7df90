# how: many
import nets
import torch

model = nets.Net()
nets.train(model, 80)
program = torch.export.export(model, (torch.ones(2, 8),), strict=True)
print(program.graph, program.graph_signature.input_specs)
