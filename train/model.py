"""model.py - the target (qwen35: gated delta net and gated attention) and its drafter (DFlash) in plain PyTorch.

Parameter names and head order are those of the Hugging Face checkpoints, so a state dict loads into transformers'
Qwen3_5ForCausalLM unchanged; what GGUF stores differently (value heads tiled, norms + 1, -exp(A_log)) is the business of
export_gguf.py. The delta rule exists twice: chunk-parallel for training (delta_rule) and one token at a time for
generating (Target.step); tests in verify.py hold both against transformers.
"""
from dataclasses import asdict, dataclass
import math
import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class TargetConfig:
    vocab: int = 4096
    hidden: int = 256
    layers: int = 8
    ff: int = 768
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 128
    rotary: int = 32                 # rotated width, 0.25 * head_dim
    theta: float = 1e6
    sections: tuple = (6, 5, 5, 0)   # M-RoPE sections; for text they change nothing
    interval: int = 4                # layer i is full attention iff (i + 1) % interval == 0
    key_heads: int = 2               # of the delta net; its heads are 128 wide
    value_heads: int = 4
    delta_dim: int = 128
    conv: int = 4
    context: int = 4096
    eps: float = 1e-6


@dataclass
class DrafterConfig:
    hidden: int = 256
    layers: int = 3
    ff: int = 512
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 128
    theta: float = 1e6
    block: int = 8
    taps: tuple = (1, 4, 6)          # 0-based, "after layer"
    mask_id: int = 4093
    conv: int = 2                    # taps of DFlash2's convolutions
    conv_group: int = 16
    rank: int = 128                  # of DFlash2's selector
    top_k: int = 16
    context: int = 4096
    eps: float = 1e-6


def rms(x, w, eps, one=0.0):
    """RMSNorm in float32; one = 1 where the stored weight is zero-centred."""
    y = x.float()
    y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + eps)
    return (y * (w.float() + one)).to(x.dtype)


def rope_table(width, theta, positions):
    freq = theta ** (-torch.arange(0, width, 2, dtype=torch.float32, device=positions.device) / width)
    angle = positions.float()[..., None] * freq
    return angle.cos(), angle.sin()


def rope(x, cos, sin):
    """Split-half rotation of the first 2 * cos.shape[-1] dimensions; x [.., T, D], cos [.., T, D/2]."""
    n = cos.shape[-1]
    a, b, rest = x[..., :n].float(), x[..., n:2 * n].float(), x[..., 2 * n:]
    return torch.cat([(a * cos - b * sin).to(x.dtype), (b * cos + a * sin).to(x.dtype), rest], -1)


def delta_rule(q, k, v, lg, beta, chunk=64, mm=torch.float32):
    """Gated delta rule over whole sequences, chunk by chunk.

    q, k [B, Hk, T, D] (normalised, q scaled), v [B, Hv, T, D], lg and beta [B, Hv, T] -> [B, Hv, T, D].
    Value head h uses key head h // (Hv / Hk). Inside a chunk, with G the running sum of lg:
        A[i][j] = beta_i (k_i . k_j) exp(G_i - G_j) for j < i;   (I + A) U = beta (v - exp(G) S^T k)
        O = exp(G) q S + ((q k^T) * exp(G_i - G_j)) U;           S' = exp(G_n) S + (exp(G_n - G) k)^T U
    mm is the type of the large products; the triangular solve and the state stay float32, as errors compound there.
    """
    B, Hv, T, D = v.shape
    r = Hv // k.shape[1]
    pad = -T % chunk
    if pad:                                       # zero keys, zero beta, zero log decay change nothing
        q, k, v = (F.pad(t, (0, 0, 0, pad)) for t in (q, k, v))
        lg, beta = F.pad(lg, (0, pad)), F.pad(beta, (0, pad))
    n = (T + pad) // chunk
    q, k, v = (t.reshape(B, t.shape[1], n, chunk, D) for t in (q, k, v))
    lg, beta = (t.reshape(B, Hv, n, chunk) for t in (lg, beta))
    mul = lambda a, b: (a.to(mm) @ b.to(mm)).float()
    G = lg.cumsum(-1)
    low = torch.ones(chunk, chunk, dtype=torch.bool, device=v.device).tril()
    M = (G[..., :, None] - G[..., None, :]).masked_fill(~low, -1e30).exp()
    kk = mul(k, k.transpose(-1, -2)).repeat_interleave(r, 1)
    qk = mul(q, k.transpose(-1, -2)).repeat_interleave(r, 1) * M
    q, k = q.repeat_interleave(r, 1), k.repeat_interleave(r, 1)
    A = (beta[..., None] * kk * M).tril(-1)
    eye = torch.eye(chunk, dtype=A.dtype, device=v.device)
    X = torch.linalg.solve_triangular(A + eye, beta[..., None] * torch.cat([v, k * G.exp()[..., None]], -1),
                                      upper=False, unitriangular=True)
    V, W = X[..., :D], X[..., D:]
    qG = q * G.exp()[..., None]
    kG = (k * (G[..., -1:] - G).exp()[..., None]).transpose(-1, -2)
    last = G[..., -1].exp()[..., None, None]
    S = torch.zeros(B, Hv, D, D, dtype=torch.float32, device=v.device)
    out = []
    # unbind, not indexing: the gradient of n slices would be n zero-filled tensors of full size
    for c, (Vc, Wc, qc, pc, kc,
            ac) in enumerate(zip(*(t.unbind(2) for t in (V, W.to(mm), qG.to(mm), qk.to(mm), kG.to(mm), last)))):
        U = Vc - mul(Wc, S)
        out.append(mul(qc, S) + mul(pc, U))
        if c + 1 < n:
            S = ac * S + mul(kc, U)
    return torch.stack(out, 2).reshape(B, Hv, T + pad, D)[:, :, :T]


