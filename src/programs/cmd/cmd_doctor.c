/* ratoon doctor: does my model run here, how fast, and does its drafter match? What is expected stands beside what is
 * measured: memory, the time of passes, and how often the drafter guesses right in text that the model writes. */
#include <stdlib.h>
#include <string.h>

#include "programs/advice.h"
#include "programs/cards.h"
#include "programs/estimate.h"
#include "programs/generate.h"

enum { TEXT_TOKENS = 64, TEXT_LEAST = 32, PLAIN_PASSES = 5, WIDTHS = 6, CARDS = 16 };

/* Openings that both chat and base models have seen. */
static const char *const openings[] = {
    "class Counter:\n    \"\"\"A counter with a name and a list of items.\"\"\"\n\n    def __init__(self, name):\n"
    "        self.name = name\n"
    "        self.items = []\n\n    def add(self, item):\n",
    "The history of the lighthouse begins long before the age of electricity. The first ones were",
    "Question: A farmer has 12 cows and buys 7 more. Then he sells 5. How many cows does he have?\nAnswer:",
};
enum { OPENINGS = 3 };

typedef struct {
    Options  o;
    Program  p;
    Memory   memory;
    rt_peaks peaks;
    rt_card  used;                                 /* the GPU by whose clocks they are known; name "": measured */
    char     machine[160]; int32_t threads;
    rt_card  card[CARDS]; int32_t n_cards;
    rt_error no_card;                              /* why there is none */
    bool     left_gpu;                             /* it was asked for, and cannot be used */
    ExpertTier tier;                               /* where memory holds only some of a mixture's experts */
    double   expected, plain, drafted;             /* tokens per second */
    Costs    costs;
    int32_t  block, n_vocab, rows;                 /* rows: the best number for a pass */
    const int32_t *text; int32_t n_text, anchor;   /* that the drafter is to guess */
    bool     right;                                /* all guesses of this block so far */
    int64_t  tried[ROWS_MOST], held[ROWS_MOST];    /* blocks that could have, and had, d + 1 right guesses */
    int64_t  drafts;
    double   draft_ms;                             /* of one, the least mean of a text; 0: not measured */
    Reach    reach;
} Doctor;

/* ---- how well the drafter guesses ---- */

static void on_row(void *ud, int32_t i, const float *logits, const float *taps)
{
    Doctor *d = ud;
    int32_t at = d->anchor + i, best = 0;
    (void) taps;
    if (i == 0) d->right = true;                   /* row 0 is the anchor, which is known */
    if (i == 0 || i > ROWS_MOST || at >= d->n_text) return;
    for (int32_t k = 1; k < d->n_vocab; k++)
        if (logits[k] > logits[best]) best = k;
    d->right &= best == d->text[at];
    d->tried[i - 1]++;
    d->held[i - 1] += d->right;
}

/* Guesses a given text in blocks that start every half block, always after the true beginning. */
static bool guess(Doctor *d, const int32_t *text, int32_t n, int32_t from)
{
    d->text = text;
    d->n_text = n;
    for (d->anchor = from; d->anchor + 1 < n; d->anchor += d->block / 2 > 0 ? d->block / 2 : 1) {
        rt_status st = rt_draft_rows(d->p.step, d->p.session, text, (size_t) d->anchor, text[d->anchor], on_row, d);
        if (st != RT_OK) return complain(&d->o, "%s", st == RT_ECANCEL ? "interrupted" : rt_step_error(d->p.step)) == 0;
        d->drafts++;
    }
    return true;
}

static bool given_text(Doctor *d)
{
    char *s = NULL;
    size_t len = 0;
    int32_t *ids = NULL, n = 0;
    bool good = text_read(&d->o, &s, &len, d->o.text) && text_tokens(&d->p, &ids, &n, s, len, false);
    if (good && n > 3 * TEXT_TOKENS) n = 3 * TEXT_TOKENS;
    if (good)
        good = n >= TEXT_LEAST ? guess(d, ids, n, n / 4) : complain(&d->o, "%s: %d tokens, expected at least %d",
                                                                    d->o.text, n, TEXT_LEAST) == 0;
    free(s);
    free(ids);
    return good;
}

