#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/tokenizer/pretokenize.h"

#include <pcre2.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "text/tokenizer/utf8.h"

/* Unicode's White_Space, written out: \s of PCRE2 with UCP also takes U+180E. Case-insensitive letters are written out
 * as well: (?i:s) would also take U+017F. */
#define SPACE \
    "\\x{09}-\\x{0D}\\x{20}\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{3000}"
#define LETTER  "\\p{L}"
#define MARKED  "\\p{L}\\p{M}"                      /* letters, marks included */

/* Every character matches some alternative, so all patterns are anchored and pieces follow each other without gaps. */
#define QWEN(letter, digits)                     \
    "'(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])" \
    "|[^\\r\\n\\p{L}\\p{N}]?[" letter "]+"       \
    "|\\p{N}" digits                             \
    "| ?[^" SPACE letter "\\p{N}]+[\\r\\n]*"     \
    "|[" SPACE "]*[\\r\\n]+"                     \
    "|[" SPACE "]+(?![^" SPACE "])"              \
    "|[" SPACE "]+"
#define GPT2                        \
    "'(?:[stmd]|re|ve|ll)"          \
    "| ?\\p{L}+"                    \
    "| ?\\p{N}+"                    \
    "| ?[^" SPACE "\\p{L}\\p{N}]+"  \
    "|[" SPACE "]+(?![^" SPACE "])" \
    "|[" SPACE "]+"
#define DIGITS_ALONE  "\\p{N}|\\P{N}+"
#define LINES_ALONE   "[^\\n]+|\\n+"

/* Vocabularies of one group have more in common than the pattern. */
typedef enum { PLAIN, LLAMA3, GEMMA4 } Group;

typedef struct {
    const char *name;
    Group       group;
    const char *stage[2];                          /* second NULL: one stage */
    const char *alias[16];                         /* names in tokenizer.ggml.pre, ended by NULL */
} Rule;

static const Rule RULES[] = {
    { "qwen2", PLAIN, { QWEN(LETTER, ""), NULL },
      { "qwen2", "deepseek-r1-qwen", "megrez", "kormo", "f2llmv2", "stablelm2", "hunyuan", "solar-open", NULL } },
    { "qwen35", PLAIN, { QWEN(MARKED, ""), NULL }, { "qwen35", NULL } },
    { "llama-bpe", LLAMA3, { QWEN(LETTER, "{1,3}"), NULL },
      { "llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano",
        NULL } },
    { "gpt-2", PLAIN, { GPT2, NULL },
      { "gpt-2", "mpt", "olmo", "phi-2", "jais", "trillion", "granite-docling", "exaone4", "gigachat", "a.x-4.0",
        "mellum", "modern-bert", NULL } },
    { "smollm", PLAIN, { DIGITS_ALONE, GPT2 },
      { "smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2", NULL } },
    { "laguna", PLAIN, { LINES_ALONE, QWEN(LETTER, "") }, { "laguna", NULL } },
    { "gemma4", GEMMA4, { LINES_ALONE, NULL }, { "gemma4", NULL } },
};

struct Pretokenizer {
    const Rule *rule;
    pcre2_code *stage[2];
};

struct PretokenCursor {
    const Pretokenizer  *p;
    pcre2_match_data    *match;
    pcre2_match_context *context;
    pcre2_jit_stack     *stack;
    char                *shadow;                   /* copy with bad bytes replaced, if the text has any */
    size_t               shadow_cap;
    const char          *s;                        /* text or shadow */
    size_t               n, at, stage1_end;
};

static const Rule *rule_find(const char *name, size_t n)
{
    for (size_t r = 0; r < sizeof RULES / sizeof *RULES; r++)
        for (const char *const *a = RULES[r].alias; *a; a++)
            if (strlen(*a) == n && memcmp(*a, name, n) == 0) return &RULES[r];
    return NULL;
}

Status pretokenize_open(Pretokenizer **out, const char *name, size_t n, Error *err)
{
    const Rule *rule = rule_find(name, n);
    if (!rule) return ST_UNSUPPORTED;
    Pretokenizer *p = calloc(1, sizeof *p);
    if (!p) return fail(err, ST_MEMORY, "pre-tokenizer %s: no memory", rule->name);
    p->rule = rule;
    for (int32_t i = 0; i < 2 && rule->stage[i]; i++) {
        int code;
        PCRE2_SIZE at;
        p->stage[i] = pcre2_compile((PCRE2_SPTR) rule->stage[i], PCRE2_ZERO_TERMINATED,
                                    PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED, &code, &at, NULL);
        if (!p->stage[i]) {
            pretokenize_close(p);
            if (code == PCRE2_ERROR_HEAP_FAILED) return fail(err, ST_MEMORY, "pre-tokenizer %s: no memory", rule->name);
            return fail(err, ST_ARG, "pre-tokenizer %s: PCRE2 error %d at offset %zu of the pattern", rule->name, code,
                        (size_t) at);
        }
        pcre2_jit_compile(p->stage[i], PCRE2_JIT_COMPLETE);    /* where JIT fails, pcre2_match interprets */
    }
    *out = p;
    return ST_OK;
}

