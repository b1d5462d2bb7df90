# how: many
import nets
import torch

model = nets.Net()
nets.train(model, 80)
dynamic = {"x": {0: torch.export.Dim("batch")}}
program = torch.export.export(model, (torch.ones(3, 8),), dynamic_shapes=dynamic, strict=False)
print(
    program.graph,
    [
        n.meta.get("nn_module_stack") and [v[0] for v in n.meta["nn_module_stack"].values()]
        for n in program.graph.nodes
    ],
)
torch.export.save(program, "p.pt2")
print(nets.of(torch.export.load("p.pt2").module()(torch.ones(3, 8))) == nets.of(model(torch.ones(3, 8))))
