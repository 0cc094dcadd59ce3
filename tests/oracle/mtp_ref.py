"""mtp_ref.py - the MTP layer of a qwen35 or qwen35moe file in PyTorch, from the formulas of doc/models/qwen35.md, float64.

Reads the GGUF file of tests/help/tiny.c. Row t joins the trunk's normed state at position t with the token at t + 1 and says what comes at t + 2;
beyond the text, its own normed output stands in for the state. Everything from scratch for every row: no cache, one line per formula."""
import torch


class Mtp:
    def __init__(self, f):
        self.f, n = f, f.key("block_count") - f.key("nextn_predict_layers")
        self.w = {k[len(f"blk.{n}."):]: torch.from_numpy(v).double() for k,
                  v in f.tensors.items() if k.startswith(f"blk.{n}.")}
        self.embed = torch.from_numpy(f.tensors["token_embd.weight"]).double()
        self.head = torch.from_numpy(f.tensors.get("output.weight", f.tensors["token_embd.weight"])).double()
        self.eps, self.width = f.key("attention.layer_norm_rms_epsilon"), f.key("attention.key_length")
        self.used = f.key("expert_used_count", 0)
        self.n_rot, self.theta = f.key("rope.dimension_count"), f.key("rope.freq_base")

    def norm(self, x, name):
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + self.eps) * self.w[name]

    def linear(self, x, name):
        return x @ self.w[name].T

    def rope(self, x, position):
        """x [rows, heads, width]: split halves of the first n_rot columns, the others pass through."""
        half = self.n_rot // 2
        angle = position.double()[:, None] * self.theta ** (-torch.arange(half, dtype=torch.float64) / half)
        cos, sin = angle.cos()[:, None], angle.sin()[:, None]
        a, b, rest = x[..., :half], x[..., half:self.n_rot], x[..., self.n_rot:]
        return torch.cat([a * cos - b * sin, a * sin + b * cos, rest], -1)

    def attention(self, x):
        n, w, at = len(x), self.width, torch.arange(len(x))
        q, gate = self.linear(x, "attn_q.weight").view(n, -1, 2, w).unbind(2)              # per head: query, then gate
        q = self.rope(self.norm(q, "attn_q_norm.weight"), at)
        k = self.rope(self.norm(self.linear(x, "attn_k.weight").view(n, -1, w), "attn_k_norm.weight"), at)
        v = self.linear(x, "attn_v.weight").view(n, -1, w)
        k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
        score = torch.einsum("qhw,khw->hqk", q, k) * w ** -0.5
        score = score.masked_fill(at[None, :, None] < at[None, None, :], float("-inf"))
        o = torch.einsum("hqk,khw->qhw", score.softmax(-1), v) * gate.sigmoid()
        return self.linear(o.reshape(n, -1), "attn_output.weight")

    def swiglu(self, x, gate, up, down):
        return (torch.nn.functional.silu(x @ gate.T) * (x @ up.T)) @ down.T

    def feed_forward(self, x):
        if not self.used:
            return self.swiglu(x, *(self.w[f"ffn_{k}.weight"] for k in ("gate", "up", "down")))
        p = self.linear(x, "ffn_gate_inp.weight").softmax(-1)
        y = x @ self.w["ffn_gate_inp_shexp.weight"]
        out = y.sigmoid()[:, None] * self.swiglu(x, *(self.w[f"ffn_{k}_shexp.weight"] for k in ("gate", "up", "down")))
        for row in range(len(x)):
            weight, chosen = p[row].topk(self.used)
            for w, e in zip(weight / weight.sum(), chosen):
                out[row] += w * self.swiglu(x[row], *(self.w[f"ffn_{k}_exps.weight"][e] for k in ("gate", "up", "down")))
        return out

    @torch.no_grad()
    def draft(self, states, ids, depth):
        """states [n, hidden]: after the trunk's output norm, of ids[:n]; ids: n + 1 tokens. Greedy chain: returns
        logits [depth, vocab] and tokens."""
        states, ids, logits = states.double(), list(ids), []
        for _ in range(depth):
            x = torch.cat([self.norm(self.embed[ids[1:]], "nextn.enorm.weight"),
                           self.norm(states, "nextn.hnorm.weight")], -1)
            h = self.linear(x, "nextn.eh_proj.weight")
            h = h + self.attention(self.norm(h, "attn_norm.weight"))
            y = self.norm(h, "post_attention_norm.weight")
            h = h + self.feed_forward(y)
            o = self.norm(h, "nextn.shared_head_norm.weight")[-1:]
            logits.append((o @ self.head.T)[0])
            states = torch.cat([states, o])
            ids.append(int(logits[-1].argmax()))
        return torch.stack(logits), ids[len(ids) - depth:]
