"""Decoding by a CUDA graph: one launch for each token, and a wait for it."""

import torch

import decoder
import harness


def prepare():
    net = decoder.Decoder().eval().cuda().half()
    token = torch.zeros(decoder.BATCH, 1, dtype=torch.long, device="cuda")
    at = torch.zeros(1, dtype=torch.long, device="cuda")

    def body():
        token.copy_(net(token, at))
        at.add_(1).remainder_(decoder.LENGTH_MAX)

    with torch.inference_mode():
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(3):
                body()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            body()

    def step():
        graph.replay()
        torch.cuda.synchronize()

    return step


harness.run(prepare)