static bool opening_tokens(Doctor *d, int32_t **out, int32_t *n, const char *opening)
{
    if (rt_has_tokenizer(d->p.engine)) return text_tokens(&d->p, out, n, opening, strlen(opening), false);
    *out = malloc(sizeof **out * 16);
    for (*n = 0; *out && *n < 16; ++*n) (*out)[*n] = (*n * 7 + 3) % d->n_vocab;
    return *out || complain(&d->o, "out of memory") == 0;
}

static void count(Doctor *d, const Generated *g)
{
    for (int32_t i = 0; i + 1 < d->block && i < ROWS_MOST; i++) {
        d->tried[i] += g->drafting;
        d->held[i] += g->reached[i];
    }
    d->drafts += g->drafting;
    const double ms = g->drafting ? 1e3 * (g->stats.decode_s - g->stats.pass_s) / (double) g->drafting : 0;
    if (ms > 0 && (d->draft_ms == 0 || ms < d->draft_ms)) d->draft_ms = ms;
}

/* The model continues an opening, greedily, with every block of the drafter verified as a chain. */
static bool own_text(Doctor *d, rt_step *step, const char *opening)
{
    int32_t *prompt = NULL, n = 0, token[TEXT_TOKENS];
    Generated out = { .token = token };
    bool good = opening_tokens(d, &prompt, &n, opening) &&
                generate(&out, &d->p, step, d->p.session, prompt, n, &RT_SAMPLING(.max_tokens = TEXT_TOKENS), false);
    if (good) count(d, &out);
    free(prompt);
    return good;
}

static bool own_texts(Doctor *d)
{
    rt_error e = { 0 };
    rt_step *step;
    const int32_t nodes = d->block - 1 < ROWS_MOST - 1 ? d->block - 1 : ROWS_MOST - 1;
    bool good = rt_step_new(&step, d->p.engine, &RT_STEP_OPTIONS(.budget = nodes, .chain = true,
                                                                 .hooks = program_hooks(&d->p)), &e) == RT_OK;
    if (!good) complain(&d->o, "%s", e.text);
    for (int32_t i = 0; good && i < OPENINGS; i++) good = own_text(d, step, openings[i]);
    rt_step_free(step);
    return good;
}

/* ---- how long passes take: the fastest counts, since other load on the machine only adds time ---- */

static bool time_pass(Doctor *d, int32_t rows, int32_t repeats, double *out)
{
    double ms[PLAIN_PASSES];
    rt_status st = rt_time_pass(d->p.step, d->p.session, -1, rows, repeats, ms);
    if (st != RT_OK) return complain(&d->o, "%s", st == RT_ECANCEL ? "interrupted" : rt_step_error(d->p.step)) == 0;
    *out = ms[0];
    for (int32_t i = 1; i < repeats; i++) *out = ms[i] < *out ? ms[i] : *out;
    return true;
}

static bool time_passes(Doctor *d)
{
    int32_t rows[WIDTHS], n = 0;
    double ms[WIDTHS], warm;
    if (!time_pass(d, 1, 1, &warm) || !time_pass(d, 1, PLAIN_PASSES, &ms[n])) return false;
    rows[n++] = 1;
    for (int32_t r = 4; d->block > 1 && n < WIDTHS; r *= 2) {
        rows[n] = r < d->block ? r : d->block;
        if (!time_pass(d, rows[n], 2, &ms[n])) return false;
        if (rows[n++] == d->block) break;
    }
    costs_measured(&d->costs, rows, ms, n);
    d->plain = costs_plain(&d->costs);
    return true;
}

static bool examine_drafter(Doctor *d)
{
    if (!(d->o.text ? given_text(d) : own_texts(d))) return false;
    for (int32_t i = 0; i < ROWS_MOST; i++)
        d->reach.held[i] = d->tried[i] ? (double) d->held[i] / (double) d->tried[i] : 0;
    if (d->draft_ms > 0) d->costs.draft_ms = d->draft_ms;
    d->drafted = costs_drafted(&d->costs, &d->reach, &d->rows);
    return true;
}

/* ---- words ---- */