class Norm(nn.Module):
    def __init__(self, n, eps, one=1.0):
        super().__init__()
        self.weight = nn.Parameter(torch.full((n,), 1.0 - one))
        self.eps, self.one = eps, one

    def forward(self, x):
        return rms(x, self.weight, self.eps, self.one)


def linear(i, o):
    m = nn.Linear(i, o, bias=False)
    nn.init.normal_(m.weight, std=0.6 / math.sqrt(i))
    return m


class Mlp(nn.Module):
    def __init__(self, hidden, ff):
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = linear(hidden, ff), linear(hidden, ff), linear(ff, hidden)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Attention(nn.Module):
    """Gated attention of the target: q and its gate come interleaved per head from one matrix."""

    def __init__(self, c):
        super().__init__()
        self.c = c
        self.q_proj = linear(c.hidden, 2 * c.heads * c.head_dim)
        self.k_proj = linear(c.hidden, c.kv_heads * c.head_dim)
        self.v_proj = linear(c.hidden, c.kv_heads * c.head_dim)
        self.o_proj = linear(c.heads * c.head_dim, c.hidden)
        self.q_norm, self.k_norm = Norm(c.head_dim, c.eps), Norm(c.head_dim, c.eps)

    def qkvg(self, x, cos, sin):
        B, T, _ = x.shape
        c = self.c
        q, g = self.q_proj(x).view(B, T, c.heads, 2 * c.head_dim).chunk(2, -1)
        k = self.k_norm(self.k_proj(x).view(B, T, c.kv_heads, c.head_dim)).transpose(1, 2)
        v = self.v_proj(x).view(B, T, c.kv_heads, c.head_dim).transpose(1, 2)
        q = self.q_norm(q).transpose(1, 2)
        return rope(q, cos, sin), rope(k, cos, sin), v, g.reshape(B, T, -1)

    def forward(self, x, cos, sin):
        B, T, _ = x.shape
        q, k, v, g = self.qkvg(x, cos, sin)
        r = self.c.heads // self.c.kv_heads
        o = F.scaled_dot_product_attention(q, k.repeat_interleave(r, 1), v.repeat_interleave(r, 1), is_causal=True)
        return self.o_proj(o.transpose(1, 2).reshape(B, T, -1) * torch.sigmoid(g))

    def step(self, x, cos, sin, cache, length, valid):
        """One token per sequence; cache (K, V) [B, Hkv, cap, D], written at slot length; valid [B, length + 1]."""
        B = x.shape[0]
        q, k, v, g = self.qkvg(x, cos, sin)
        K, V = cache
        K[:, :, length:length + 1], V[:, :, length:length + 1] = k, v
        r = self.c.heads // self.c.kv_heads
        q = q.view(B, self.c.kv_heads, r, self.c.head_dim)
        o = F.scaled_dot_product_attention(q, K[:, :, :length + 1], V[:, :, :length + 1],
                                           attn_mask=valid[:, None, None, :])
        return self.o_proj(o.reshape(B, 1, -1) * torch.sigmoid(g))


class Conv(nn.Module):
    def __init__(self, channels, taps):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(channels, 1, taps) * 0.3)


