/* random_clock.h - in place of base/clock.h: a clock by which nothing takes twice as long. Code reads it to learn what
 * pays, so a test that passes by it does not depend on how fast the machine is or how busy. Given to the compiler with
 * -include for a whole build (make test-clock). CLOCK_SEED=N repeats a run's figures as far as its threads allow.
 *
 * Between two readings passes what really passed, times 1/5 to 5, and at every eighth reading up to 20 ms more. Of four
 * seeds, one adds stalls of up to a second, one gives readings in ticks of 10 ms (no two are the same, as no two of a
 * kernel are), and one gives time that has nothing to do with the real one. */
#ifndef RATOON_BASE_CLOCK_H
#define RATOON_BASE_CLOCK_H

#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

enum { CLOCK_UNEVEN, CLOCK_STALLS, CLOCK_TICKS, CLOCK_ALONE };

/* One for the program, in whatever objects this is. */
typedef struct { pthread_mutex_t lock; uint64_t seed, state; double real, shown, readings; } RandomClock;
__attribute__((weak)) RandomClock random_clock = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* 0 to 1 (xorshift). */
static inline double random_clock_draw(RandomClock *c)
{
    c->state ^= c->state << 13;
    c->state ^= c->state >> 7;
    c->state ^= c->state << 17;
    return (double) (c->state >> 11) * 0x1p-53;
}

static inline void random_clock_start(RandomClock *c, const struct timespec *t, double real)
{
    const char *given = getenv("CLOCK_SEED");
    c->seed = given ? strtoull(given, NULL, 10) : (uint64_t) t->tv_nsec;
    c->state = (c->seed + 1) * 0x9E3779B97F4A7C15u;
    for (int i = 0; i < 8; i++) random_clock_draw(c);
    c->real = real;
}

static inline double seconds_now(void)
{
    RandomClock *c = &random_clock;
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    double real = (double) t.tv_sec + 1e-9 * (double) t.tv_nsec;
    pthread_mutex_lock(&c->lock);
    if (c->state == 0) random_clock_start(c, &t, real);
    double passed = real > c->real ? real - c->real : 0;
    c->real = real > c->real ? real : c->real;
    const int kind = (int) (c->seed % 4);
    c->shown += kind == CLOCK_ALONE ? 0.02 * random_clock_draw(c) : passed * pow(5, 2 * random_clock_draw(c) - 1);
    if (random_clock_draw(c) < 0.125) c->shown += 0.02 * random_clock_draw(c);
    if (kind == CLOCK_STALLS && random_clock_draw(c) < 0.02) c->shown += random_clock_draw(c);
    double shown = (kind == CLOCK_TICKS ? 0.01 * floor(c->shown / 0.01) : c->shown) + 2e-7 * ++c->readings;
    pthread_mutex_unlock(&c->lock);
    return shown;
}

#endif