/* What the share of right first guesses says. Pairs that belong together have 0.84 to 0.98 in code and mathematics and
 * 0.53 to 0.81 in prose (DFlash2, published by position). With a drafter of the same architecture for another
 * checkpoint, or for the other thinking mode, accept lengths fall from 9.5 to between 2.7 and 3.9 (dflash issue 60);
 * with one of another model, or with taps that are off by a layer, only tokens that follow almost any text are right by
 * chance. */
typedef enum { MATCH, LOW, NONE } Judgement;
static Judgement judge(const Doctor *d)
{
    const double first = d->reach.held[0];
    return first >= 0.5 ? MATCH : first >= 0.1 ? LOW : NONE;
}

static const char *const judgement_name[] = { [MATCH] = "matches", [LOW] = "low", [NONE] = "none" };
static const char *const judgement_text[] = {
    [MATCH] = "the drafter matches this model",
    [LOW] = "the drafter guesses less than a matching one: it may be trained for another checkpoint, quantisation or "
            "thinking mode of this model, or for other texts",
    [NONE] = "the drafter guesses next to nothing: it belongs to another model, or its tap layers are wrong",
};

static bool fits(const Doctor *d) { return memory_fits(&d->memory); }
static bool loaded(const Doctor *d) { return d->p.engine != NULL; }
static bool drafts(const Doctor *d) { return loaded(d) && d->block > 1; }
/* It has no speed by the token, and no drafter. */
static bool denoises(const Doctor *d) { return d->memory.needs.canvas > 0; }

static const char *fact(const Doctor *d, const char *key, char out[256])
{
    out[0] = 0;
    return loaded(d) && rt_property(d->p.engine, key, out, 256) ? out : "-";
}

static const char *drafter_said(const Doctor *d)
{
    return strcmp(d->p.files.draft, "mtp") == 0 ? "the model's own MTP layer" : base_name(d->p.files.draft);
}

/* Of the processor; "": the last layers run on a GPU. */
static const char *level(const Doctor *d) { return d->memory.needs.gpu_layers ? "" : d->memory.needs.level; }

/* Rates and what is expected are bounds. */
static bool by_clocks(const Doctor *d) { return d->used.name[0] != 0; }

static void print_rates(const Doctor *d)
{
    char a[24], b[24];
    if (d->peaks.bytes_per_s == 0) return;
    memory_text(a, d->peaks.bytes_per_s);
    rate_text(b, d->peaks.int8_ops_per_s / 1e12);
    if (by_clocks(d))
        printf("           %s reads %s/s and computes %s int8 Tops/s at most, by its clocks\n", d->used.name, a, b);
    else printf("           reads %s/s from memory and computes %s int8 Tops/s, just now\n", a, b);
}

static void print_machine(const Doctor *d)
{
    printf("machine    %s, %d thread%s%s%s\n", d->machine, d->threads, d->threads == 1 ? "" : "s",
           *level(d) ? ", instructions " : "", level(d));
    if (!by_clocks(d)) print_rates(d);
}

static void print_cards(const Doctor *d)
{
    char a[24];
    if (d->n_cards == 0) printf("gpu        none: %s\n", d->no_card.text);
    for (int32_t i = 0; i < d->n_cards; i++) {
        const rt_card *c = &d->card[i];
        printf("%s%s, %s", i ? "           " : "gpu        ", c->name, c->level);
        if (c->memory) printf(", %s", memory_text(a, (double) c->memory));
        if (c->free) printf(", %s free", memory_text(a, (double) c->free));
        printf(", driver for %s: %s%s%s\n", c->driver, c->why[0] ? c->why : "--backend ", c->why[0] ? "" : c->backend,
               d->p.failed >> i & 1 ? ", which did not pass its check"
                                    : d->p.passed >> i & 1 ? ", checked with this model" : "");
    }
    if (by_clocks(d)) print_rates(d);
}

static void print_experts(const Doctor *d)
{
    char a[24], b[24];
    const rt_needs *n = &d->memory.needs;
    if (n->expert_ram == 0) return;
    printf("experts    %s of %s are in memory, the others are read from the file",
           memory_text(a, (double) n->expert_ram), memory_text(b, (double) n->expert_bytes));
    if (d->tier.disk_bytes_per_s > 0) printf(", which gives %s/s just now", memory_text(a, d->tier.disk_bytes_per_s));
    puts(" (ratoon plan tells more)");
}

