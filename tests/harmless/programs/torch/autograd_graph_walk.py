# how: many
import nets
import torch


def walk(node, depth=0):
    if node is None:
        return []
    return [(depth, node.name(), sorted(node.metadata))] + [
        x for n, _ in node.next_functions for x in walk(n, depth + 1)
    ]


model = nets.Net()
nets.train(model, 80)
out = model(torch.ones(2, 8))
print(walk(out.grad_fn))
print(
    len(out.grad_fn._raw_saved_mat1.data.shape),
    out.grad_fn._sequence_nr() - model(torch.ones(2, 8)).grad_fn._sequence_nr(),
)
