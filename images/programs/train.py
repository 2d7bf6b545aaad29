"""Dense training: six layers of 4096 by 4096, a wait at the end of each step."""

import torch

import harness
import training


def prepare():
    block = lambda: torch.nn.Sequential(torch.nn.Linear(4096, 4096), torch.nn.GELU())
    net = torch.nn.Sequential(*[block() for _ in range(6)]).cuda().bfloat16()
    train = training.trainer(net)
    x = torch.randn(2048, 4096, device="cuda", dtype=torch.bfloat16)

    return lambda: train(x)


harness.run(prepare)
