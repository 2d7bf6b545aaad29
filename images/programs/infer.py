"""Inference: a convolutional network of 53 layers, a batch of eight, 30 requests a second."""

import torch

import harness

STAGES = ((64, 256, 3, 1), (128, 512, 4, 2), (256, 1024, 6, 2), (512, 2048, 3, 2))


class Bottleneck(torch.nn.Module):
    def __init__(self, inner, into, out, stride):
        super().__init__()
        conv = lambda a, b, k, s=1: torch.nn.Sequential(
            torch.nn.Conv2d(a, b, k, s, k // 2, bias=False), torch.nn.BatchNorm2d(b)
        )
        self.a, self.b, self.c = conv(into, inner, 1), conv(inner, inner, 3, stride), conv(inner, out, 1)
        self.skip = conv(into, out, 1, stride) if into != out or stride != 1 else torch.nn.Identity()

    def forward(self, x):
        y = self.b(self.a(x).relu()).relu()
        return (self.c(y) + self.skip(x)).relu()


def network():
    head = [torch.nn.Conv2d(3, 64, 7, 2, 3, bias=False), torch.nn.BatchNorm2d(64), torch.nn.ReLU()]
    layers, into = [*head, torch.nn.MaxPool2d(3, 2, 1)], 64
    for inner, out, count, stride in STAGES:
        for index in range(count):
            layers.append(Bottleneck(inner, into, out, stride if index == 0 else 1))
            into = out
    pool = torch.nn.AdaptiveAvgPool2d(1)
    return torch.nn.Sequential(*layers, pool, torch.nn.Flatten(), torch.nn.Linear(into, 1000))


def prepare():
    torch.backends.cudnn.benchmark = False
    net = network().eval().cuda().half().to(memory_format=torch.channels_last)
    x = torch.randn(8, 3, 224, 224, device="cuda", dtype=torch.half)
    x = x.to(memory_format=torch.channels_last)

    def step():
        with torch.inference_mode():
            net(x)
            torch.cuda.synchronize()

    return step


harness.run(prepare, least_steps=100, requests_a_second=30)
