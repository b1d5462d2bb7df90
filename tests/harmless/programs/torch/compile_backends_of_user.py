# how: many
# slow
import nets
import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.backends.registry import register_backend

graphs = []


def shape(graph):
    return [(node.op, str(node.target)) for node in graph.graph.nodes]


def dynamo(graph, inputs):
    graphs.append(("dynamo", shape(graph), len(inputs)))
    return graph.forward


def lowered(name):
    def compiler(graph, inputs):
        graphs.append((name, shape(graph), len(inputs)))
        return make_boxed_func(graph.forward)

    return compiler


@register_backend
def harmless_registered(graph, inputs):
    graphs.append(("registered", len(list(graph.graph.nodes))))
    return lambda *args: graph.forward(*args)


def refuses(graph, inputs):
    raise ValueError("no such operator")


backends = {
    "dynamo": dynamo,
    "aot": aot_autograd(fw_compiler=lowered("forward"), bw_compiler=lowered("backward")),
    "registered": "harmless_registered",
    "refuses": refuses,
}
for name, backend in backends.items():
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = nets.Net()
    _, optimizer = nets.train(model, 3)
    compiled = torch.compile(model, backend=backend)
    try:
        print(name, nets.train(compiled, 30, optimizer, x=torch.ones(4, 8))[0])
        print(name, nets.train(compiled, 3, optimizer, x=torch.ones(5, 8))[0], nets.digest(model))
    except Exception as error:
        print(name, type(error).__name__, str(error).splitlines()[0])
    try:
        torch.compile(model.forward, backend=backend, dynamic=True)(torch.ones(3, 8)).sum().backward()
    except Exception as error:
        print(name, type(error).__name__)
    print(*graphs, sep="\n")
    graphs.clear()
torch._dynamo.reset()
explained = torch._dynamo.explain(nets.Net())(torch.ones(2, 8))
print(explained.graph_count, explained.graph_break_count, explained.op_count)


@torch.compiler.disable(recursive=False)
def step(model, x):
    return model(x)


@torch.compile(backend=dynamo)
def whole(model, x):
    y = model(x)
    torch._dynamo.graph_break()
    return step(model, y).sum()


model = nets.Net()
for _ in range(3):
    whole(model, torch.ones(2, 8)).backward()
print(len(graphs), [len(g[1]) for g in graphs])
