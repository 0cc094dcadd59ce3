"""dflash_ref.py - a DFlash drafter in PyTorch, written from the published formulas (doc/formats.md, doc/speculation.md), float64.

Reads a folder in z-lab's layout or in the dialect of speculators (config.json, model.safetensors). One call drafts one block
from scratch: features of the whole context in, logits of every row of the block out; no cache, no batching, one line per
formula."""
import json
import pathlib
import torch
from safetensors.torch import load_file


def load(folder):
    """The tensors of a folder, with q, k and v apart."""
    w = load_file(str(folder / "model.safetensors"))
    for name in [n for n in w if "qkv_proj" in n]:
        whole = w.pop(name)
        q = w[name.replace("qkv", "o")].shape[1]
        kv = (len(whole) - q) // 2
        for part, x in zip("qkv", whole.split([q, kv, kv])):
            w[name.replace("qkv", part)] = x
    return w


class Drafter:
    def __init__(self, folder):
        folder = pathlib.Path(folder)
        c = json.loads((folder / "config.json").read_text())
        self.w = {k: v if k in ("d2t", "t2d") else v.double() for k, v in load(folder).items()}
        library = "transformer_layer_config" in c
        special = c if library else c["dflash_config"]
        # speculators count the inputs of layers
        self.taps = [i - 1 for i in c["aux_hidden_state_layer_ids"]] if library else special["target_layer_ids"]
        self.mask_id, self.block = special["mask_token_id"], c.get("block_size") or special.get("block_size")
        self.c = c = c["transformer_layer_config"] if library else c
        rope = c.get("rope_parameters", c)
        self.theta = rope.get("sliding_attention", rope)["rope_theta"]
        self.eps, self.width = c.get("rms_norm_eps", 1e-6), c["head_dim"]
        self.causal = c.get("is_causal", special.get("causal"))
        self.group, self.top_k = special.get("conv_group_size"), special.get("selector_top_k", 16)
        self.has_pairs = any("selector" in k or "markov" in k for k in self.w)

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
        causal = sliding if self.causal is None else self.causal
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
        if p + "g_proj.weight" in self.w or "aux_hidden_norms.0.weight" in self.w:
            context = self.norm(context, f"layers.{layer}.input_layernorm.weight")
        both = torch.cat([context, x])
        q = self.rope(self.norm(self.linear(x, p + "q_proj.weight").view(b, -1, w), p + "q_norm.weight"), q_pos)
        k = self.rope(self.norm(self.linear(both, p + "k_proj.weight").view(n + b, -1, w), p + "k_norm.weight"), k_pos)
        v = self.linear(both, p + "v_proj.weight").view(n + b, -1, w)
        k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
        score = torch.einsum("qhw,khw->hqk", q, k) * w ** -0.5
        score = score.masked_fill(~self.visible(layer, q_pos, k_pos), float("-inf"))
        out = torch.einsum("hqk,khw->qhw", score.softmax(-1), v)
        if p + "g_proj.weight" in self.w:          # for each head, or for each element
            out = out * torch.nn.functional.softplus(self.linear(x, p + "g_proj.weight")).view(b, q.shape[1], -1)
        return self.linear(out.reshape(b, -1), p + "o_proj.weight")

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
        start, features = len(features), features.double()
        if "aux_hidden_norms.0.weight" in self.w:
            slices = features.chunk(len(self.taps), -1)
            features = torch.cat([self.norm(x, f"aux_hidden_norms.{i}.weight") for i, x in enumerate(slices)], -1)
        context = self.norm(self.linear(features, "fc.weight"), "hidden_norm.weight")
        embed, head = self.w.get("embed_tokens.weight", embed), self.w.get("lm_head.weight", head)
        h = embed.double()[[anchor] + [self.mask_id] * (self.block - 1)]
        for i in range(self.c["num_hidden_layers"]):
            p = f"layers.{i}."
            h = self.sublayer(h, p + "input_layernorm.weight", p + "attention_conv",
                              lambda x: self.attention(x, context, i, start))
            h = self.sublayer(h, p + "post_attention_layernorm.weight", p + "mlp_conv", lambda x: self.mlp(x, i))
        o = self.norm(h, "norm.weight")
        logits = o @ head.double().T
        if cap := self.c.get("final_logit_softcapping"):
            logits = cap * torch.tanh(logits / cap)
        if "d2t" in self.w:                        # row i is token i + d2t[i]; others cannot be guessed
            whole = torch.full((len(logits), len(embed)), float("-inf"), dtype=logits.dtype)
            whole[:, torch.arange(len(self.w["d2t"])) + self.w["d2t"]] = logits
            logits = whole
        return logits, o

    def pairs(self, logits, o, anchor):
        """DFlash2's selector, or DSpark's Markov head: for each row from 1, (candidates, previous tokens,
        score[previous][candidate])."""
        before, found = [anchor], []
        for t in range(1, self.block):
            unary, cand = logits[t].topk(self.top_k)
            if "markov_head.markov_w1.weight" in self.w:
                g, a, b = 1, self.w["markov_head.markov_w1.weight"][before], self.w["markov_head.markov_w2.weight"][cand]
            else:
                g = self.linear(o[t], "candidate_selector.hidden_projection.weight")
                a = self.w["candidate_selector.predecessor_codebook"][before]
                b = self.w["candidate_selector.successor_codebook"][cand]
            found.append((cand.tolist(), list(before), (unary + (a * g) @ b.T).tolist()))
            before = cand.tolist()
        return found
