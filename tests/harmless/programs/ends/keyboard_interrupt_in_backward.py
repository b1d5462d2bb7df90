# how: rank
# exits: 130
# alone
"""Somebody interrupts a training: it dies by SIGINT, and a shell around it sees 130."""

import os
import signal

import nets
import torch


class Interrupted(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        os.kill(os.getpid(), signal.SIGINT)
        return gradient * sum(range(1000))


model = nets.Net()
nets.train(model, 30)
Interrupted.apply(model(torch.ones(4, 8))).sum().backward()
