/* ratoon doctor: does this drafter fit this target? Shapes are checked by loading the pair; then the drafter guesses a text that the
 * target itself made, block by block, always told the true beginning. A drafter that was trained for the target finds the first token
 * of a block about five times in six; one with wrong taps, rotations or norms hardly ever does. */
#include <stdlib.h>
#include <string.h>

#include "programs/generate.h"

enum { TEXT_TOKENS = 64, GUESSES = 64 };

/* What a chat model and a base model both have seen. */
static const char *const openings[] = {
    "class Counter:\n    \"\"\"A counter with a name and a list of items.\"\"\"\n\n    def __init__(self, name):\n        self.name = name\n"
    "        self.items = []\n\n    def add(self, item):\n",
    "The history of the lighthouse begins long before the age of electricity. The first ones were",
    "Question: A farmer has 12 cows and buys 7 more. Then he sells 5. How many cows does he have?\nAnswer:",
};
enum { OPENINGS = 3 };

typedef struct {
    Options  o;
    Program  p;
    int32_t  block, n_vocab;
    const int32_t *text; int32_t n_text, anchor;   /* of the block under way */
    int64_t  guessed, hit, first_guessed, first_hit;
} Doctor;

static void on_row(void *ud, int32_t i, const float *logits, const float *taps)
{
    Doctor *d = ud;
    int32_t at = d->anchor + i, best = 0;
    (void) taps;
    if (i == 0 || at >= d->n_text) return;         /* row 0 stands for the anchor, which is known */
    for (int32_t k = 1; k < d->n_vocab; k++)
        if (logits[k] > logits[best]) best = k;
    bool hit = best == d->text[at];
    d->guessed++;
    d->hit += hit;
    d->first_guessed += i == 1;
    d->first_hit += i == 1 && hit;
}

/* Blocks that start at every half block from `from` on. */
static bool guess(Doctor *d, const int32_t *text, int32_t n, int32_t from)
{
    d->text = text;
    d->n_text = n;
    for (d->anchor = from; d->anchor + 1 < n; d->anchor += d->block / 2 > 0 ? d->block / 2 : 1) {
        rt_status st = rt_draft_rows(d->p.step, d->p.session, text, (size_t) d->anchor, text[d->anchor], on_row, d);
        if (st != RT_OK) return complain(&d->o, "%s", st == RT_ECANCEL ? "interrupted" : rt_step_error(d->p.step)) == 0;
    }
    return true;
}

/* Text that the target continues greedily, without a drafter. */
static bool own_text(Doctor *d, const char *opening)
{
    rt_error e = { 0 };
    rt_step *plain = NULL;
    Generated out = { 0 };
    int32_t *prompt = NULL, *text = NULL, n = 0;
    bool good = true;
    if (rt_has_tokenizer(d->p.engine)) {
        good = text_tokens(&d->p, &prompt, &n, opening, strlen(opening), false);
    } else {
        prompt = malloc(sizeof *prompt * 16);
        for (n = 0; prompt && n < 16; n++) prompt[n] = (n * 7 + 3) % d->n_vocab;
    }
    if (good) text = malloc(sizeof *text * ((size_t) n + TEXT_TOKENS));
    if (good && (!prompt || !text)) good = complain(&d->o, "out of memory") == 0;
    if (good && rt_step_new(&plain, d->p.engine, &(rt_step_options) { .budget = BUDGET_OPTION_PLAIN }, &e) != RT_OK) good = complain(&d->o, "%s", e.text) == 0;
    if (good) {
        memcpy(text, prompt, sizeof *text * (size_t) n);
        out.token = text + n;
        good = generate(&out, &d->p, plain, d->p.session, prompt, n, &(rt_sampling) { .max_tokens = TEXT_TOKENS }, false);
    }
    rt_step_free(plain);
    if (good) good = guess(d, text, n + out.n, n - 1);
    free(prompt);
    free(text);
    return good;
}

static bool given_text(Doctor *d)
{
    char *s = NULL;
    size_t len = 0;
    int32_t *ids = NULL, n = 0;
    bool good = text_read(&d->o, &s, &len, d->o.text) && text_tokens(&d->p, &ids, &n, s, len, false);
    if (good && n > 3 * TEXT_TOKENS) n = 3 * TEXT_TOKENS;
    if (good) good = n >= TEXT_TOKENS / 2 ? guess(d, ids, n, n / 4) : complain(&d->o, "%s: %d tokens, expected at least %d", d->o.text, n, TEXT_TOKENS / 2) == 0;
    free(s);
    free(ids);
    return good;
}

