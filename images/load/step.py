"""Trains a small network, as many steps at a time as each line of the standard input says, and says how long a step took.

Says {"ready": {"pid": ...}} first, then a line {"block": {"median_ns": ..., "mean_ns": ...}} for each; ends when the input does. Ends with 77 where
PyTorch or a GPU is missing.
"""
import json
import os
import statistics
import sys
import time

try:
    import torch
except ImportError:
    print("PyTorch is not installed", file=sys.stderr)
    sys.exit(77)
if not torch.cuda.is_available():
    print("PyTorch finds no GPU", file=sys.stderr)
    sys.exit(77)

# Untimed steps before each block: they bring the context back to the engine and warm the caches.
LEAD = 1

torch.manual_seed(1)
width = 2048
model = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.GELU()) for _ in range(8)]).cuda()
optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4)
batch = torch.randn(4096, width, device="cuda")


def step():
    optimiser.zero_grad(set_to_none=True)
    model(batch).square().mean().backward()
    optimiser.step()
    torch.cuda.synchronize()


def say(what):
    print(json.dumps(what), flush=True)


for _ in range(50):
    step()
say({"ready": {"pid": os.getpid()}})
for line in sys.stdin:
    for _ in range(LEAD):
        step()
    moments = [time.perf_counter_ns()]
    for _ in range(int(line)):
        step()
        moments.append(time.perf_counter_ns())
    lengths = [end - begin for begin, end in zip(moments, moments[1:])]
    say({"block": {"median_ns": statistics.median(lengths), "mean_ns": statistics.fmean(lengths)}})
