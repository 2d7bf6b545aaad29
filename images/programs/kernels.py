"""Kernels of one length: kernels.py MICROSECONDS DEPTH [PAUSE_US].

Each does a fixed amount of work. A kernel that spins by the clock would go on to count while it is
preempted.

DEPTH launches are kept ahead; with a depth of 1 each is waited for.
"""

import collections
import sys
import time

import torch

import harness

LENGTH_US, DEPTH = int(sys.argv[1]), int(sys.argv[2])
PAUSE_US = int(sys.argv[3]) if len(sys.argv) > 3 else 0


def elements_for(length_us):
    """Elements of the kernel that takes this long. Its time is a line of their number."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def took_us(count):
        x = torch.rand(count, device="cuda") + 2
        out = torch.empty_like(x)
        for _ in range(5):
            begin.record()
            torch.special.zeta(x, x, out=out)
            end.record()
            torch.cuda.synchronize()
        return 1e3 * begin.elapsed_time(end)

    few, many = 1 << 22, 1 << 24
    slope = (took_us(many) - took_us(few)) / (many - few)
    return max(1 << 16, int(few + (length_us - took_us(few)) / slope))


def prepare():
    x = torch.rand(elements_for(LENGTH_US), device="cuda") + 2
    out, ahead = torch.empty_like(x), collections.deque()

    def step():
        torch.special.zeta(x, x, out=out)
        event = torch.cuda.Event()
        event.record()
        ahead.append(event)
        if len(ahead) >= DEPTH:
            ahead.popleft().synchronize()
        if PAUSE_US:
            until = time.perf_counter() + PAUSE_US / 1e6
            while time.perf_counter() < until:
                pass

    return step


harness.run(prepare)
