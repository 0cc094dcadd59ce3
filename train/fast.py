"""fast.py - the target's training pass on a CPU with the fused kernels of kernels.c; same mathematics as model.py.

Mixed precision as autocast would choose it (products and activations bfloat16, residual stream and sums float32), but
every memory-bound stretch is one walk. `available()` builds kernels.c with the machine's C compiler at first use.
"""
import ctypes
import functools
import glob
import hashlib
import os
import pathlib
import shutil
import subprocess
import tempfile
import torch
import torch.nn.functional as F
from model import rope, rope_table

BF = torch.bfloat16


@functools.cache
def library():
    cc = os.environ.get("CC") or shutil.which("gcc") or shutil.which("cc")
    source = pathlib.Path(__file__).with_name("kernels.c")
    if not cc:
        return None
    key = hashlib.sha256(source.read_bytes()).hexdigest()[:16]
    so = pathlib.Path(tempfile.gettempdir()) / f"ratoon-train-{os.getuid()}-{key}.so"
    if not so.exists():
        obj = so.with_suffix(f".{os.getpid()}.o")
        # PyTorch brings its own OpenMP runtime; linking that very file avoids a second pool of threads
        gomp = glob.glob(str(pathlib.Path(torch.__file__).parent / "lib" / "libgomp*.so*")) or \
            glob.glob(str(pathlib.Path(torch.__file__).parent.parent / "torch.libs" / "libgomp*.so*"))
        tmp = so.with_suffix(f".{os.getpid()}.so")
        try:
            subprocess.run([cc, "-std=gnu11", "-Ofast", "-march=native", "-mprefer-vector-width=512", "-fopenmp",
                            "-fPIC", "-c", str(source), "-o", str(obj)], check=True)
            subprocess.run([cc, "-shared", str(obj), "-o", str(tmp), *(gomp[:1] or ["-fopenmp"]), "-lmvec", "-lm"],
                           check=True)
        except subprocess.CalledProcessError as e:
            print(f"fast.py: {e}; going on with plain PyTorch")
            return None
        tmp.replace(so)
        obj.unlink()
    return ctypes.CDLL(str(so))


def available():
    return library() is not None


def call(name, *args):
    conv = []
    for a in args:
        if a is None:
            conv.append(ctypes.c_void_p(0))
        elif torch.is_tensor(a):
            conv.append(ctypes.c_void_p(a.data_ptr()))
        elif isinstance(a, float):
            conv.append(ctypes.c_float(a))
        else:
            conv.append(ctypes.c_int64(a))
    getattr(library(), name)(*conv)