static double share(int64_t part, int64_t all) { return all ? (double) part / (double) all : 0; }

/* A matched pair shows about 0.6 over all positions and 0.85 at the first. Small or lightly trained drafters show less, broken ones
 * (taps one layer off, another rotary base) below 0.3 at the first. */
static const char *verdict(const Doctor *d)
{
    double first = share(d->first_hit, d->first_guessed);
    if (first >= 0.3) return "fits";
    return "suspicious: it loads, but does not guess this target's text (trained for another model, or are its tap layers off by one?)";
}

static const char *fact(const Doctor *d, const char *key, char out[256])
{
    out[0] = 0;
    return rt_property(d->p.engine, key, out, 256) ? out : "-";
}

static int report(Doctor *d)
{
    static const struct { const char *label, *model, *draft; } rows[] = {
        { "file", "model", "draft" }, { "architecture", "model.arch", "draft.arch" }, { "layers", "model.layers", "draft.layers" },
        { "hidden size", "model.dim", "draft.dim" }, { "vocabulary", "model.vocab", "draft.vocab" }, { "tokenizer", "model.tokenizer", "draft.tokenizer" },
        { "tap layers", "model.taps", "draft.taps" }, { "fc", NULL, "draft.fc" }, { "mask id", NULL, "draft.mask" }, { "block", NULL, "draft.block" },
    };
    char a[256], b[256];
    double all = share(d->hit, d->guessed), first = share(d->first_hit, d->first_guessed);
    if (d->o.json) {
        json_t *j = json_pack("{s:I s:f s:f s:s}", "guessed", (json_int_t) d->guessed, "top1", all, "top1_first", first, "verdict", first >= 0.3 ? "fits" : "suspicious");
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            const char *m = rows[i].model ? fact(d, rows[i].model, a) : "", *f = fact(d, rows[i].draft, b);
            if (rows[i].model) json_object_set_new(j, rows[i].model, json_text(m, strlen(m)));
            json_object_set_new(j, rows[i].draft, json_text(f, strlen(f)));
        }
        return json_print(&d->o, j) ? EXIT_FINE : EXIT_FAILED;
    }
    printf("%-14s %-34s %s\n", "", "target", "drafter");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *m = rows[i].model ? fact(d, rows[i].model, a) : "";
        printf("%-14s %-34s %s\n", rows[i].label, i == 0 ? base_name(m) : m, i == 0 ? base_name(fact(d, rows[i].draft, b)) : fact(d, rows[i].draft, b));
    }
    printf("\n%lld guesses on %s: %.1f %% right, %.1f %% at the first position of a block\n", (long long) d->guessed,
           d->o.text ? "the given text" : "text that the target made", 100 * all, 100 * first);
    printf("verdict: %s\n", verdict(d));
    return output_done(&d->o);
}

static int examine(Doctor *d)
{
    if (!d->p.files.draft[0]) return complain(&d->o, "there is no drafter to examine; give one with -d");
    d->block = (int32_t) property(d->p.engine, "draft.block");
    d->n_vocab = (int32_t) property(d->p.engine, "model.vocab");
    if (d->o.text) {
        if (!given_text(d)) return interrupts ? EXIT_INTERRUPTED : EXIT_FAILED;
    } else {
        for (int32_t i = 0; i < OPENINGS && (i == 0 || d->guessed < 3 * GUESSES); i++)
            if (!own_text(d, openings[i])) return interrupts ? EXIT_INTERRUPTED : EXIT_FAILED;
    }
    return report(d);
}

int cmd_doctor(int argc, char **argv)
{
    Doctor d = { 0 };
    int status = EXIT_FAILED;
    if (!options_read(&d.o, argc, argv, &status)) return status;
    if (!d.o.ctx) d.o.ctx = 512;
    status = EXIT_FAILED;
    if (program_open(&d.p, &d.o, WITH_DRAFTER | WITH_SESSION, NULL, 0)) status = examine(&d);
    else if (interrupts) status = EXIT_INTERRUPTED;
    program_close(&d.p);
    return status;
}
