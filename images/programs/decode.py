"""Decoding, launched kernel by kernel: a token in each step, and a wait for it."""

import torch

import decoder
import harness


def prepare():
    net = decoder.Decoder().eval().cuda().half()
    state = {"token": torch.zeros(decoder.BATCH, 1, dtype=torch.long, device="cuda"), "at": 0}

    def step():
        with torch.inference_mode():
            at = torch.tensor([state["at"] % decoder.LENGTH_MAX], device="cuda")
            state["token"] = net(state["token"], at)
            state["at"] += 1
            torch.cuda.synchronize()

    return step


harness.run(prepare, least_steps=450)