static void print_model(const Doctor *d)
{
    char a[24], b[24], c[24], arch[256], gpu[MEMORY_GPU_TEXT];
    const Memory *m = &d->memory;
    printf("model      %s", base_name(d->p.files.model));
    const double bytes = (double) (m->needs.model + m->needs.device_model);
    if (loaded(d)) printf(": %s, %s", fact(d, "model.arch", arch), memory_text(a, bytes));
    printf(", %d layers, trained for %s tokens\n", m->needs.layers, tokens_text(b, m->needs.ctx_train));
    memory_pair(a, c, memory_bytes(m, m->ctx), (double) m->needs.free);
    printf("memory     needs %s with %s context", a, tokens_text(b, m->ctx));
    if (m->needs.free) printf(", %s free", c);
    printf("%s", memory_gpu_text(gpu, m));
    printf(": %s\n", fits(d) ? "fits" : "does not fit (ratoon plan says what would)");
    print_experts(d);
    if (denoises(d))
        printf("speed      not by the token: blocks of %d are denoised in up to %d steps, as few as the text needs "
               "(ratoon bench times them)\n", m->needs.canvas, m->needs.canvas_steps);
    if (d->plain > 0) printf("speed      %s tokens/s plain", rate_text(a, d->plain));
    if (d->plain > 0 && d->expected > 0)
        printf(by_clocks(d) ? " (up to %s by the card's clocks)" : " (expected %s)", rate_text(b, d->expected));
    if (d->plain > 0) putchar('\n');
}

static void print_drafter(const Doctor *d)
{
    char a[256], b[256], c[24];
    const Files *f = &d->p.files;
    if (drafts(d)) {
        printf("drafter    %s: %s, %s layers, guesses %d tokens at once\n", drafter_said(d), fact(d, "draft.arch", a),
               fact(d, "draft.layers", b), d->block - 1);
        printf("           reads the model's state after its layers %s\n", fact(d, "draft.taps", a));
        printf("           first guess right: %.0f %%; %.1f tokens a pass of %d rows (%lld passes over %s)\n",
               100 * d->reach.held[0], reach_length(&d->reach, d->block), d->block, (long long) d->drafts,
               d->o.text ? "the given text" : "text that the model wrote");
        printf("           a proposal takes %s ms, a pass of 1 row", rate_text(c, d->costs.draft_ms));
        printf(" %s ms", rate_text(c, d->costs.pass_ms[1]));
        printf(", of %d rows %s ms\n", d->block, rate_text(c, d->costs.pass_ms[d->block]));
    } else {
        printf("drafter    none\n");
    }
    if (f->ignored[0]) printf("left out   drafter %s: %s\n", f->ignored, f->why);
}

static void print_verdict(const Doctor *d)
{
    char a[24], b[24];
    const Files *f = &d->p.files;
    printf("\nverdict: %s", fits(d) ? "fits" : "does not fit");
    if (d->plain > 0) printf("; %s tokens/s plain", rate_text(a, d->plain));
    if (drafts(d) && d->rows > 1)
        printf(", about %s with the drafter (%.1fx, estimate); %s", rate_text(b, d->drafted), d->drafted / d->plain,
               judgement_text[judge(d)]);
    else if (drafts(d)) printf(", no more with the drafter; %s", judgement_text[judge(d)]);
    else if (f->ignored[0]) printf("; drafter %s is left out, as it does not fit: %s", f->ignored, f->why);
    else if (loaded(d) && !denoises(d)) printf("; with a matching drafter it would be faster (doc/drafters.md)");
    putchar('\n');
}

static void add_text(json_t *j, const char *key, const char *s)
{
    json_object_set_new(j, key, json_text(s, strlen(s)));
}

static void add_fact(const Doctor *d, json_t *j, const char *key, const char *property_key, bool number)
{
    char text[256];
    if (number) json_object_set_new(j, key, json_integer(property(d->p.engine, property_key)));
    else add_text(j, key, fact(d, property_key, text));
}

typedef struct { const char *key, *property; bool number; } Fact;

static json_t *facts(const Doctor *d, const char *file, const Fact *f, size_t n)
{
    json_t *j = json_object();
    add_text(j, "file", file);
    for (size_t i = 0; loaded(d) && i < n; i++) add_fact(d, j, f[i].key, f[i].property, f[i].number);
    return j;
}