class AddNorm(torch.autograd.Function):
    """x [N, D] float32, d [N, D] bf16 or None -> x + d, rms(x + d) * (w + one) in bf16"""

    @staticmethod
    def forward(ctx, x, d, w, one, eps):
        x = x.contiguous()
        D = x.shape[-1]
        N = x.numel() // D
        xo = torch.empty_like(x) if d is not None else x
        y = torch.empty(x.shape, dtype=BF)
        rstd = torch.empty(N)
        call("add_norm_fwd", xo, y, rstd, x, d.contiguous() if d is not None else None, w, float(one), float(eps), N, D)
        ctx.save_for_backward(xo, rstd, w)
        ctx.one, ctx.has = one, d is not None
        return xo.view_as(xo), y

    @staticmethod
    def backward(ctx, dxo, dy):
        xo, rstd, w = ctx.saved_tensors
        D = xo.shape[-1]
        dx, dw = torch.empty_like(xo), torch.zeros_like(w)
        dd = torch.empty(xo.shape, dtype=BF) if ctx.has else None
        call("add_norm_bwd", dx, dd, dw, dxo.contiguous(), dy.contiguous(), xo, rstd, w, float(ctx.one),
             xo.numel() // D, D)
        return dx, dd, dw, None, None


class Swiglu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, gu):
        gu = gu.contiguous()
        Fd = gu.shape[-1] // 2
        h = torch.empty(*gu.shape[:-1], Fd, dtype=BF)
        call("swiglu_fwd", h, gu, gu.numel() // (2 * Fd), Fd)
        ctx.save_for_backward(gu)
        return h

    @staticmethod
    def backward(ctx, dh):
        gu, = ctx.saved_tensors
        d = torch.empty_like(gu)
        Fd = gu.shape[-1] // 2
        call("swiglu_bwd", d, dh.contiguous(), gu, gu.numel() // (2 * Fd), Fd)
        return d


class Prep(torch.autograd.Function):
    """Convolution, SiLU, unit length, split into heads; u is a view with row stride ld."""

    @staticmethod
    def forward(ctx, u, w, Hk, Hv):
        B, T, C = u.shape
        ld = u.stride(1)
        q, k = torch.empty(B, Hk, T, 128, dtype=BF), torch.empty(B, Hk, T, 128, dtype=BF)
        v = torch.empty(B, Hv, T, 128, dtype=BF)
        call("prep_fwd", q, k, v, u, ld, w, B, T, Hk, Hv)
        ctx.save_for_backward(u, w)
        ctx.h = Hk, Hv
        return q, k, v

    @staticmethod
    def backward(ctx, dq, dk, dv):
        u, w = ctx.saved_tensors
        B, T, C = u.shape
        du, dw = torch.empty(B, T, C, dtype=BF), torch.empty_like(w)
        call("prep_bwd", du, dw, dq.contiguous(), dk.contiguous(), dv.contiguous(), u, u.stride(1), w, B, T, *ctx.h)
        return du, dw, None, None


class GateNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, o, z, w, eps):
        B, H, T, D = o.shape
        o = o.contiguous()
        y, rstd = torch.empty(B, T, H * D, dtype=BF), torch.empty(B, T, H)
        call("gate_norm_fwd", y, rstd, o, z, z.stride(1), w, float(eps), B, T, H)
        ctx.save_for_backward(o, z, w, rstd)
        return y

    @staticmethod
    def backward(ctx, dy):
        o, z, w, rstd = ctx.saved_tensors
        B, H, T, D = o.shape
        do, dz, dw = torch.empty_like(o), torch.empty(B, T, H * D, dtype=BF), torch.zeros_like(w)
        call("gate_norm_bwd", do, dz, dw, dy.contiguous(), o, z, z.stride(1), rstd, w, B, T, H)
        return do, dz, dw, None


class HeadLoss(torch.autograd.Function):
    """Mean cross entropy of the tied head; the gradient is made in the forward pass, in the place of the logits."""

    @staticmethod
    def forward(ctx, h, table, label):
        N, V = h.shape[0], table.shape[0]
        x = h @ table.t()
        loss = torch.empty(N)
        call("cross_entropy", loss, x, label.contiguous(), 1.0 / N, N, V)
        ctx.save_for_backward(h, table, x)
        return loss.mean()

    @staticmethod
    def backward(ctx, g):
        h, table, x = ctx.saved_tensors
        return (x @ table) * g, (x.t() @ h) * g, None


def delta_rule(q, k, v, lg, beta, chunk=64):
    """model.delta_rule with bf16 products; T must be a multiple of the chunk. The inverse of (I + A) is taken once per
    chunk, so that all scaling by gates happens on 64 x 64 matrices."""
    B, Hv, T, D = v.shape
    Hk = k.shape[1]
    r, n = Hv // Hk, T // chunk
    q, k = q.view(B, Hk, n, chunk, D), k.view(B, Hk, n, chunk, D)
    v = v.view(B, Hv, n, chunk, D)
    lg, beta = lg.reshape(B, Hv, n, chunk), beta.reshape(B, Hv, n, chunk)
    G = lg.cumsum(-1)
    low = torch.ones(chunk, chunk, dtype=torch.bool).tril()
    M = (G[..., :, None] - G[..., None, :]).masked_fill(~low, -1e30).exp().view(B, Hk, r, n, chunk, chunk)
    kt = k.transpose(-1, -2)
    kk, qk = (k @ kt).float()[:, :, None], (q @ kt)[:, :, None]
    A = (kk * M * beta.view(B, Hk, r, n, chunk, 1)).tril(-1)
    P = (qk * M.to(BF)).view(B, Hv, n, chunk, chunk)
    eye = torch.eye(chunk)
    inv = torch.linalg.solve_triangular(A + eye, eye.expand_as(A), upper=False, unitriangular=True).view(B, Hv, n, chunk, chunk)
    E = G.exp()
    V = (inv * beta[..., None, :]).to(BF) @ v
    W = ((inv * (beta * E)[..., None, :]).to(BF).view(B, Hk, r, n, chunk, chunk) @ k[:, :, None]).view(B, Hv, n, chunk, D)
    back = (G[..., -1:] - G).exp().to(BF)[..., None]
    last = E[..., -1][..., None, None]
    Eb = E.to(BF)[..., None]
    S = torch.zeros(B, Hv, D, D)
    out = []
    parts = zip(V.unbind(2), W.unbind(2), q.unbind(2), kt.unbind(2), P.unbind(2), back.unbind(2), last.unbind(2),
                Eb.unbind(2))
    for c, (Vc, Wc, qc, kc, Pc, bc, ac, ec) in enumerate(parts):
        Sb = S.to(BF)
        U = Vc - Wc @ Sb
        qS = (qc[:, :, None] @ Sb.view(B, Hk, r, D, D)).view(B, Hv, chunk, D)
        out.append(qS * ec + Pc @ U)
        if c + 1 < n:
            S = ac * S + (kc[:, :, None] @ (U * bc).view(B, Hk, r, chunk, D)).view(B, Hv, D, D)
    return torch.stack(out, 2).view(B, Hv, T, D)


def norm(x, d, layer):
    return AddNorm.apply(x, d, layer.weight, layer.one, layer.eps)


def cat(*mods):
    return torch.cat([m.weight.to(BF) for m in mods])


def delta_net(m, h):
    c = m.c
    B, T, _ = h.shape
    P = F.linear(h, cat(m.in_proj_qkv, m.in_proj_z, m.in_proj_b, m.in_proj_a))
    u, z, b, a = P.split([2 * m.kd + m.vd, m.vd, c.value_heads, c.value_heads], -1)
    q, k, v = Prep.apply(u, m.conv1d.weight, c.key_heads, c.value_heads)
    lg = -m.A_log.exp() * F.softplus(a.float() + m.dt_bias)
    o = delta_rule(q, k, v, lg.transpose(1, 2), torch.sigmoid(b.float()).transpose(1, 2))
    return F.linear(GateNorm.apply(o, z, m.norm.weight, c.eps), m.out_proj.weight.to(BF))


def attention(m, h, cos, sin):
    c = m.c
    B, T, _ = h.shape
    P = F.linear(h, cat(m.q_proj, m.k_proj, m.v_proj))
    q, k, v = P.split([2 * c.heads * c.head_dim, c.kv_heads * c.head_dim, c.kv_heads * c.head_dim], -1)
    q, g = q.view(B, T, c.heads, -1).chunk(2, -1)
    q = norm(q.float(), None, m.q_norm)[1].transpose(1, 2)
    k = norm(k.reshape(B, T, c.kv_heads, -1).float(), None, m.k_norm)[1].transpose(1, 2)
    v = v.view(B, T, c.kv_heads, -1).transpose(1, 2)
    q, k = rope(q, cos, sin), rope(k, cos, sin)
    r = c.heads // c.kv_heads
    o = F.scaled_dot_product_attention(q, k.repeat_interleave(r, 1), v.repeat_interleave(r, 1), is_causal=True)
    return F.linear((o.transpose(1, 2) * torch.sigmoid(g)).reshape(B, T, -1), m.o_proj.weight.to(BF))


def mlp(m, h):
    return F.linear(Swiglu.apply(F.linear(h, cat(m.gate_proj, m.up_proj))), m.down_proj.weight.to(BF))


def forward(model, ids, taps=()):
    """As Target.forward; the state comes in bf16, the taps in float32. Sequence length: a multiple of 64."""
    cos, sin = rope_table(model.c.rotary, model.c.theta, torch.arange(ids.shape[1]))
    x, d = model.model.embed_tokens(ids), None
    kept = {}
    for i, layer in enumerate(model.model.layers):
        x, h = norm(x, d, layer.input_layernorm)
        if i - 1 in taps:
            kept[i - 1] = x
        d = attention(layer.self_attn, h, cos, sin) if layer.full else delta_net(layer.linear_attn, h)
        x, h = norm(x, d, layer.post_attention_layernorm)
        d = mlp(layer.mlp, h)
    x, h = norm(x, d, model.model.norm)
    kept[len(model.model.layers) - 1] = x
    return h, torch.cat([kept[t] for t in taps], -1) if taps else None


def loss(model, ids, labels):
    h, _ = forward(model, ids)
    return HeadLoss.apply(h.view(-1, h.shape[-1]), model.model.embed_tokens.weight.to(BF), labels.reshape(-1))
