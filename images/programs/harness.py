"""Runs the steps of a program when the bench wants them, and measures their rate.

Orders come as lines on stdin: begin, go, count, rest, stop. Answers are lines of JSON on stdout:
{"state": "loaded"}, {"state": "ready", ...} once warm, and after "rest" the window since "count":
steps, rate a second, and latencies in ms (with RATE: from the moment a request was due).
"""

import json
import os
import sys
import threading
import time

import torch

WINDOW_S = 1.0
AGREE = 0.03
WARM_MAX_S = 60


class Orders:
    """The last order that came; the reader is a thread of its own."""

    def __init__(self):
        self.last, self.changed = "", threading.Condition()
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in sys.stdin:
            self.give(line.strip())
        self.give("stop")

    def give(self, order):
        with self.changed:
            self.last = order
            self.changed.notify_all()

    def wait(self, *wanted):
        with self.changed:
            self.changed.wait_for(lambda: self.last in wanted)
            return self.last


def say(**fields):
    print(json.dumps(fields), flush=True)


def percentile(values, part):
    values = sorted(values)
    return values[min(len(values) - 1, int(part * len(values)))] if values else None


def summary(due, ends):
    """Rate and latencies of steps that ended at these times, in ns."""
    if len(ends) < 2:
        return {"steps": len(ends), "rate": 0.0}
    starts = due if due else ends[:-1]
    took = [(end - start) / 1e6 for start, end in zip(starts, ends if due else ends[1:])]
    return {
        "steps": len(ends),
        "rate": (len(ends) - 1) / ((ends[-1] - ends[0]) / 1e9),
        "p50_ms": percentile(took, 0.5),
        "p99_ms": percentile(took, 0.99),
        "max_ms": max(took),
        "halves": [sum(e <= (ends[0] + ends[-1]) // 2 for e in ends), len(ends)],
        "least_2s": least(ends, 2_000_000_000),
    }


def least(ends, length):
    """The least rate of any window of this length, in steps a second."""
    if ends[-1] - ends[0] < length:
        return None
    first, lowest = 0, None
    for last, end in enumerate(ends):
        while end - ends[first] > length:
            first += 1
        if end - ends[0] >= length:
            lowest = min(lowest if lowest is not None else last - first, last - first)
    return None if lowest is None else lowest / (length / 1e9)


def warm(step, least_steps):
    """Steps until the rates of two windows in a row agree."""
    begun, rates, steps = time.monotonic(), [], 0
    while time.monotonic() - begun < WARM_MAX_S:
        start, count = time.monotonic(), 0
        while time.monotonic() - start < WINDOW_S:
            step()
            count += 1
        steps += count
        rates.append(count / (time.monotonic() - start))
        if steps >= least_steps and len(rates) > 1 and abs(rates[-1] / rates[-2] - 1) < AGREE:
            break
    return {"rate": rates[-1], "steps": steps, "seconds": round(time.monotonic() - begun, 1)}


def run(prepare, least_steps=0, requests_a_second=0):
    """`prepare` returns the function that does one step and waits for its end."""
    orders = Orders()
    torch.manual_seed(0)
    say(state="loaded", pid=os.getpid())
    if orders.wait("begin", "stop") == "stop":
        return
    step = prepare()
    say(state="ready", **warm(step, least_steps))
    while True:
        if orders.wait("go", "stop") == "stop":
            return
        due, ends, origin = [], [], time.time_ns()
        counted = orders.last
        while orders.last in ("go", "count"):
            if orders.last != counted:
                counted, due, ends, origin = orders.last, [], [], time.time_ns()
            if requests_a_second:
                at = origin + int(len(ends) * 1e9 / requests_a_second)
                time.sleep(max(0, at - time.time_ns()) / 1e9)
                due.append(at)
            step()
            ends.append(time.time_ns())
        say(state="rested", **summary(due, ends))