static json_t *drafter_json(const Doctor *d)
{
    static const Fact of_draft[] = {
        { "arch", "draft.arch", false }, { "layers", "draft.layers", true }, { "dim", "draft.dim", true },
        { "vocab", "draft.vocab", true }, { "tokenizer", "draft.tokenizer", false }, { "taps", "draft.taps", false },
        { "fc", "draft.fc", false }, { "mask", "draft.mask", true }, { "block", "draft.block", true } };
    if (!drafts(d)) return json_null();
    json_t *j = facts(d, drafter_said(d), of_draft, sizeof of_draft / sizeof *of_draft);
    json_object_set_new(j, "passes", json_integer(d->drafts));
    json_object_set_new(j, "first_right", json_real(d->reach.held[0]));
    json_object_set_new(j, "accept_length", json_real(reach_length(&d->reach, d->block)));
    json_object_set_new(j, "draft_ms", json_real(d->costs.draft_ms));
    json_object_set_new(j, "rows", json_integer(d->rows));
    add_text(j, "verdict", judgement_name[judge(d)]);
    return j;
}

static json_t *cards_json(const Doctor *d)
{
    json_t *all = json_array();
    for (int32_t i = 0; i < d->n_cards; i++) {
        const rt_card *c = &d->card[i];
        json_t *j = json_object();
        add_text(j, "backend", c->backend);
        add_text(j, "name", c->name);
        add_text(j, "level", c->level);
        add_text(j, "driver", c->driver);
        json_object_set_new(j, "memory_bytes", json_integer((json_int_t) c->memory));
        json_object_set_new(j, "free_bytes", json_integer((json_int_t) c->free));
        json_object_set_new(j, "checked", (d->p.passed | d->p.failed) >> i & 1 ? json_boolean(d->p.passed >> i & 1)
                                                                                : json_null());
        json_object_set_new(j, "why", c->why[0] ? json_text(c->why, strlen(c->why)) : json_null());
        json_array_append_new(all, j);
    }
    return all;
}

static json_t *number_or_null(bool there, double x) { return there ? json_real(x) : json_null(); }

static bool print_json(const Doctor *d)
{
    static const Fact of_model[] = {
        { "arch", "model.arch", false }, { "layers", "model.layers", true }, { "dim", "model.dim", true },
        { "vocab", "model.vocab", true }, { "parameters", "model.parameters", true },
        { "tokenizer", "model.tokenizer", false } };
    const Memory *m = &d->memory;
    json_t *j = json_object();
    add_text(j, "verdict", fits(d) ? "fits" : "does not fit");
    json_object_set_new(j, "machine", json_pack("{s:o s:i s:s s:b s:f s:f}", "name",
                                                json_text(d->machine, strlen(d->machine)), "threads", d->threads,
                                                "level", level(d), "by_clocks", by_clocks(d), "bytes_per_s",
                                                d->peaks.bytes_per_s, "int8_ops_per_s", d->peaks.int8_ops_per_s));
    json_object_set_new(j, "gpus", cards_json(d));
    json_object_set_new(j, "no_gpu", d->n_cards ? json_null() : json_text(d->no_card.text, strlen(d->no_card.text)));
    json_object_set_new(j, "model", facts(d, base_name(d->p.files.model), of_model,
                                          sizeof of_model / sizeof *of_model));
    json_object_set_new(j, "memory", json_pack("{s:I s:I s:i}", "total_bytes", (json_int_t) memory_bytes(m, m->ctx),
                                               "free_bytes", (json_int_t) m->needs.free, "ctx", m->ctx));
    json_object_set_new(j, "experts", m->needs.expert_ram == 0 ? json_null() :
                        json_pack("{s:I s:I s:o}", "ram_bytes", (json_int_t) m->needs.expert_ram, "all_bytes",
                                  (json_int_t) m->needs.expert_bytes, "disk_bytes_per_s",
                                  number_or_null(d->tier.disk_bytes_per_s > 0, d->tier.disk_bytes_per_s)));
    json_object_set_new(j, "speed", json_pack("{s:o s:o s:o}", "expected_tok_s",
                                              number_or_null(d->expected > 0, d->expected), "plain_tok_s",
                                              number_or_null(d->plain > 0, d->plain), "drafted_tok_s",
                                              number_or_null(drafts(d), d->drafted)));
    json_object_set_new(j, "drafter", drafter_json(d));
    json_object_set_new(j, "left_out", !d->p.files.ignored[0] ? json_null()
                        : json_pack("{s:o s:o}", "file", json_text(d->p.files.ignored, strlen(d->p.files.ignored)),
                                    "why", json_text(d->p.files.why, strlen(d->p.files.why))));
    return json_print(&d->o, j);
}

