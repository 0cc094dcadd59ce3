#include "decode/logprob.h"

#include "base/mathd.h"

void logprob_row(Logprob *out, const float *logits, int32_t vocab, int32_t token, int32_t top)
{
    float max = logits[0];
    double sum = 0;
    *out = (Logprob) { 0 };
    for (int32_t i = 1; i < vocab; i++)
        if (logits[i] > max) max = logits[i];
    for (int32_t i = 0; i < vocab; i++) sum += mathd_exp((double) logits[i] - (double) max);
    double base = (double) max + mathd_log(sum);
    out->logprob = (float) ((double) logits[token] - base);
    if (top > vocab) top = vocab;
    float least = 0;                               /* logit of the last entry of a full list */
    for (int32_t i = 0; i < vocab && top > 0; i++) {
        if (out->n == top && !(logits[i] > least)) continue;
        int32_t at = out->n < top ? out->n++ : top - 1;
        while (at > 0 && logits[i] > logits[out->top[at - 1].id]) out->top[at] = out->top[at - 1], at--;
        out->top[at].id = i;
        least = logits[out->top[out->n - 1].id];
    }
    for (int32_t i = 0; i < out->n; i++) out->top[i].logprob = (float) ((double) logits[out->top[i].id] - base);
}
