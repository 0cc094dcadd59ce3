/* TQ3_0, the three-bit type of keys and values: a group of 128 values is rotated by a fixed orthogonal matrix (signs,
 * Walsh-Hadamard, signs), after which any input looks Gaussian, and each value is rounded to one of eight levels,
 * relative to the group's norm.
 *
 *     block of 32:  f16 norm | 8 bytes: low two bits of 32 codes | 4 bytes: their high bits
 *                   four blocks share one norm
 *
 * The product of rotated vectors equals that of the vectors, so attention rotates the query and reads keys as stored;
 * values are rotated back once, after the sum. */
#include <math.h>

#include "format/quant.h"

enum { TQ3_GROUP = 128 };

const float quant_tq3[8] = { -0.190685f, -0.117832f, -0.065717f, -0.021460f, 0.021460f, 0.065717f, 0.117832f,
                             0.190685f };
/* below it: the lower code */
static const float point[7] = { -0.154259f, -0.091775f, -0.043589f, 0, 0.043589f, 0.091775f, 0.154259f };
static const uint32_t sign1[4] = { 0xE46A0359, 0x42F85949, 0xA4C63BBB, 0x49F250A9 },
                      sign2[4] = { 0x16ACEE90, 0x3F628FDC, 0xB7A5357A, 0xBEA56562 };

static void change_signs(float *x, const uint32_t sign[4])
{
    for (int i = 0; i < TQ3_GROUP; i++)
        if (sign[i / 32] >> i % 32 & 1) x[i] = -x[i];
}

static void turn(float *x, const uint32_t first[4], const uint32_t last[4])
{
    change_signs(x, first);
    for (int h = 1; h < TQ3_GROUP; h *= 2)
        for (int i = 0; i < TQ3_GROUP; i += 2 * h)
            for (int j = i; j < i + h; j++) {
                float a = x[j], b = x[j + h];
                x[j] = a + b;
                x[j + h] = a - b;
            }
    for (int i = 0; i < TQ3_GROUP; i++) x[i] *= 0.08838834764831845f;
    change_signs(x, last);
}

void quant_rotate(float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i += TQ3_GROUP) turn(x + i, sign1, sign2);
}

void quant_unrotate(float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i += TQ3_GROUP) turn(x + i, sign2, sign1);
}

void quant_encode_tq3(uint8_t *b, const float *x)
{
    double power = 0, codes = 0;
    float y[TQ3_GROUP];
    uint8_t code[TQ3_GROUP];
    for (int i = 0; i < TQ3_GROUP; i++) power += (double) x[i] * (double) x[i];
    double norm = sqrt(power);
    for (int i = 0; i < TQ3_GROUP; i++) y[i] = norm > 1e-10 ? (float) ((double) x[i] / norm) : 0;
    quant_rotate(y, TQ3_GROUP);
    for (int i = 0; i < TQ3_GROUP; i++) {
        code[i] = 0;
        while (code[i] < 7 && y[i] >= point[code[i]]) code[i]++;
        codes += (double) quant_tq3[code[i]] * (double) quant_tq3[code[i]];
    }
    double scale = norm / sqrt(codes);             /* so that the norm is preserved */
    uint16_t half = half_from_float((float) (scale < 65504 ? scale : 65504));
    for (int k = 0; k < 4; k++, b += 14) {
        const uint8_t *c = code + 32 * k;
        b[0] = (uint8_t) half;
        b[1] = (uint8_t) (half >> 8);
        for (int j = 0; j < 8; j++)
            b[2 + j] = (uint8_t) ((c[4 * j] & 3) | (c[4 * j + 1] & 3) << 2 | (c[4 * j + 2] & 3) << 4 |
                                  (c[4 * j + 3] & 3) << 6);
        for (int j = 0; j < 4; j++) {
            int high = 0;
            for (int i = 0; i < 8; i++) high |= (c[8 * j + i] >> 2) << i;
            b[10 + j] = (uint8_t) high;
        }
    }
}

void quant_decode_tq3_turned(float *y, const uint8_t *b)
{
    float norm = half_to_float((uint16_t) (b[0] | b[1] << 8));
    for (int j = 0; j < 32; j++)
        y[j] = quant_tq3[(b[2 + j / 4] >> 2 * (j % 4) & 3) | (b[10 + j / 8] >> j % 8 & 1) << 2] * norm;
}

void quant_decode_tq3(float *y, const uint8_t *b)
{
    for (int k = 0; k < 4; k++) quant_decode_tq3_turned(y + 32 * k, b + 14 * k);
    quant_unrotate(y, TQ3_GROUP);
}
