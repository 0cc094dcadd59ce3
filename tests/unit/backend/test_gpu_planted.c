/* test_gpu_planted.c - a test of the tests: the emulated GPU finds every error that is planted in
 * tests/gpu/planted.cu, and none in the kernel without one. Each kernel runs in a process of its own, in every order of
 * threads and blocks. */
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "gpu/planted.h"
#include "gpu_device.h"
#include "rows_helper.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

enum { BLOCKS = 3, STEPS = 10, ORDERS = 8, OTHER_BITS = 7, NOT_OPENED = 8 };       /* AddressSanitizer ends with 1 */

static int8_t a[BLOCKS][STEPS][16][32], b[STEPS][32][8];
static int32_t weight[BLOCKS] = { 3, -2, 5 }, want[BLOCKS][128];
static int32_t ids[2 * PLANT_ROWS], want_sum[PLANT_ROWS][PLANT_COLS];
static uint32_t a_words[BLOCKS][STEPS][4][32], b_words[STEPS][2][32];

/* Words of the fragments as gpu.h describes them, and the products as the kernel lays them out: that of lane l, word i
 * is at 4 l + i. */
static void make(void)
{
    uint64_t seed = 4;
    for (size_t i = 0; i < sizeof a; i++) (&a[0][0][0][0])[i] = (int8_t) (h_pick(&seed, 256) - 128);
    for (size_t i = 0; i < sizeof b; i++) (&b[0][0][0])[i] = (int8_t) (h_pick(&seed, 256) - 128);
    for (int n = 0; n < BLOCKS; n++)
        for (int s = 0; s < STEPS; s++)
            for (int lane = 0; lane < 32; lane++) {
                const int g = lane / 4, t = lane % 4;
                for (int i = 0; i < 4; i++)
                    memcpy(&a_words[n][s][i][lane], &a[n][s][g + 8 * (i & 1)][4 * t + 8 * (i & 2)], 4);
                for (int i = 0; i < 2; i++)
                    for (int k = 0; k < 4; k++) ((int8_t *) &b_words[s][i][lane])[k] = b[s][4 * t + k + 16 * i][g];
            }
    for (int n = 0; n < BLOCKS; n++)
        for (int at = 0; at < 128; at++) {
            const int lane = at / 4, row = lane / 4 + (at & 2 ? 8 : 0), col = 2 * (lane % 4) + (at & 1);
            int32_t sum = 0;
            for (int s = 0; s < STEPS; s++)
                for (int k = 0; k < 32; k++) sum += a[n][s][row][k] * b[s][k][col];
            want[n][at] = sum * weight[n];
        }
    for (int pair = 0; pair < 2 * PLANT_ROWS; pair++) {
        ids[pair] = (pair / 2 + pair) % BLOCKS;
        for (int c = 0; c < PLANT_COLS; c++)
            want_sum[pair / 2][PLANT_COLS - 1 - c] += (pair % 2 ? -1 : 3) * weight[ids[pair]] * (100 * pair + c);
    }
}

/* In the child. lists: the kernel is one of PLANTED_LISTS. */
static int run(const char *kernel, bool lists)
{
    GpuDevice gpu;
    Error why = { 0 };
    int32_t got[BLOCKS][128], sum[PLANT_ROWS][PLANT_COLS], zero[2 * PLANT_ROWS] = { 0 };
    if (!gpu_open(&gpu, "planted", &why)) return NOT_OPENED;
    PlantArgs args = { .a = gpu_memory(&gpu, sizeof a_words, a_words), .b = gpu_memory(&gpu, sizeof b_words, b_words),
                       .weight = gpu_memory(&gpu, sizeof weight, weight),
                       .written = gpu_memory(&gpu, 4 * sizeof *zero, zero),
                       .out = gpu_memory(&gpu, sizeof got, NULL), .steps = STEPS,
                       .ids = gpu_memory(&gpu, sizeof ids, ids),
                       .each = gpu_memory(&gpu, 2 * sizeof sum, NULL),
                       .ticket = gpu_memory(&gpu, sizeof zero, zero), .sum = gpu_memory(&gpu, sizeof sum, NULL) };
    gpu_launch(&gpu, "plant_before", 1, 1, 32, 0, &args);
    gpu_launch(&gpu, kernel, BLOCKS, 1, 64, 0, &args);
    gpu_fetch(&gpu, got, args.out, sizeof got);
    gpu_fetch(&gpu, sum, args.sum, sizeof sum);
    const bool same = lists ? memcmp(sum, want_sum, sizeof sum) == 0 : memcmp(got, want, sizeof got) == 0;
    return same ? 0 : OTHER_BITS;
}

/* In the child: one pointer of the sound kernel is of another card than the one that runs it; PINNED: of main memory
 * that was pinned for that one. */
