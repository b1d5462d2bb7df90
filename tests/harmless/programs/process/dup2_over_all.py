# how: rank
import os

target = os.open("mine", os.O_WRONLY | os.O_CREAT)
for number in range(3, 64):
    if number != target:
        os.dup2(target, number)
import torch

torch.nn.Linear(2, 2)(torch.ones(2)).sum().backward()
os.write(target, b"only this\n")
print(open("mine").read())
