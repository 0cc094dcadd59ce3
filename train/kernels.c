/* kernels.c - the memory-bound parts of the training pass, fused, for CPUs.
 *
 * PyTorch's eager mode walks through every activation a dozen times; on two cores that costs more than all matrix
 * products together. These are the fused forms (forward and backward) that fast.py calls through ctypes; the products
 * stay with PyTorch. Activations are bfloat16 (stored as uint16_t), sums and the residual stream are float. Built at
 * first use with the machine's own compiler; without one, model.py's plain PyTorch does the same more slowly.
 *
 * Numerics: nothing here has to be reproducible to the bit, only close; verify.py --fast compares with plain PyTorch.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

static inline float widen(uint16_t b)
{
    union { uint32_t u; float f; } v = { (uint32_t) b << 16 };
    return v.f;
}

static inline uint16_t narrow(float f)                     /* to nearest, ties to even */
{
    union { float f; uint32_t u; } v = { f };
    return (uint16_t) ((v.u + 0x7fff + ((v.u >> 16) & 1)) >> 16);
}

static inline float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

/* xo = x + d; y = rms(xo) * (w + one). d may be NULL, then xo may be x. */
void add_norm_fwd(float *xo, uint16_t *y, float *rstd, const float *x, const uint16_t *d, const float *w, float one,
                  float eps, int64_t N, int64_t D)
{
    #pragma omp parallel for
    for (int64_t n = 0; n < N; n++) {
        const float *xr = x + n * D;
        float *o = xo + n * D, s = 0;
        if (d) {
            const uint16_t *dr = d + n * D;
            for (int64_t i = 0; i < D; i++) o[i] = xr[i] + widen(dr[i]);
        } else if (o != xr)
            memcpy(o, xr, sizeof(float) * (size_t) D);
        for (int64_t i = 0; i < D; i++) s += o[i] * o[i];
        float r = 1.0f / sqrtf(s / (float) D + eps);
        rstd[n] = r;
        for (int64_t i = 0; i < D; i++) y[n * D + i] = narrow(o[i] * r * (w[i] + one));
    }
}

/* dx = dxo + gradient through the norm; dd (bf16 copy of dx) and dxo may be NULL. dw must be zero on entry. */
void add_norm_bwd(float *dx, uint16_t *dd, float *dw, const float *dxo, const uint16_t *dy, const float *xo,
                  const float *rstd, const float *w, float one, int64_t N, int64_t D)
{
    #pragma omp parallel
    {
        float acc[1024] = { 0 };
        #pragma omp for
        for (int64_t n = 0; n < N; n++) {
            const float *x = xo + n * D;
            const uint16_t *g = dy + n * D;
            float r = rstd[n], s = 0;
            for (int64_t i = 0; i < D; i++) {
                float gi = widen(g[i]), xh = x[i] * r;
                acc[i] += gi * xh;
                s += gi * (w[i] + one) * xh;
            }
            s /= (float) D;
            float *o = dx + n * D;
            for (int64_t i = 0; i < D; i++) o[i] = r * (widen(g[i]) * (w[i] + one) - x[i] * r * s);
            if (dxo) for (int64_t i = 0; i < D; i++) o[i] += dxo[n * D + i];
            if (dd) for (int64_t i = 0; i < D; i++) dd[n * D + i] = narrow(o[i]);
        }
        #pragma omp critical
        for (int64_t i = 0; i < D; i++) dw[i] += acc[i];
    }
}

/* gu [N, 2F] = gate | up;  h = silu(gate) * up */
void swiglu_fwd(uint16_t *h, const uint16_t *gu, int64_t N, int64_t F)
{
    #pragma omp parallel for
    for (int64_t n = 0; n < N; n++) {
        const uint16_t *g = gu + n * 2 * F, *u = g + F;
        for (int64_t i = 0; i < F; i++) {
            float x = widen(g[i]);
            h[n * F + i] = narrow(x * sigmoid(x) * widen(u[i]));
        }
    }
}

void swiglu_bwd(uint16_t *dgu, const uint16_t *dh, const uint16_t *gu, int64_t N, int64_t F)
{
    #pragma omp parallel for
    for (int64_t n = 0; n < N; n++) {
        const uint16_t *g = gu + n * 2 * F, *u = g + F;
        uint16_t *dg = dgu + n * 2 * F, *du = dg + F;
        for (int64_t i = 0; i < F; i++) {
            float x = widen(g[i]), s = sigmoid(x), d = widen(dh[n * F + i]);
            dg[i] = narrow(d * widen(u[i]) * s * (1.0f + x * (1.0f - s)));
            du[i] = narrow(d * x * s);
        }
    }
}