typedef enum { READS_MEMORY, WRITES_MEMORY, READS_PINNED, NOTHING, MIX_UPS } MixUp;
static int run_mixed_up(MixUp what)
{
    GpuDevice at[2];
    Error why = { 0 };
    void *theirs[3];
    int32_t got[BLOCKS][128];
    gpu_emulated()->devices = 2;
    for (int i = 0; i < 2; i++) if (!gpu_open_card(&at[i], i, "planted", &why)) return NOT_OPENED;
    const GpuDevice *mine = &at[0], *other = &at[1];
    theirs[0] = gpu_memory(other, sizeof weight, weight);
    theirs[1] = gpu_memory(other, sizeof got, NULL);
    gpu_must(other, other->cu->cuMemAllocHost_v2(&theirs[2], sizeof weight), "memory");
    memcpy(theirs[2], weight, sizeof weight);
    gpu_must(mine, mine->cu->cuCtxSetCurrent(mine->context), "context");
    int32_t *out = gpu_memory(mine, sizeof got, NULL);
    PlantArgs args = { .a = gpu_memory(mine, sizeof a_words, a_words), .b = gpu_memory(mine, sizeof b_words, b_words),
                       .weight = gpu_memory(mine, sizeof weight, weight), .out = out, .steps = STEPS };
    if (what == READS_MEMORY) args.weight = theirs[0];
    if (what == WRITES_MEMORY) args.out = theirs[1];
    if (what == READS_PINNED) args.weight = theirs[2];
    gpu_launch(mine, "plant_sound", BLOCKS, 1, 64, 0, &args);
    gpu_fetch(mine, got, out, sizeof got);
    return memcmp(got, want, sizeof got) == 0 ? 0 : OTHER_BITS;
}

/* Returns how it ended; said: what it wrote. kernel NULL: mixed up, which order says. */
static int child(const char *kernel, bool lists, int order, char *said, size_t cap)
{
    int ends[2], status = 0;
    assert_int_equal(pipe(ends), 0);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        const char number[2] = { (char) ('0' + order), 0 };
        setrlimit(RLIMIT_CORE, &(struct rlimit) { 0, 0 });
        signal(SIGABRT, SIG_DFL);                  /* and not cmocka's, which goes on with the next test */
        signal(SIGSEGV, SIG_DFL);
        dup2(ends[1], 1);
        dup2(ends[1], 2);
        setenv("RATOON_EMU_ORDER", number, 1);
        _exit(kernel ? run(kernel, lists) : run_mixed_up((MixUp) order));
    }
    close(ends[1]);
    size_t n = 0;
    for (ssize_t got; (got = read(ends[0], said + n, cap - 1 - n)) > 0;) n += (size_t) got;
    said[n] = 0;
    close(ends[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static void check(const char *name, const char *found, bool lists)
{
    char kernel[64], said[4096];
    int others = 0, stopped = 0;
    const bool sound = strncmp(name, "sound", 5) == 0 || (found && strcmp(found, UNORDERED) == 0);
    snprintf(kernel, sizeof kernel, "plant_%s", name);
    for (int order = 0; order < ORDERS; order++) {
        const int end = child(kernel, lists, order, said, sizeof said);
        if (end == NOT_OPENED) fail_msg("%s: %s", name, said);
        if (sound) {
            if (end != 0) fail_msg("%s, order %d: %d, %s", name, order, end, said);
            continue;
        }
        if (end == OTHER_BITS) others++;
        else if (end != 0 && !found) stopped++;
        else if (end != 0 && found && (strstr(said, found) || strstr(said, "AddressSanitizer"))) stopped++;
        else if (end != 0) fail_msg("%s: expected '%s', not: %s", name, found, said);
    }
    if (sound) return;
    printf("%-22s stopped in %d, other bits in %d of %d orders\n", name, stopped, others, ORDERS);
    if (found ? stopped != ORDERS : stopped + others == 0) fail_msg("%s: not found", name);
}

static void planted(void **state)
{
    (void) state;
    if (!gpu_emulated()) skip();                           /* a card would only be spoiled by these */
    make();
#define X(name, found) check(#name, found, false);
    PLANTED(X)
#undef X
#define X(name, found) check(#name, found, true);
    PLANTED_LISTS(X)
#undef X
}

static void mixed_up(void **state)
{
    (void) state;
    static const char *const found[MIX_UPS] = { [READS_MEMORY] = "another card's memory",
                                                [WRITES_MEMORY] = "another card's memory",
                                                [READS_PINNED] = "no address of device memory" };
    char said[4096];
    if (!gpu_emulated()) skip();
    make();
    for (int what = 0; what < MIX_UPS; what++) {
        const int end = child(NULL, false, what, said, sizeof said);
        if (found[what] ? end == 0 || !strstr(said, found[what]) : end != 0)
            fail_msg("%d: ended with %d, expected '%s', not: %s", what, end, found[what] ? found[what] : "", said);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(planted), cmocka_unit_test(mixed_up) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
