"""Trains a network whose weights, gradients and optimiser take GIB gibibytes of GPU memory, all of them touched by every step.

    train.py GIB STEPS SEED [FOLDER]

Deterministic: two runs with the same arguments print the same losses and sums, bit for bit. With FOLDER it builds its network when there is
FOLDER/build-SEED, makes FOLDER/ready-SEED when it could begin, and begins when there is FOLDER/go-SEED. Prints one JSON object. Ends with 77
where PyTorch or a GPU is missing. `turnstile bench train` runs it.
"""
import json
import os
import sys
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
try:
    import torch
except ImportError:
    print("PyTorch is not installed", file=sys.stderr)
    sys.exit(77)
if not torch.cuda.is_available():
    print("PyTorch finds no GPU", file=sys.stderr)
    sys.exit(77)

gib, steps, seed = (int(word) for word in sys.argv[1:4])
folder = sys.argv[4] if len(sys.argv) > 4 else None


def wait_for(what):
    while folder and not os.path.exists(os.path.join(folder, f"{what}-{seed}")):
        time.sleep(0.01)


wait_for("build")
WIDTH, BATCH = 8192, 512
# A layer's weights, their gradients and the two moments of AdamW take 1 GiB; activations about 2.
layers = max(gib - 2, 1)

torch.use_deterministic_algorithms(True)
torch.utils.deterministic.fill_uninitialized_memory = False
torch.backends.cuda.matmul.allow_tf32 = True
torch.manual_seed(seed)
weights = [torch.nn.Parameter(torch.randn(WIDTH, WIDTH, device="cuda") * (0.5 / WIDTH**0.5)) for _ in range(layers)]
optimiser = torch.optim.AdamW(weights, lr=1e-4, fused=True)
batches = [torch.randn(BATCH, WIDTH).pin_memory() for _ in range(4)]


def step(number):
    batch = batches[number % len(batches)].cuda(non_blocking=True)
    optimiser.zero_grad(set_to_none=True)
    x = batch
    for weight in weights:
        x = x + 0.1 * torch.nn.functional.gelu(torch.nn.functional.linear(x, weight))
    loss = (x - batch.roll(1, 1)).square().mean()
    loss.backward()
    optimiser.step()
    return loss.detach()


losses = [step(number) for number in range(2)]
torch.cuda.synchronize()
if folder:
    open(os.path.join(folder, f"ready-{seed}"), "w").close()
wait_for("go")
begin = time.time()
for number in range(2, steps):
    losses.append(step(number))
    if number % 10 == 0:
        torch.cuda.synchronize()
torch.cuda.synchronize()
end = time.time()
total = torch.zeros((), dtype=torch.int64, device="cuda")
for weight in weights:
    total = total * 31 + weight.detach().view(torch.int32).sum(dtype=torch.int64)
print(json.dumps({
    "begin": begin,
    "end": end,
    "step_ms": 1e3 * (end - begin) / (steps - 2),
    "allocated_gib": torch.cuda.max_memory_reserved() / 2**30,
    "losses": [float(loss).hex() for loss in losses],
    "weights": int(total),
}), flush=True)