#define W 128                                              /* width of a delta-net head */
#define T_MAX 4096

/* s[t] = sum_j w[c][j] u[t - 3 + j] for the W channels of one head, y = silu(s) */
static inline void conv_row(float *s, const uint16_t *u, int64_t ld, int64_t t, const float (*w)[W])
{
    for (int i = 0; i < W; i++) s[i] = 0;
    for (int j = 0; j < 4; j++) {
        if (t - 3 + j < 0) continue;
        const uint16_t *r = u + (t - 3 + j) * ld;
        for (int i = 0; i < W; i++) s[i] += w[j][i] * widen(r[i]);
    }
}

/* u [B, T, ld], the first (2 Hk + Hv) * W channels of a row count -> q, k [B, Hk, T, W] (unit length, q scaled), v
 * [B, Hv, T, W]. w [C, 4]. One task per sequence and head: a head's slab stays in the second-level cache. */
void prep_fwd(uint16_t *q, uint16_t *k, uint16_t *v, const uint16_t *u, int64_t ld, const float *w, int64_t B,
              int64_t T, int64_t Hk, int64_t Hv)
{
    int64_t H = 2 * Hk + Hv;
    #pragma omp parallel for schedule(dynamic)
    for (int64_t task = 0; task < B * H; task++) {
        int64_t b = task / H, h = task % H;
        float wt[4][W];
        for (int i = 0; i < W; i++) for (int j = 0; j < 4; j++) wt[j][i] = w[(h * W + i) * 4 + j];
        uint16_t *o = h < Hk ? q + (b * Hk + h) * T * W
                             : h < 2 * Hk ? k + (b * Hk + h - Hk) * T * W : v + (b * Hv + h - 2 * Hk) * T * W;
        for (int64_t t = 0; t < T; t++) {
            float s[W], n = 0;
            conv_row(s, u + b * T * ld + h * W, ld, t, wt);
            for (int i = 0; i < W; i++) { s[i] *= sigmoid(s[i]); n += s[i] * s[i]; }
            n = h >= 2 * Hk ? 1.0f : 1.0f / sqrtf(n + 1e-6f);
            if (h < Hk) n *= 0.08838834764831845f;         /* 128^-0.5 */
            for (int i = 0; i < W; i++) o[t * W + i] = narrow(s[i] * n);
        }
    }
}

/* du [B, T, C] contiguous; dw [C, 4] */
void prep_bwd(uint16_t *du, float *dw, const uint16_t *dq, const uint16_t *dk, const uint16_t *dv, const uint16_t *u,
              int64_t ld, const float *w, int64_t B, int64_t T, int64_t Hk, int64_t Hv)
{
    int64_t H = 2 * Hk + Hv, C = H * W;
    memset(dw, 0, sizeof(float) * (size_t) C * 4);
    #pragma omp parallel for schedule(dynamic)
    for (int64_t task = 0; task < B * H; task++) {
        int64_t b = task / H, h = task % H;
        float wt[4][W], wd[4][W] = { { 0 } };
        for (int i = 0; i < W; i++) for (int j = 0; j < 4; j++) wt[j][i] = w[(h * W + i) * 4 + j];
        const uint16_t *g = h < Hk ? dq + (b * Hk + h) * T * W
                                   : h < 2 * Hk ? dk + (b * Hk + h - Hk) * T * W : dv + (b * Hv + h - 2 * Hk) * T * W;
        const uint16_t *ub = u + b * T * ld + h * W;
        float ring[4][W] = { { 0 } };                      /* gradients of s for the rows t..t+3, slot row & 3 */
        for (int64_t t = T - 1; t >= 0; t--) {             /* downwards: du[t] needs the rows t..t+3 */
            float s[W], y[W], d[W], sg[W], n = 0, dot = 0;
            conv_row(s, ub, ld, t, wt);
            for (int i = 0; i < W; i++) {
                sg[i] = sigmoid(s[i]); y[i] = s[i] * sg[i]; d[i] = widen(g[t * W + i]);
                n += y[i] * y[i]; dot += d[i] * y[i];
            }
            if (h < 2 * Hk) {                              /* y / |y|: gradient (d - y (d.y) / n^2) / n */
                float r = 1.0f / sqrtf(n + 1e-6f), c = h < Hk ? 0.08838834764831845f : 1.0f;
                for (int i = 0; i < W; i++) d[i] = c * r * (d[i] - y[i] * dot * r * r);
            }
            float *z = ring[t & 3];
            for (int i = 0; i < W; i++) z[i] = d[i] * sg[i] * (1.0f + s[i] * (1.0f - sg[i]));
            for (int j = 0; j < 4; j++) {
                if (t - 3 + j < 0) continue;
                const uint16_t *r = ub + (t - 3 + j) * ld;
                for (int i = 0; i < W; i++) wd[j][i] += z[i] * widen(r[i]);
            }
            float a[W] = { 0 };                            /* row t feeds s of the rows t + 3 - j by tap j */
            for (int j = 0; j < 4; j++) {
                if (t + 3 - j >= T) continue;
                const float *x = ring[(t + 3 - j) & 3];
                for (int i = 0; i < W; i++) a[i] += wt[j][i] * x[i];
            }
            uint16_t *o = du + (b * T + t) * C + h * W;
            for (int i = 0; i < W; i++) o[i] = narrow(a[i]);
        }
        #pragma omp critical
        for (int i = 0; i < W; i++) for (int j = 0; j < 4; j++) dw[(h * W + i) * 4 + j] += wd[j][i];
    }
}

