# how: many
import nets
import torch


class Lookahead(torch.optim.Optimizer):
    def __init__(self, inner):
        self.inner, self.count = inner, 0
        super().__init__(inner.param_groups, {})

    def step(self, closure=None):
        self.count += 1
        return self.inner.step(closure)


class Plain(torch.optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, {"lr": 0.1})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.add_(p.grad, alpha=-group["lr"])
        return "stepped"


class NotCalledSuper(torch.optim.SGD):
    def __init__(self, params):
        torch.optim.Optimizer.__init__(
            self,
            params,
            {
                "lr": 0.1,
                "momentum": 0,
                "dampening": 0,
                "weight_decay": 0,
                "nesterov": False,
                "maximize": False,
                "foreach": None,
                "differentiable": False,
                "fused": None,
            },
        )


model = nets.Net()
for optimizer in (
    Lookahead(torch.optim.SGD(model.parameters(), 0.1)),
    Plain(model.parameters()),
    NotCalledSuper(model.parameters()),
):
    print(nets.train(model, 6, optimizer)[0], nets.digest(model), sorted(vars(optimizer))[:4])
