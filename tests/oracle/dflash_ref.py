"""dflash_ref.py - a DFlash drafter in PyTorch, written from the published formulas (doc/formats.md, doc/speculation.md), float64.

Reads a folder in z-lab's layout (config.json, model.safetensors). One call drafts one block from scratch: features of the whole
context in, logits of every row of the block out; no cache, no batching, one line per formula."""
import json
import pathlib
import torch
from safetensors.torch import load_file


class Drafter:
    def __init__(self, folder):
        folder = pathlib.Path(folder)
        self.c = c = json.loads((folder / "config.json").read_text())
        self.w = {k: v.double() for k, v in load_file(str(folder / "model.safetensors")).items()}
        special = c["dflash_config"]
        self.taps, self.mask_id = special["target_layer_ids"], special["mask_token_id"]
        self.block = c.get("block_size") or special["block_size"]
        self.theta = c["rope_theta"] if "rope_theta" in c else c["rope_parameters"]["rope_theta"]
        self.eps, self.width = c["rms_norm_eps"], c["head_dim"]
        self.group, self.top_k = special.get("conv_group_size"), special.get("selector_top_k")

    def norm(self, x, name):
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + self.eps) * self.w[name]

    def linear(self, x, name):
        return x @ self.w[name].T

    def rope(self, x, position):
        """x [rows, heads, width], split halves."""
        half = self.width // 2
        angle = position.double()[:, None] * self.theta ** (-torch.arange(half, dtype=torch.float64) / half)
        cos, sin = angle.cos()[:, None], angle.sin()[:, None]
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)

    def visible(self, layer, q_pos, k_pos):
        sliding = self.c["layer_types"][layer] == "sliding_attention"
        causal = self.c.get("is_causal", sliding)
        d = q_pos[:, None] - k_pos[None]
        see = torch.ones_like(d, dtype=torch.bool)
        if sliding:
            see &= (d < self.c["sliding_window"]) & (-d < self.c["sliding_window"])
        return see & (d >= 0) if causal else see

    def attention(self, x, context, layer, start):
        p = f"layers.{layer}.self_attn."
        n, b, w = len(context), len(x), self.width
        k_pos = torch.arange(n + b) + (start - n)
        q_pos = k_pos[n:]
        both = torch.cat([context, x])
        q = self.rope(self.norm(self.linear(x, p + "q_proj.weight").view(b, -1, w), p + "q_norm.weight"), q_pos)
        k = self.rope(self.norm(self.linear(both, p + "k_proj.weight").view(n + b, -1, w), p + "k_norm.weight"), k_pos)
        v = self.linear(both, p + "v_proj.weight").view(n + b, -1, w)
        k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
        score = torch.einsum("qhw,khw->hqk", q, k) * w ** -0.5
        score = score.masked_fill(~self.visible(layer, q_pos, k_pos), float("-inf"))
        return self.linear(torch.einsum("hqk,khw->qhw", score.softmax(-1), v).reshape(b, -1), p + "o_proj.weight")

    def mlp(self, x, layer):
        p = f"layers.{layer}.mlp."
        return self.linear(torch.nn.functional.silu(self.linear(x, p + "gate_proj.weight")) * self.linear(x, p + "up_proj.weight"),
                           p + "down_proj.weight")

    def conv(self, x, z, side, name):
        """Row i: sum over taps t of (base + delta of row i) * row i - t; a channel's delta is that of its group."""
        base = self.w[name + ".base_kernel"]                                   # [side, tap, channel]
        b, h = z.shape
        delta = self.linear(x, name + ".kernel_projection.weight").view(b, 2, 2, h // self.group)
        delta = delta.repeat_interleave(self.group, -1)
        before = torch.cat([torch.zeros(1, h, dtype=z.dtype), z[:-1]])
        return (base[side, 0] + delta[:, side, 0]) * z + (base[side, 1] + delta[:, side, 1]) * before

    def sublayer(self, h, norm, conv, f):
        x = self.norm(h, norm)
        if conv + ".base_kernel" not in self.w:
            return h + f(x)
        return h + self.conv(x, f(self.conv(x, x, 0, conv)), 1, conv)

    @torch.no_grad()
    def draft(self, features, anchor, embed, head):
        """features [n, taps * hidden] of positions 0..n-1; the anchor is at position n. Returns logits [block, vocab]
        and the state o [block, hidden] that the selector reads."""
        start = len(features)
        context = self.norm(self.linear(features.double(), "fc.weight"), "hidden_norm.weight")
        h = embed.double()[[anchor] + [self.mask_id] * (self.block - 1)]
        for i in range(self.c["num_hidden_layers"]):
            p = f"layers.{i}."
            h = self.sublayer(h, p + "input_layernorm.weight", p + "attention_conv",
                              lambda x: self.attention(x, context, i, start))
            h = self.sublayer(h, p + "post_attention_layernorm.weight", p + "mlp_conv", lambda x: self.mlp(x, i))
        o = self.norm(h, "norm.weight")
        return o @ head.double().T, o

    def pairs(self, logits, o, anchor):
        """DFlash2's selector: for each row from 1, (candidates, previous tokens, score[previous][candidate])."""
        before, found = [anchor], []
        for t in range(1, self.block):
            unary, cand = logits[t].topk(self.top_k)
            g = self.linear(o[t], "candidate_selector.hidden_projection.weight")
            a = self.w["candidate_selector.predecessor_codebook"][before]
            b = self.w["candidate_selector.successor_codebook"][cand]
            found.append((cand.tolist(), list(before), (unary + (a * g) @ b.T).tolist()))
            before = cand.tolist()
        return found
