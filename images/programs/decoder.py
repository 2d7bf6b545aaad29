"""A decoder of 24 layers, as decoding programs use it. Its weights are random."""

import torch

LAYERS, WIDTH, HEADS, VOCABULARY, BATCH = 24, 1024, 16, 50257, 4
LENGTH_MAX = 512


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = torch.nn.LayerNorm(WIDTH), torch.nn.LayerNorm(WIDTH)
        self.qkv, self.out = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(WIDTH, WIDTH)
        self.up, self.down = torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.Linear(4 * WIDTH, WIDTH)
        shape = (BATCH, HEADS, LENGTH_MAX, WIDTH // HEADS)
        self.register_buffer("keys", torch.zeros(shape))
        self.register_buffer("values", torch.zeros(shape))

    def forward(self, x, at, mask):
        heads = lambda t: t.view(BATCH, 1, HEADS, WIDTH // HEADS).transpose(1, 2)
        q, k, v = self.qkv(self.norm1(x)).chunk(3, -1)
        self.keys.index_copy_(2, at, heads(k))
        self.values.index_copy_(2, at, heads(v))
        attend = torch.nn.functional.scaled_dot_product_attention
        y = attend(heads(q), self.keys, self.values, attn_mask=mask)
        x = x + self.out(y.transpose(1, 2).reshape(BATCH, 1, WIDTH))
        y = torch.nn.functional.gelu(self.up(self.norm2(x)))
        return x + self.down(y)


class Decoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.layers = torch.nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = torch.nn.LayerNorm(WIDTH)

    def forward(self, token, at):
        mask = (torch.arange(LENGTH_MAX, device=token.device) <= at).view(1, 1, 1, -1)
        x = self.embed(token)
        for layer in self.layers:
            x = layer(x, at, mask)
        return (self.norm(x) @ self.embed.weight.T).argmax(-1)
