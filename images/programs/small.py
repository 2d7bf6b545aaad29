"""Training of many small layers: some hundred kernels of a few microseconds in each step."""

import torch

import harness
import training


def prepare():
    block = lambda: torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.GELU())
    net = torch.nn.Sequential(*[block() for _ in range(48)]).cuda().bfloat16()
    train = training.trainer(net)
    x = torch.randn(64, 256, device="cuda", dtype=torch.bfloat16)

    return lambda: train(x)


harness.run(prepare)