class DeltaNet(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.kd, self.vd = c.key_heads * c.delta_dim, c.value_heads * c.delta_dim
        self.in_proj_qkv = linear(c.hidden, 2 * self.kd + self.vd)
        self.in_proj_z = linear(c.hidden, self.vd)
        self.in_proj_b, self.in_proj_a = linear(c.hidden, c.value_heads), linear(c.hidden, c.value_heads)
        self.conv1d = Conv(2 * self.kd + self.vd, c.conv)
        dt = torch.exp(torch.rand(c.value_heads) * (math.log(0.1) - math.log(0.001)) + math.log(0.001))
        self.dt_bias = nn.Parameter(dt + torch.log(-torch.expm1(-dt)))       # softplus(dt_bias) = dt
        self.A_log = nn.Parameter(torch.log(torch.rand(c.value_heads) * 15 + 1))
        self.norm = Norm(c.delta_dim, c.eps, one=0.0)
        self.out_proj = linear(self.vd, c.hidden)

    def gates(self, x):
        lg = -self.A_log.float().exp() * F.softplus(self.in_proj_a(x).float() + self.dt_bias)
        return lg, torch.sigmoid(self.in_proj_b(x).float())                   # [B, T, Hv] each

    def heads(self, y):
        """Activated conv outputs [B, T, C] -> q, k, v [B, H, T, D] in float32."""
        B, T, _ = y.shape
        D = self.c.delta_dim
        q, k, v = y.float().split([self.kd, self.kd, self.vd], -1)
        q, k, v = (t.reshape(B, T, -1, D).transpose(1, 2) for t in (q, k, v))
        unit = lambda t: t * torch.rsqrt(t.pow(2).sum(-1, keepdim=True) + 1e-6)
        return unit(q) * D ** -0.5, unit(k), v

    def output(self, o, x):
        B, T = x.shape[:2]
        z = self.in_proj_z(x).view(B, T, -1, self.c.delta_dim)
        o = self.norm(o.transpose(1, 2)) * F.silu(z.float())
        return self.out_proj(o.reshape(B, T, -1).to(x.dtype))

    def forward(self, x):
        T = x.shape[1]
        u = F.pad(self.in_proj_qkv(x), (0, 0, self.c.conv - 1, 0))
        w = self.conv1d.weight
        y = F.silu(sum(u[:, j:j + T] * w[:, 0, j].to(u.dtype) for j in range(self.c.conv)))
        lg, beta = self.gates(x)
        mm = torch.bfloat16 if torch.is_autocast_enabled(x.device.type) else torch.float32
        with torch.autocast(x.device.type, enabled=False):
            o = delta_rule(*self.heads(y), lg.transpose(1, 2), beta.transpose(1, 2), mm=mm)
        return self.output(o, x)

    def step(self, x, state):
        """state = [history [B, conv-1, C], S [B, Hv, D, D] float32], changed in place."""
        r = self.c.value_heads // self.c.key_heads
        u = torch.cat([state[0], self.in_proj_qkv(x)], 1)
        state[0] = u[:, 1:]
        y = F.silu((u * self.conv1d.weight[:, 0].t().to(u.dtype)).sum(1, keepdim=True))
        lg, beta = self.gates(x)
        q, k, v = self.heads(y)
        q, k = q.repeat_interleave(r, 1), k.repeat_interleave(r, 1)
        S = state[1].mul_(lg.exp().transpose(1, 2)[..., None])
        d = beta.transpose(1, 2)[..., None] * (v - k @ S)
        B, H, D = S.shape[:3]
        torch.baddbmm(S.view(B * H, D, D), k.reshape(B * H, D, 1), d.reshape(B * H, 1, D), out=S.view(B * H, D, D))
        return self.output(q @ S, x)


class Layer(nn.Module):
    def __init__(self, c, i):
        super().__init__()
        self.full = (i + 1) % c.interval == 0
        self.input_layernorm, self.post_attention_layernorm = Norm(c.hidden, c.eps), Norm(c.hidden, c.eps)
        if self.full:
            self.self_attn = Attention(c)
        else:
            self.linear_attn = DeltaNet(c)
        self.mlp = Mlp(c.hidden, c.ff)

    def forward(self, x, cos, sin):
        h = self.input_layernorm(x)
        x = x + (self.self_attn(h, cos, sin) if self.full else self.linear_attn(h))
        return x + self.mlp(self.post_attention_layernorm(x))


class Trunk(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.embed_tokens = nn.Embedding(c.vocab, c.hidden)
        nn.init.normal_(self.embed_tokens.weight, std=0.03)
        self.layers = nn.ModuleList(Layer(c, i) for i in range(c.layers))
        self.norm = Norm(c.hidden, c.eps)


class Target(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.model = Trunk(c)
        for i, layer in enumerate(self.model.layers):     # residual branches start small, deeper sums stay tame
            for m in (layer.mlp.down_proj, layer.self_attn.o_proj if layer.full else layer.linear_attn.out_proj):
                with torch.no_grad():
                    m.weight.mul_(1 / math.sqrt(2 * c.layers))

    def forward(self, ids, taps=()):
        """-> state after the output norm [B, T, hidden], taps [B, T, n * hidden] (after the named layers) or None."""
        cos, sin = rope_table(self.c.rotary, self.c.theta, torch.arange(ids.shape[1], device=ids.device))
        x = self.model.embed_tokens(ids)
        kept = {}
        for i, layer in enumerate(self.model.layers):
            x = layer(x, cos, sin)
            if i in taps:
                kept[i] = x
        return self.model.norm(x), torch.cat([kept[t] for t in taps], -1) if taps else None

    def logits(self, h):
        return F.linear(h, self.model.embed_tokens.weight)

    # Generating: sequences of one batch are padded on the left, valid marks the real slots.

    def cache(self, batch, capacity):
        c, dev = self.c, self.model.embed_tokens.weight.device
        ch = 2 * c.key_heads * c.delta_dim + c.value_heads * c.delta_dim
        mk = lambda *s: torch.zeros(*s, device=dev)
        return [(mk(batch, c.kv_heads, capacity, c.head_dim), mk(batch, c.kv_heads, capacity, c.head_dim)) if l.full
                else
                [mk(batch, c.conv - 1, ch), mk(batch, c.value_heads, c.delta_dim, c.delta_dim)]
                for l in self.model.layers]

    def step(self, ids, cache, length):
        """One token for every sequence, all at position length: ids [B] -> state after the output norm [B, hidden]."""
        dev = ids.device
        cos, sin = rope_table(self.c.rotary, self.c.theta, torch.tensor([length], device=dev))
        x = self.model.embed_tokens(ids)[:, None]
        valid = torch.ones(ids.shape[0], length + 1, dtype=torch.bool, device=dev)
        for layer, st in zip(self.model.layers, cache):
            h = layer.input_layernorm(x)
            x = x + (layer.self_attn.step(h, cos, sin, st, length, valid) if layer.full
                     else layer.linear_attn.step(h, st))
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        return self.model.norm(x)[:, 0]


# ------------------------------------------------------------------------------------------ drafter

class DraftAttention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.q_proj = linear(c.hidden, c.heads * c.head_dim)
        self.k_proj = linear(c.hidden, c.kv_heads * c.head_dim)
        self.v_proj = linear(c.hidden, c.kv_heads * c.head_dim)
        self.o_proj = linear(c.heads * c.head_dim, c.hidden)
        self.q_norm, self.k_norm = Norm(c.head_dim, c.eps, one=0.0), Norm(c.head_dim, c.eps, one=0.0)

    def kv(self, x, cos, sin):
        B, T, _ = x.shape
        k = self.k_norm(self.k_proj(x).view(B, T, self.c.kv_heads, -1)).transpose(1, 2)
        return rope(k, cos, sin), self.v_proj(x).view(B, T, self.c.kv_heads, -1).transpose(1, 2)


class BlockConv(nn.Module):
    """Before (side 0) and after (side 1) a sublayer, over the rows of a block; the kernel is a base and a part that the row itself
    projects per group of channels. Starts as the identity."""

    def __init__(self, c):
        super().__init__()
        self.c = c
        base = torch.zeros(2, c.conv, c.hidden)
        base[:, 0] = 1
        self.base_kernel = nn.Parameter(base)
        self.kernel_projection = linear(c.hidden, 2 * c.conv * c.hidden // c.conv_group)
        nn.init.zeros_(self.kernel_projection.weight)

    def delta(self, x):
        """x [.., hidden], the sublayer's normed input -> [.., side, tap, group]"""
        return self.kernel_projection(x).unflatten(-1, (2, self.c.conv, -1))

    def forward(self, z, delta, side):
        """z [B, blocks, block, hidden] -> the same; rows before a block's first are zero."""
        K, out = z.shape[-2], 0
        for t in range(self.c.conv):
            w = self.base_kernel[side, t].to(z.dtype) + delta[..., side, t, :].repeat_interleave(self.c.conv_group, -1)
            out = out + w * F.pad(z, (0, 0, t, 0))[..., :K, :]
        return out


class DraftLayer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = Norm(c.hidden, c.eps, 0.0), Norm(c.hidden, c.eps, 0.0)
        self.self_attn = DraftAttention(c)
        self.mlp = Mlp(c.hidden, c.ff)
        self.attention_conv, self.mlp_conv = BlockConv(c), BlockConv(c)


class Selector(nn.Module):
    """What a token says about the next one, given the row's state: sum over r of A[previous]_r * (P o)_r * B[candidate]_r."""

    def __init__(self, c, vocab):
        super().__init__()
        self.predecessor_codebook = nn.Parameter(torch.randn(vocab, c.rank) * 0.5)
        self.successor_codebook = nn.Parameter(torch.zeros(vocab, c.rank))
        self.hidden_projection = linear(c.hidden, c.rank)

    def forward(self, o, previous, candidate=None):
        """o [.., hidden], previous [..] -> what is added to the logits: [.., vocab], or [.., n] for candidate [.., n]."""
        g = self.predecessor_codebook[previous].to(o.dtype) * self.hidden_projection(o)
        if candidate is None:
            return g @ self.successor_codebook.to(g.dtype).t()
        return (self.successor_codebook[candidate] @ g[..., None])[..., 0]


class Drafter(nn.Module):
    """DFlash2: rows of masks see the target's taps of everything before their root, and each other."""

    def __init__(self, c, vocab=TargetConfig.vocab):
        super().__init__()
        self.c = c
        self.fc = linear(len(c.taps) * c.hidden, c.hidden)
        self.hidden_norm, self.norm = Norm(c.hidden, c.eps, 0.0), Norm(c.hidden, c.eps, 0.0)
        self.layers = nn.ModuleList(DraftLayer(c) for _ in range(c.layers))
        self.candidate_selector = Selector(c, vocab)

    def forward(self, taps, embed, root):
        """taps [B, S, n * hidden] of positions 0..S-1; embed [B, N, block, hidden] of [root token, mask, ...];
        root [B, N] absolute position of each block's root. -> states after the norm [B, N, block, hidden].
        A block sees taps of positions < its root and its own rows, all of them."""
        B, S, _ = taps.shape
        N, K = embed.shape[1], self.c.block
        c = self.c
        ctx = self.hidden_norm(self.fc(taps))
        pos = torch.cat([torch.arange(S, device=taps.device)[None].expand(B, S),
                         (root[..., None] + torch.arange(K, device=taps.device)).reshape(B, N * K)], 1)
        cos, sin = rope_table(c.head_dim, c.theta, pos)
        cos, sin = cos[:, None], sin[:, None]                                   # [B, 1, S + N*K, D/2]
        block = torch.arange(N, device=taps.device).repeat_interleave(K)
        see_ctx = torch.arange(S, device=taps.device)[None, None] < root.repeat_interleave(K, 1)[..., None]
        see = torch.cat([see_ctx, (block[:, None] == block[None]).expand(B, -1, -1)], -1)[:, None]
        bias = torch.zeros(see.shape, dtype=embed.dtype, device=taps.device).masked_fill_(~see, -1e30 if embed.dtype != torch.float16 else -6e4)
        h = embed
        r = c.heads // c.kv_heads
        for layer in self.layers:
            a = layer.self_attn
            x = layer.input_layernorm(h)
            delta = layer.attention_conv.delta(x)
            x = layer.attention_conv(x, delta, 0).reshape(B, N * K, -1)
            q = a.q_norm(a.q_proj(x).view(B, N * K, c.heads, -1)).transpose(1, 2)
            q = rope(q, cos[:, :, S:], sin[:, :, S:])
            kc, vc = a.kv(ctx, cos[:, :, :S], sin[:, :, :S])
            kb, vb = a.kv(x, cos[:, :, S:], sin[:, :, S:])
            k, v = torch.cat([kc, kb], 2).repeat_interleave(r, 1), torch.cat([vc, vb], 2).repeat_interleave(r, 1)
            o = F.scaled_dot_product_attention(q, k, v, attn_mask=bias.to(q.dtype))
            y = a.o_proj(o.transpose(1, 2).reshape(B, N, K, -1))
            h = h + layer.attention_conv(y, delta, 1)
            x = layer.post_attention_layernorm(h)
            delta = layer.mlp_conv.delta(x)
            h = h + layer.mlp_conv(layer.mlp(layer.mlp_conv(x, delta, 0)), delta, 1)
        return self.norm(h)


def config_dict(c):
    return asdict(c)
