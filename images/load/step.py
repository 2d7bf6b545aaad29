"""Trains a small network for some seconds and prints the median length of a step: step.py SECONDS.

Ends with 77 where PyTorch or a GPU is missing.
"""
import json
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

seconds = float(sys.argv[1])
torch.manual_seed(1)
width = 2048
model = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.GELU()) for _ in range(8)]).cuda()
optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4)
batch = torch.randn(1024, width, device="cuda")


def step():
    optimiser.zero_grad(set_to_none=True)
    model(batch).square().mean().backward()
    optimiser.step()
    torch.cuda.synchronize()


for _ in range(50):
    step()
lengths = []
begin = time.perf_counter()
while time.perf_counter() - begin < seconds:
    started = time.perf_counter()
    step()
    lengths.append(time.perf_counter() - started)
print(json.dumps({"steps": len(lengths), "step_us_p50": 1e6 * statistics.median(lengths)}))
