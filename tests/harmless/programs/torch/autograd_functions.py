# how: many
import nets
import torch


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * x * g


class InPlace(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.exp()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0]


model = nets.Net()
for _ in range(10):
    loss = InPlace.apply(Square.apply(model(torch.randn(4, 8))) * 0.01).sum()
    loss.backward()
print([nets.of(p.grad) for p in model.parameters()], loss.grad_fn, loss.item().hex())
