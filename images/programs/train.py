"""Dense training: six layers of 4096 by 4096, a wait at the end of each step."""

import torch

import harness


def prepare():
    block = lambda: torch.nn.Sequential(torch.nn.Linear(4096, 4096), torch.nn.GELU())
    net = torch.nn.Sequential(*[block() for _ in range(6)]).cuda().bfloat16()
    optimiser = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=True)
    x = torch.randn(2048, 4096, device="cuda", dtype=torch.bfloat16)

    def step():
        optimiser.zero_grad(set_to_none=True)
        net(x).square().mean().backward()
        optimiser.step()
        torch.cuda.synchronize()

    return step


harness.run(prepare)
