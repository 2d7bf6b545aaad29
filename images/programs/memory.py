"""Kernels that are bound by the GPU's memory, and a wait after each 20 of them."""

import torch

import harness

FLOATS = 128 << 20


def prepare():
    a, b = (torch.randn(FLOATS, device="cuda") for _ in range(2))

    def step():
        for _ in range(20):
            torch.add(a, b, out=a)
        a.zero_()
        torch.cuda.synchronize()

    return step


harness.run(prepare)
