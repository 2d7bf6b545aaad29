"""Training that waits for its data: the host prepares each batch before the GPU works."""

import torch

import harness
import training


def prepare():
    torch.set_num_threads(1)
    net = torch.nn.Sequential(*[torch.nn.Linear(4096, 4096) for _ in range(6)]).cuda().bfloat16()
    train = training.trainer(net)
    data = torch.randn(2048, 1024)

    def step():
        # About 9 ms of the host.
        for _ in range(2):
            batch = (data.sin() * 2.0).roll(1, 0)
        x = batch.to("cuda", dtype=torch.bfloat16).repeat(1, 4)
        train(x)

    return step


harness.run(prepare)