/* o [B, H, T, W] bf16, z rows of stride ld at [B, T, H W] -> y [B, T, H W] = rms(o) * w * silu(z) */
void gate_norm_fwd(uint16_t *y, float *rstd, const uint16_t *o, const uint16_t *z, int64_t ld, const float *w,
                   float eps, int64_t B, int64_t T, int64_t H)
{
    #pragma omp parallel for
    for (int64_t n = 0; n < B * T; n++) {
        int64_t b = n / T, t = n % T;
        for (int64_t h = 0; h < H; h++) {
            const uint16_t *x = o + ((b * H + h) * T + t) * W, *g = z + n * ld + h * W;
            float s = 0;
            for (int i = 0; i < W; i++) s += widen(x[i]) * widen(x[i]);
            float r = 1.0f / sqrtf(s / W + eps);
            rstd[n * H + h] = r;
            for (int i = 0; i < W; i++) {
                float gi = widen(g[i]);
                y[(n * H + h) * W + i] = narrow(widen(x[i]) * r * w[i] * gi * sigmoid(gi));
            }
        }
    }
}

/* dz [B, T, H W] contiguous, do_ as o; dw zero on entry */
void gate_norm_bwd(uint16_t *do_, uint16_t *dz, float *dw, const uint16_t *dy, const uint16_t *o, const uint16_t *z,
                   int64_t ld, const float *rstd, const float *w, int64_t B, int64_t T, int64_t H)
{
    #pragma omp parallel
    {
        float acc[W] = { 0 };
        #pragma omp for
        for (int64_t n = 0; n < B * T; n++) {
            int64_t b = n / T, t = n % T;
            for (int64_t h = 0; h < H; h++) {
                int64_t at = ((b * H + h) * T + t) * W, to = (n * H + h) * W;
                const uint16_t *x = o + at, *g = z + n * ld + h * W, *d = dy + to;
                float r = rstd[n * H + h], s = 0, gy[W];
                for (int i = 0; i < W; i++) {
                    float gi = widen(g[i]), sg = sigmoid(gi), xh = widen(x[i]) * r, di = widen(d[i]);
                    gy[i] = di * gi * sg;                  /* gradient of rms(o) * w */
                    acc[i] += gy[i] * xh;
                    dz[to + i] = narrow(di * xh * w[i] * sg * (1.0f + gi * (1.0f - sg)));
                    gy[i] *= w[i];
                    s += gy[i] * xh;
                }
                s /= W;
                for (int i = 0; i < W; i++) do_[at + i] = narrow(r * (gy[i] - widen(x[i]) * r * s));
            }
        }
        #pragma omp critical
        for (int i = 0; i < W; i++) dw[i] += acc[i];
    }
}

/* logits [N, V] become (softmax - onehot) * scale in place; loss[n] = -log p(label) */
void cross_entropy(float *loss, uint16_t *logits, const int64_t *label, float scale, int64_t N, int64_t V)
{
    #pragma omp parallel for
    for (int64_t n = 0; n < N; n++) {
        uint16_t *x = logits + n * V;
        float m = -1e30f, s = 0;
        for (int64_t i = 0; i < V; i++) { float f = widen(x[i]); m = f > m ? f : m; }
        for (int64_t i = 0; i < V; i++) s += expf(widen(x[i]) - m);
        loss[n] = logf(s) + m - widen(x[label[n]]);
        float c = scale / s;
        uint16_t keep = x[label[n]];
        for (int64_t i = 0; i < V; i++) x[i] = narrow(expf(widen(x[i]) - m) * c);
        x[label[n]] = narrow(expf(widen(keep) - m) * c - scale);
    }
}
