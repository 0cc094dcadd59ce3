"""diffusion.py - a small block text-diffusion network (arch diffusion-gemma) in plain PyTorch, and its sampler.

One stack of layers in two modes. encode: plain embeddings, causal, the keys and values are kept. decode: a canvas of C
rows that see the kept prefix and each other; the embedding goes through self-conditioning on the previous prediction.
Both modes share every weight but the scalar at the end of each layer. Parameter names are those of transformers'
DiffusionGemma decoder (`enc_layer_scalar` is its encoder's `layer_scalar`), so that checks and export only put prefixes
in front.
"""
from dataclasses import asdict, dataclass
import math
import torch
import torch.nn.functional as F
from torch import nn
from model import linear, rope, rope_table


@dataclass
class DiffusionConfig:
    vocab: int = 4096
    hidden: int = 128
    layers: int = 4
    interval: int = 2                # layer i sees the whole prefix iff (i + 1) % interval == 0, else a window of it
    window: int = 64
    heads: int = 4
    kv_heads: int = 2                # of a windowed layer
    head_dim: int = 32
    full_kv_heads: int = 1           # of a full layer, which has no V projection
    full_head_dim: int = 64
    rotated: float = 0.25            # share of a full layer's pairs that rotate
    theta: float = 2e3               # of a windowed layer
    full_theta: float = 1e5
    ff: int = 192                    # dense path and self-conditioning
    experts: int = 8
    used: int = 2
    expert_ff: int = 64
    softcap: float = 20.0
    canvas: int = 32
    context: int = 1024
    eps: float = 1e-5


class Norm(nn.RMSNorm):
    """RMSNorm with plain weights; everything here is float32, where PyTorch's own is faster than model.py's."""