void pretokenize_close(Pretokenizer *p)
{
    if (!p) return;
    pcre2_code_free(p->stage[0]);
    pcre2_code_free(p->stage[1]);
    free(p);
}

const char *pretokenize_name(const Pretokenizer *p) { return p->rule->name; }
bool pretokenize_llama3(const Pretokenizer *p) { return p->rule->group == LLAMA3; }
bool pretokenize_gemma4(const Pretokenizer *p) { return p->rule->group == GEMMA4; }

Status pretokenize_cursor(PretokenCursor **out, const Pretokenizer *p)
{
    PretokenCursor *c = calloc(1, sizeof *c);
    if (!c) return ST_MEMORY;
    c->p = p;
    c->match = pcre2_match_data_create(1, NULL);
    c->context = pcre2_match_context_create(NULL);
    c->stack = pcre2_jit_stack_create(32 << 10, 1 << 20, NULL);
    if (!c->match || !c->context || !c->stack) {
        pretokenize_cursor_free(c);
        return ST_MEMORY;
    }
    /* A long line may need many steps, but never exponentially many: the patterns have no nested repeats. */
    pcre2_set_match_limit(c->context, UINT32_MAX);
    pcre2_set_heap_limit(c->context, UINT32_MAX);
    pcre2_set_depth_limit(c->context, UINT32_MAX);
    pcre2_jit_stack_assign(c->context, NULL, c->stack);
    *out = c;
    return ST_OK;
}

void pretokenize_cursor_free(PretokenCursor *c)
{
    if (!c) return;
    pcre2_match_data_free(c->match);
    pcre2_match_context_free(c->context);
    if (c->stack) pcre2_jit_stack_free(c->stack);
    free(c->shadow);
    free(c);
}

/* PCRE2 requires UTF-8. In a copy each bad byte becomes U+0001: a symbol to every pattern (neither space, letter, mark
 * nor number) and one byte long, so lengths found in the copy are valid for the text. */
Status pretokenize_begin(PretokenCursor *c, const char *s, size_t n)
{
    c->s = s;
    c->n = n;
    c->at = c->stage1_end = 0;
    size_t good = utf8_valid(s, n);
    if (good == n) return ST_OK;
    if (c->shadow_cap < n) {
        char *larger = realloc(c->shadow, n);
        if (!larger) return ST_MEMORY;
        c->shadow = larger;
        c->shadow_cap = n;
    }
    memcpy(c->shadow, s, n);
    while (good < n) {
        c->shadow[good++] = 1;
        good += utf8_valid(s + good, n - good);
    }
    c->s = c->shadow;
    return ST_OK;
}

static Status match_length(PretokenCursor *c, const pcre2_code *code, const char *s, size_t n, size_t *length)
{
    /* The text was checked once in pretokenize_begin; checking the remaining text again for every piece would be
     * quadratic. */
    int found = pcre2_match(code, (PCRE2_SPTR) s, n, 0, PCRE2_NO_UTF_CHECK, c->match, c->context);
    if (found == PCRE2_ERROR_NOMATCH) {     /* no pattern skips a character; if one did, it would be a piece */
        uint32_t cp;
        *length = utf8_next(s, n, &cp);
        return ST_OK;
    }
    if (found < 0) return ST_MEMORY;
    *length = pcre2_get_ovector_pointer(c->match)[1];
    return ST_OK;
}

Status pretokenize_next(PretokenCursor *c, size_t *n)
{
    if (c->at == c->n) return ST_END;
    const Pretokenizer *p = c->p;
    size_t end = c->n;
    if (p->stage[1]) {
        if (c->at == c->stage1_end) {
            size_t piece;
            TRY(match_length(c, p->stage[0], c->s + c->at, c->n - c->at, &piece));
            c->stage1_end = c->at + piece;
        }
        end = c->stage1_end;
    }
    TRY(match_length(c, p->stage[p->stage[1] ? 1 : 0], c->s + c->at, end - c->at, n));
    c->at += *n;
    return ST_OK;
}