static int report(const Doctor *d)
{
    int status = EXIT_FINE;
    if (d->o.json) {
        if (!print_json(d)) status = EXIT_FAILED;
    } else {
        print_machine(d);
        print_cards(d);
        print_model(d);
        print_drafter(d);
        print_verdict(d);
        status = output_done(&d->o);
    }
    return status != EXIT_FINE ? status : d->left_gpu ? EXIT_FAILED : fits(d) ? EXIT_FINE : EXIT_MISFIT;
}

/* ---- the order of it ---- */

static void find_cards(Doctor *d)
{
    while (d->n_cards < CARDS && rt_card_at(&d->card[d->n_cards], "cuda", d->n_cards, true, &d->no_card) == RT_OK)
        d->n_cards++;
}

/* A GPU that was asked for and cannot be used is a finding: the rest is about the CPU. */
static rt_status plan(Doctor *d, rt_error *e)
{
    const char *asked = d->o.backend;
    rt_error none;
    rt_status st = memory_plan(&d->memory, &d->p, 1, false, e);
    if ((st != RT_EUNSUPPORTED && st != RT_EBACKEND) || !asked || strncmp(asked, "cuda", 4) != 0) return st;
    d->o.backend = "cpu";
    d->left_gpu = memory_plan(&d->memory, &d->p, 1, false, &none) == RT_OK;
    if (d->left_gpu) complain(&d->o, "%s; the rest is about the CPU", e->text);
    else d->o.backend = asked;
    return d->left_gpu ? RT_OK : st;
}

/* Before anything large is loaded. */
static bool expect(Doctor *d)
{
    rt_error e = { 0 };
    d->threads = machine_name(d->machine, sizeof d->machine, &d->o);
    find_cards(d);
    if (plan(d, &e) != RT_OK)
        return complain_files(&d->o, e.text, &d->p.files) == 0;
    const rt_needs *n = &d->memory.needs;
    if (!fits(d) || denoises(d) || memory_cut(n) || machine_peaks(&d->peaks, &d->p, n, &e) != RT_OK) return true;
    if (n->gpu_layers) card_named(&d->used, program_backend(&d->p));
    costs_estimate(&d->costs, n, &d->peaks, 0);
    if (n->expert_ram) d->tier = experts_measure(&d->p, n);
    if (d->tier.disk_bytes_per_s > 0) costs_experts(&d->costs, n, &d->tier);
    else if (n->expert_ram) return true;           /* nothing can be expected */
    d->expected = costs_plain(&d->costs);
    return true;
}

/* What is measured needs a short context only, and no guesses but the drafter's. */
static bool examine(Doctor *d)
{
    if (!d->o.ctx) d->o.ctx = d->memory.ctx < 512 ? d->memory.ctx : 512;
    d->o.ngram = -1;
    if (!program_load(&d->p, WITH_DRAFTER | WITH_SESSION, NULL, 0)) return false;
    d->n_vocab = (int32_t) property(d->p.engine, "model.vocab");
    d->block = (int32_t) property(d->p.engine, "draft.block");
    if (d->block > ROWS_MOST) d->block = ROWS_MOST;
    return denoises(d) || (time_passes(d) && (!drafts(d) || examine_drafter(d)));
}

int cmd_doctor(int argc, char **argv)
{
    Doctor d = { 0 };
    int status;
    if (!options_read(&d.o, argc, argv, &status)) return status;
    status = EXIT_FAILED;
    if (program_find(&d.p, &d.o, WITH_DRAFTER) && expect(&d) && (!(fits(&d) || d.o.overcommit) || examine(&d)))
        status = report(&d);
    if (interrupts) status = EXIT_INTERRUPTED;
    program_close(&d.p);
    return status;
}
