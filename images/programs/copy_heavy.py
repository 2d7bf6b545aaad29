"""Copies from pinned host memory all the time, with two small kernels behind each."""

import torch

import harness

FLOATS = 16 << 20


def prepare():
    pinned = [torch.randn(FLOATS).pin_memory() for _ in range(2)]
    device = [torch.empty(FLOATS, device="cuda") for _ in range(2)]
    total, side = torch.zeros(1, device="cuda"), torch.cuda.Stream()
    copied, used = ([torch.cuda.Event() for _ in range(2)] for _ in range(2))
    state = {"step": 0}

    def step():
        index = state["step"] % 2
        used[index].synchronize()
        with torch.cuda.stream(side):
            device[index].copy_(pinned[index], non_blocking=True)
            copied[index].record()
        torch.cuda.current_stream().wait_event(copied[index])
        total.add_(device[index][: 1 << 20].sum())
        used[index].record()
        state["step"] += 1

    return step


harness.run(prepare)