class Attention(nn.Module):
    def __init__(self, c, full):
        super().__init__()
        self.full, self.heads = full, c.heads
        self.kv_heads, self.dim = (c.full_kv_heads, c.full_head_dim) if full else (c.kv_heads, c.head_dim)
        self.q_proj = linear(c.hidden, c.heads * self.dim)
        self.k_proj = linear(c.hidden, self.kv_heads * self.dim)
        self.v_proj = None if full else linear(c.hidden, self.kv_heads * self.dim)
        self.o_proj = linear(c.heads * self.dim, c.hidden)
        self.q_norm, self.k_norm = Norm(self.dim, c.eps), Norm(self.dim, c.eps)
        for n in (self.q_norm, self.k_norm):              # there is no 1/sqrt(dim): the norms' weights carry it
            nn.init.constant_(n.weight, self.dim ** -0.25)

    def forward(self, h, rotation, bias, past):
        """h [B, N, hidden]; bias [B or 1, 1, N, keys]; past (k, v) or None -> output, own (k, v) [B, Hkv, N, D].
        The heads of q, k and v are normed in one go."""
        B, N, _ = h.shape
        H, K = self.heads, self.kv_heads
        x = F.linear(h, torch.cat([m.weight for m in (self.q_proj, self.k_proj, self.v_proj) if m]))
        x = F.rms_norm(x.view(B, N, -1, self.dim), (self.dim,), eps=self.q_norm.eps).transpose(1, 2)
        q, k = rope(x[:, :H] * self.q_norm.weight, *rotation), rope(x[:, H:H + K] * self.k_norm.weight, *rotation)
        kv = k, x[:, -K:]                                 # without a V projection the last heads are K's
        k, v = (torch.cat([p, t], 2) for p, t in zip(past, kv)) if past else kv
        k, v = (t.repeat_interleave(H // K, 1) for t in (k, v))
        o = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=1.0)
        return self.o_proj(o.transpose(1, 2).reshape(B, N, -1)), kv


class Mlp(nn.Module):
    def __init__(self, hidden, ff):
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = linear(hidden, ff), linear(hidden, ff), linear(ff, hidden)

    def forward(self, x):
        return self.down_proj(F.gelu(self.gate_proj(x), approximate="tanh") * self.up_proj(x))


class Router(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.proj = linear(c.hidden, c.experts)
        nn.init.normal_(self.proj.weight)                 # divided by sqrt(hidden), this spreads the scores by about 1
        self.scale = nn.Parameter(torch.ones(c.hidden))
        self.per_expert_scale = nn.Parameter(torch.ones(c.experts))

    def forward(self, x):
        """x [N, hidden], normed -> probabilities [N, experts], weights and ids of those used [N, used]"""
        p = F.linear(x, self.proj.weight * self.scale * x.shape[-1] ** -0.5).softmax(-1)
        w, ids = p.topk(self.c.used, -1)
        return p, w / w.sum(-1, keepdim=True) * self.per_expert_scale[ids], ids


class Experts(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.randn(c.experts, 2 * c.expert_ff, c.hidden) * 0.6 / math.sqrt(c.hidden))
        self.down_proj = nn.Parameter(torch.randn(c.experts, c.hidden, c.expert_ff) * 0.6 / math.sqrt(c.expert_ff))

    def forward(self, g, weights, ids):
        """One product per expert over the rows that chose it; g [N, hidden]"""
        order = ids.flatten().argsort(stable=True)
        counts = ids.flatten().bincount(minlength=len(self.gate_up_proj)).tolist()
        rows = order // ids.shape[1]
        parts = []
        for e, x in enumerate(g.index_select(0, rows).split(counts)):
            gate, up = (x @ self.gate_up_proj[e].t()).chunk(2, -1)
            parts.append((F.gelu(gate, approximate="tanh") * up) @ self.down_proj[e].t())
        return torch.zeros_like(g).index_add(0, rows, torch.cat(parts) * weights.flatten()[order, None])


class Layer(nn.Module):
    def __init__(self, c, i):
        super().__init__()
        self.c, self.full = c, (i + 1) % c.interval == 0
        self.self_attn = Attention(c, self.full)
        self.mlp, self.router, self.experts = Mlp(c.hidden, c.ff), Router(c), Experts(c)
        for name in ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm",
                     "pre_feedforward_layernorm_2", "post_feedforward_layernorm", "post_feedforward_layernorm_1",
                     "post_feedforward_layernorm_2"):
            setattr(self, name, Norm(c.hidden, c.eps))
        for n in (self.post_attention_layernorm, self.post_feedforward_layernorm):
            nn.init.constant_(n.weight, 0.5)
        self.layer_scalar = nn.Parameter(torch.full((1,), 0.9))
        self.enc_layer_scalar = nn.Parameter(torch.ones(1))

    def forward(self, x, rotation, bias, past, routes):
        """Decoder mode iff past is given. Appends (probabilities, ids) of the router to routes when that is a list."""
        a, kv = self.self_attn(self.input_layernorm(x), rotation, bias, past)
        x = x + self.post_attention_layernorm(a)
        n = F.rms_norm(x, x.shape[-1:], eps=self.c.eps)   # three norms of the same state differ in their weights only
        p, w, ids = self.router(n.view(-1, self.c.hidden))
        if routes is not None:
            routes.append((p, ids))
        e = self.experts((n * self.pre_feedforward_layernorm_2.weight).view(-1, self.c.hidden), w, ids).view_as(x)
        d = self.mlp(n * self.pre_feedforward_layernorm.weight)
        d, e = self.post_feedforward_layernorm_1(d), self.post_feedforward_layernorm_2(e)
        x = x + self.post_feedforward_layernorm(d + e)
        return x * (self.layer_scalar if past else self.enc_layer_scalar), kv


class SelfConditioning(Mlp):
    def __init__(self, c):
        super().__init__(c.hidden, c.ff)
        self.pre_norm = Norm(c.hidden, c.eps)

    def forward(self, soft):
        return super().forward(self.pre_norm(soft))


def bias_of(see):
    """[.., N, keys] bool -> additive mask [.., 1, N, keys]"""
    return torch.zeros(see.shape).masked_fill_(~see, -1e30).unsqueeze(-3)


class Diffusion(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.embed_tokens = nn.Embedding(c.vocab, c.hidden)
        nn.init.normal_(self.embed_tokens.weight, std=0.04)
        self.layers = nn.ModuleList(Layer(c, i) for i in range(c.layers))
        self.norm = Norm(c.hidden, c.eps)
        self.self_conditioning = SelfConditioning(c)

    def embed(self, ids):
        return self.embed_tokens(ids) * math.sqrt(self.c.hidden)

    def rotations(self, positions):
        """positions [B or 1, N] -> {full: (cos, sin)}, each [B or 1, 1, N, D/2]; pairs at rest have angle 0."""
        c, n = self.c, int(self.c.rotated * self.c.full_head_dim / 2)
        window = rope_table(c.head_dim, c.theta, positions)
        cos, sin = rope_table(c.full_head_dim, c.full_theta, positions)
        cos[..., n:], sin[..., n:] = 1, 0
        return {False: tuple(t.unsqueeze(1) for t in window), True: (cos.unsqueeze(1), sin.unsqueeze(1))}

    def encode(self, ids, routes=None):
        """ids [B, T] at positions 0.. -> (state after the output norm [B, T, hidden], (k, v) of every layer)"""
        at = torch.arange(ids.shape[1])
        back = at[:, None] - at
        bias = {full: bias_of((back >= 0) & (full | (back < self.c.window))[None]) for full in (False, True)}
        rotation = self.rotations(at[None])
        x, kept = self.embed(ids), []
        for layer in self.layers:
            x, kv = layer(x, rotation[layer.full], bias[layer.full], None, routes)
            kept.append(kv)
        return self.norm(x), kept

    def decode(self, ids, start, kept, soft=None, routes=None):
        """ids [B, n * C]: n canvases one after the other, of which canvas b lies at start + b * C and sees the prefix
        before that; start [B]; soft [B, n * C, hidden] or None -> state after the output norm [B, n * C, hidden]."""
        c, B, R, T = self.c, *ids.shape, kept[0][0].shape[2]
        row = torch.arange(R)
        block = row // c.canvas
        begin = start[:, None] + block * c.canvas                            # [B, R], of the row's canvas
        key = torch.arange(T)
        before, mine = key < begin[..., None], (block[:, None] == block).expand(B, R, R)
        near = key >= begin[..., None] - (c.window - 1)                      # the same keys for all rows of a canvas
        bias = {full: bias_of(torch.cat([before if full else before & near, mine], -1)) for full in (False, True)}
        rotation = self.rotations(start[:, None] + row)
        x = self.embed(ids)
        x = F.rms_norm(x if soft is None else x + self.self_conditioning(soft), x.shape[-1:], eps=c.eps)
        for layer, kv in zip(self.layers, kept):
            x, _ = layer(x, rotation[layer.full], bias[layer.full], kv, routes)
        return self.norm(x)

    def logits(self, h):
        return self.c.softcap * torch.tanh(F.linear(h / self.c.softcap, self.embed_tokens.weight))

    def soft(self, z):
        """Expected embedding under softmax(z): what the next step is conditioned on."""
        return math.sqrt(self.c.hidden) * (z.softmax(-1) @ self.embed_tokens.weight)


@dataclass
class Sampler:
    """The entropy-bound sampler's settings (GGUF: diffusion.eb_*)"""
    max_steps: int = 48
    t_min: float = 0.4
    t_max: float = 0.8
    entropy_bound: float = 0.1
    stability_threshold: int = 1
    confidence_threshold: float = 0.005


@torch.no_grad()
def denoise(model, kept, start, s, rng):
    """One canvas behind a prefix of start tokens -> (its tokens [C], steps). Every position is decided anew in every
    step: the surest ones, as long as the entropies before them stay within the bound, feed their sample back, the
    others fresh noise."""
    C, V = model.c.canvas, model.c.vocab
    noise = lambda: torch.randint(V, (C,), generator=rng)
    canvas, soft, history = noise(), None, []
    for left in range(s.max_steps, 0, -1):
        t = s.t_min + (s.t_max - s.t_min) * left / s.max_steps
        z = model.logits(model.decode(canvas[None], torch.tensor([start]), kept, soft)) / t
        p = z[0].softmax(-1)
        entropy = torch.special.entr(p).sum(-1)
        best, drawn = p.argmax(-1), torch.multinomial(p, 1, generator=rng)[:, 0]
        order = entropy.argsort(stable=True)
        accepted = torch.empty(C, dtype=torch.bool)
        accepted[order] = entropy[order].cumsum(0) - entropy[order] <= s.entropy_bound
        canvas = torch.where(accepted, drawn, noise())
        stable = len(history) >= s.stability_threshold and \
            all(torch.equal(h, best) for h in history[len(history) - s.stability_threshold:])
        history.append(best)
        soft = model.soft(z)
        if stable and entropy.mean() < s.confidence_threshold:
            break
    return best, len(history)


@torch.no_grad()
def generate(model, ids, blocks, s, stop, rng):
    """ids [P] -> (new tokens up to the first of stop, which is left out; steps of each block)"""
    P, steps = len(ids), []
    for _ in range(blocks):
        best, n = denoise(model, model.encode(ids[None])[1], len(ids), s, rng)
        steps.append(n)
        ids = torch.cat([ids, best])
        ends = [i for i, t in enumerate(best.tolist()) if t in stop]
        if ends:
            ids = ids[:len(ids) - len(best) + ends[0]]
            break
    return ids[P:], steps


def config_dict(c):
    return asdict(c)
