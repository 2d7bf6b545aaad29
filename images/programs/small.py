"""Training of many small layers: some hundred kernels of a few microseconds in each step."""

import torch

import harness


def prepare():
    block = lambda: torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.GELU())
    net = torch.nn.Sequential(*[block() for _ in range(48)]).cuda().bfloat16()
    optimiser = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=True)
    x = torch.randn(64, 256, device="cuda", dtype=torch.bfloat16)

    def step():
        optimiser.zero_grad(set_to_none=True)
        net(x).square().mean().backward()
        optimiser.step()
        torch.cuda.synchronize()

    return step


harness.run(prepare)
