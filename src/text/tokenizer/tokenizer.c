#include "text/tokenizer/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/check.h"
#include "base/grow.h"
#include "base/hex.h"
#include "text/tokenizer/bpe.h"
#include "text/tokenizer/nfc.h"
#include "text/tokenizer/pretokenize.h"
#include "text/tokenizer/special.h"
#include "text/tokenizer/utf8.h"
#include "text/tokenizer/vocab.h"

enum { TEXT_MAX = 1 << 30, TEMPLATE_MAX = 1 << 20, CACHE_SLOTS = 4096, CACHE_TEXT_MIN = 1024 };

struct Tokenizer {
    Vocab         vocab;
    SpecialSet    special;
    Bpe           bpe;
    Pretokenizer *pre;
    uint8_t      *end;                             /* [n] end-of-generation ids */
    char         *chat;                            /* chat template, NULL: none */
    size_t        n_chat;
    uint64_t      hash;
    int32_t       bos, eos, mask, unknown, pad, fim[FIM_MARKS];
    bool          add_bos;
};

/* --- opening ------------------------------------------------------------------------------------------------------ */

static Status list_open(const Gguf *g, const char *key, bool strings, uint64_t max, uint64_t *count, Error *err)
{
    GgufType type;
    Status st = gguf_array(g, key, &type, count, err);
    if (st == ST_END) return fail(err, ST_FORMAT, "%s: %s is missing", gguf_path(g), key);
    if (st != ST_OK) return st;
    if ((type == GV_STRING) != strings || type == GV_ARRAY || type == GV_BOOL)
        return fail(err, ST_FORMAT, "%s: %s is an array of %s, expected %s", gguf_path(g), key, gguf_type_name(type),
                    strings ? "string" : "numbers");
    if (*count > max)
        return fail(err, ST_FORMAT, "%s: %s has %llu entries, expected at most %llu", gguf_path(g), key,
                    (unsigned long long) *count, (unsigned long long) max);
    return ST_OK;
}

/* Checks an array that runs parallel to the token list: it must have the same length, or be absent (ST_END). */
static Status list_along(const Gguf *g, const char *key, int32_t n, Error *err)
{
    uint64_t count;
    if (!gguf_has(g, key)) return ST_END;
    TRY(list_open(g, key, false, UINT64_MAX, &count, err));
    if (count != (uint64_t) n)
        return fail(err, ST_FORMAT, "%s: %s has %llu entries, expected %d as tokenizer.ggml.tokens", gguf_path(g), key,
                    (unsigned long long) count, n);
    return ST_OK;
}

/* Tokens that end generation whatever the file's keys say. */
static const char *const END_TEXTS[] = {
    "</s>", "<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|end|>", "<end_of_turn>",
    "<turn|>", "<eos>", "<|tool_response>",
    "<|return|>", "<|call|>", "<EOT>", "[EOT]", "[EOS]", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>",
    "<end_of_utterance>", "</assistant>",
};
enum { N_END_TEXTS = sizeof END_TEXTS / sizeof *END_TEXTS };

/* Some files give these tokens another type, and a client's text could then spell them; "</s>" is left out, since it is
 * plain text in some vocabularies. */
static bool is_end_text(const char *s, size_t n)
{
    if (s[0] != '<' && s[0] != '[') return false;
    for (int32_t i = 1; i < N_END_TEXTS; i++)
        if (strlen(END_TEXTS[i]) == n && memcmp(END_TEXTS[i], s, n) == 0) return true;
    return false;
}

/* Stores the bytes of token i at v->at[i], decoded according to its type. */
static Status token_store(Vocab *v, const Gguf *g, int32_t i, const char *s, size_t n, Error *err)
{
    char *to = v->bytes + v->at[i];
    size_t len = n;
    if (v->type[i] == TOKEN_NORMAL) {
        if (utf8_valid(s, n) != n)
            return fail(err, ST_FORMAT, "%s: tokenizer.ggml.tokens[%d] is not UTF-8, expected %s", gguf_path(g), i,
                        v->spelling == SPELL_BYTES ? "characters of the byte alphabet" : "whole characters");
        len = vocab_unmap(to, v->spelling, s, n);
        if (len == SIZE_MAX) {
            v->type[i] = VOCAB_TEXT;
            memcpy(to, s, len = n);
        }
    } else if (v->type[i] == TOKEN_BYTE) {
        int32_t hi = n == 6 ? hex_value(s[3]) : -1, lo = n == 6 ? hex_value(s[4]) : -1;
        if (hi < 0 || lo < 0 || memcmp(s, "<0x", 3) != 0 || s[5] != '>')
            return fail(err, ST_FORMAT, "%s: tokenizer.ggml.tokens[%d] \"%.*s\" is of type byte, expected \"<0xHH>\"",
                        gguf_path(g), i, (int) (n < 64 ? n : 64), s);
        *to = (char) (hi << 4 | lo);
        len = 1;
    } else {
        memcpy(to, s, n);
    }
    v->at[i + 1] = v->at[i] + len;
    return ST_OK;
}

static Status read_tokens(Vocab *v, VocabSpelling spelling, const Gguf *g, Error *err)
{
    static const char KEY[] = "tokenizer.ggml.tokens";
    uint64_t count;
    size_t bytes = 0, n;
    const char *s;
    TRY(list_open(g, KEY, true, VOCAB_TOKENS_MAX, &count, err));
    if (count == 0) return fail(err, ST_FORMAT, "%s: %s is empty", gguf_path(g), KEY);
    for (uint64_t i = 0; i < count; i++) {
        TRY(gguf_array_str(g, KEY, i, &s, &n, err));
        if (n == 0 || n > VOCAB_TOKEN_BYTES_MAX)
            return fail(err, ST_FORMAT, "%s: %s[%llu] has %zu bytes, expected 1 to %d", gguf_path(g), KEY,
                        (unsigned long long) i, n, (int) VOCAB_TOKEN_BYTES_MAX);
        if (!check_add(&bytes, bytes, n)) return fail(err, ST_MEMORY, "%s: %s: no memory", gguf_path(g), KEY);
    }
    if (vocab_alloc(v, spelling, (int32_t) count, bytes) != ST_OK)
        return fail(err, ST_MEMORY, "%s: %s: no memory", gguf_path(g), KEY);

    Status typed = list_along(g, "tokenizer.ggml.token_type", v->n, err);
    if (typed != ST_OK && typed != ST_END) return typed;
    Status scored = list_along(g, "tokenizer.ggml.scores", v->n, err);         /* not used by this kind of tokenizer */
    if (scored != ST_OK && scored != ST_END) return scored;
    for (int32_t i = 0; i < v->n; i++) {
        int64_t type = TOKEN_NORMAL;
        if (typed == ST_OK) TRY(gguf_array_i64(g, "tokenizer.ggml.token_type", (uint64_t) i, &type, err));
        if (type < TOKEN_NORMAL || type > TOKEN_BYTE)
            return fail(err, ST_FORMAT, "%s: tokenizer.ggml.token_type[%d] is %lld, expected 1 to 6", gguf_path(g), i,
                        (long long) type);
        TRY(gguf_array_str(g, KEY, (uint64_t) i, &s, &n, err));
        v->type[i] = is_end_text(s, n) ? TOKEN_CONTROL : (uint8_t) type;
        TRY(token_store(v, g, i, s, n, err));
    }
    if (vocab_index(v) != ST_OK) return fail(err, ST_MEMORY, "%s: %s: no memory", gguf_path(g), KEY);
    return ST_OK;
}

/* Reads one merge, "left right". The split is the first space from the second byte on, since a token may begin with a
 * space-like byte. raw has room for the text; left and right are stored in it back to back, so the merged bytes are
 * there too. */
static Status merge_read(Bpe *b, const Gguf *g, uint32_t rank, const char *s, size_t n, char *raw, XXH3_state_t *hash,
                         Error *err)
{
    const Vocab *v = b->vocab;
    const char *space = n > 2 ? memchr(s + 1, ' ', n - 1) : NULL;
    int32_t left = -1, right = -1, merged = -1;
    if (space && n <= 2 * VOCAB_TOKEN_BYTES_MAX) {
        size_t n_left = vocab_unmap(raw, v->spelling, s, (size_t) (space - s)), n_right = SIZE_MAX;
        if (n_left != SIZE_MAX) left = vocab_find(v, &v->merged, raw, n_left);
        if (left >= 0) n_right = vocab_unmap(raw + n_left, v->spelling, space + 1, n - (size_t) (space - s) - 1);
        if (n_right != SIZE_MAX) {
            right = vocab_find(v, &v->merged, raw + n_left, n_right);
            merged = vocab_find(v, &v->merged, raw, n_left + n_right);
        }
    }
    if (left < 0 || right < 0 || merged < 0)
        return fail(err, ST_FORMAT, "%s: tokenizer.ggml.merges[%u] \"%.*s\": %s, expected two tokens that make a third",
                    gguf_path(g), rank, (int) (n < 64 ? n : 64), s, !space ? "no space" : left < 0
                    ? "the left is no token" : right < 0 ? "the right is no token" : "the whole is no token");
    int32_t ids[2] = { left, right };
    XXH3_64bits_update(hash, ids, sizeof ids);
    bpe_add(b, rank, left, right, merged);
    return ST_OK;
}

static Status read_merges(Bpe *b, const Vocab *v, const Gguf *g, bool whole_first, int32_t unknown, XXH3_state_t *hash,
                          Error *err)
{
    static const char KEY[] = "tokenizer.ggml.merges";
    uint64_t count;
    TRY(list_open(g, KEY, true, VOCAB_TOKENS_MAX, &count, err));
    if (bpe_init(b, v, (size_t) count, whole_first, unknown) != ST_OK)
        return fail(err, ST_MEMORY, "%s: %s: no memory", gguf_path(g), KEY);
    char *raw = malloc(2 * VOCAB_TOKEN_BYTES_MAX);
    Status st = raw ? ST_OK : fail(err, ST_MEMORY, "%s: %s: no memory", gguf_path(g), KEY);
    for (uint64_t i = 0; i < count && st == ST_OK; i++) {
        const char *s;
        size_t n;
        st = gguf_array_str(g, KEY, i, &s, &n, err);
        if (st == ST_OK) st = merge_read(b, g, (uint32_t) i, s, n, raw, hash, err);
    }
    free(raw);
    return st;
}

static Status read_ids(Tokenizer *t, const Gguf *g, Error *err)
{
    static const char *const END_KEYS[] = { "eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep" };
    static const char *const OTHER_KEYS[] = { "bos", "mask", "unknown", "seperator", "padding", "fim_pre", "fim_suf",
                                              "fim_mid" };
    /* in files without these keys */
    static const char *const FIM_TEXTS[FIM_MARKS][4] = {
        [FIM_PRE] = { "<|fim_prefix|>", "<fim_prefix>", "<fim-prefix>", "<|code_prefix|>" },
        [FIM_SUF] = { "<|fim_suffix|>", "<fim_suffix>", "<fim-suffix>", "<|code_suffix|>" },
        [FIM_MID] = { "<|fim_middle|>", "<fim_middle>", "<fim-middle>", "<|code_middle|>" },
        [FIM_REP] = { "<|repo_name|>", "<|fim_repo|>", "<fim-repo>", "<reponame>" }, [FIM_SEP] = { "<|file_sep|>" },
    };
    enum { ENDS = sizeof END_KEYS / sizeof *END_KEYS, OTHERS = sizeof OTHER_KEYS / sizeof *OTHER_KEYS };
    int32_t found[ENDS + OTHERS];
    for (int32_t i = 0; i < ENDS + OTHERS; i++) {
        char key[64];
        uint32_t id;
        snprintf(key, sizeof key, "tokenizer.ggml.%s_token_id", i < ENDS ? END_KEYS[i] : OTHER_KEYS[i - ENDS]);
        found[i] = -1;
        Status st = gguf_get_u32(g, key, &id, err);
        if (st == ST_END) continue;
        if (st != ST_OK) return st;
        if (id >= (uint32_t) t->vocab.n)
            return fail(err, ST_FORMAT, "%s: %s is %u, expected less than %d", gguf_path(g), key, id, t->vocab.n);
        found[i] = (int32_t) id;
        if (i < ENDS) t->end[id] = 1;
    }
    t->eos = found[0];
    t->bos = found[ENDS];
    t->mask = found[ENDS + 1];
    t->unknown = found[ENDS + 2];
    t->pad = found[ENDS + 4];
    const int32_t given[FIM_MARKS] = { found[ENDS + 5], found[ENDS + 6], found[ENDS + 7], found[4], found[5] };
    for (FimMark mark = 0; mark < FIM_MARKS; mark++) {
        t->fim[mark] = given[mark];
        for (int32_t i = 0; i < 4 && t->fim[mark] < 0 && FIM_TEXTS[mark][i]; i++)
            t->fim[mark] = tokenizer_find(t, FIM_TEXTS[mark][i], strlen(FIM_TEXTS[mark][i]));
    }

    const Vocab *v = &t->vocab;
    /* then "</s>" is plain text */
    bool gemma = vocab_find(v, &v->special, "<|tool_response>", strlen("<|tool_response>")) >= 0;
    for (int32_t i = 0; i < N_END_TEXTS; i++) {
        if (gemma && strcmp(END_TEXTS[i], "</s>") == 0) continue;
        int32_t id = tokenizer_find(t, END_TEXTS[i], strlen(END_TEXTS[i]));
        if (id >= 0) t->end[id] = 1;
    }
    return ST_OK;
}

static Status read_add_bos(Tokenizer *t, const Gguf *g, Error *err)
{
    static const char KEY[] = "tokenizer.ggml.add_bos_token";
    bool gemma4 = pretokenize_gemma4(t->pre);
    t->add_bos = (gemma4 || pretokenize_llama3(t->pre)) && t->bos >= 0;
    Status st = gguf_get_bool(g, KEY, &t->add_bos, err);
    if (st != ST_OK && st != ST_END) return st;
    if (gemma4 && t->bos >= 0) t->add_bos = true;  /* some files say false, but the models need it */
    if (t->add_bos && t->bos < 0)
        return fail(err, ST_FORMAT, "%s: %s is true, expected tokenizer.ggml.bos_token_id beside it",
                    gguf_path(g), KEY);
    return ST_OK;
}

static Status read_chat(Tokenizer *t, const Gguf *g, Error *err)
{
    static const char KEY[] = "tokenizer.chat_template";
    const char *s;
    Status st = gguf_get_str(g, KEY, &s, &t->n_chat, err);
    if (st == ST_END) return ST_OK;
    if (st != ST_OK) return st;
    if (t->n_chat > TEMPLATE_MAX)
        return fail(err, ST_FORMAT, "%s: %s has %zu bytes, expected at most %d", gguf_path(g), KEY, t->n_chat,
                    (int) TEMPLATE_MAX);
    t->chat = malloc(t->n_chat + 1);
    if (!t->chat) return fail(err, ST_MEMORY, "%s: %s: no memory", gguf_path(g), KEY);
    memcpy(t->chat, s, t->n_chat);
    t->chat[t->n_chat] = 0;
    return ST_OK;
}

/* The model "gemma4" names its pattern too, and the key is not read. */
static Status read_pre(Tokenizer *t, const Gguf *g, bool gemma4, Error *err)
{
    static const char KEY[] = "tokenizer.ggml.pre", GEMMA4[] = "gemma4";
    const char *s;
    size_t n;
    if (gemma4) return pretokenize_open(&t->pre, GEMMA4, strlen(GEMMA4), err);
    Status st = gguf_get_str(g, KEY, &s, &n, err);
    if (st == ST_END) return fail(err, ST_FORMAT, "%s: %s is missing", gguf_path(g), KEY);
    if (st != ST_OK) return st;
    st = pretokenize_open(&t->pre, s, n, err);
    if (st == ST_UNSUPPORTED)
        return fail(err, st, "%s: %s \"%.*s\" is not supported, expected qwen2, qwen35, llama-bpe, gpt-2, smollm, "
                    "laguna, gemma4 or an alias", gguf_path(g), KEY, (int) (n < 64 ? n : 64), s);
    return st;
}

static Status read_all(Tokenizer *t, const Gguf *g, bool gemma4, XXH3_state_t *hash, Error *err)
{
    TRY(read_pre(t, g, gemma4, err));
    TRY(read_tokens(&t->vocab, pretokenize_gemma4(t->pre) ? SPELL_SPACES : SPELL_BYTES, g, err));
    t->end = calloc((size_t) t->vocab.n, 1);
    if (!t->end) return fail(err, ST_MEMORY, "%s: tokenizer: no memory", gguf_path(g));
    TRY(read_ids(t, g, err));
    TRY(read_add_bos(t, g, err));
    TRY(read_chat(t, g, err));
    if (special_init(&t->special, &t->vocab) != ST_OK)
        return fail(err, ST_MEMORY, "%s: tokenizer: no memory", gguf_path(g));

    const Vocab *v = &t->vocab;
    XXH3_64bits_reset(hash);
    XXH3_64bits_update(hash, pretokenize_name(t->pre), strlen(pretokenize_name(t->pre)));
    XXH3_64bits_update(hash, &v->n, sizeof v->n);
    XXH3_64bits_update(hash, v->at, ((size_t) v->n + 1) * sizeof *v->at);
    XXH3_64bits_update(hash, v->type, (size_t) v->n);
    XXH3_64bits_update(hash, v->bytes, v->at[v->n]);
    TRY(read_merges(&t->bpe, v, g, pretokenize_llama3(t->pre), t->unknown, hash, err));
    t->hash = XXH3_64bits_digest(hash);
    return ST_OK;
}

Status tokenizer_open(Tokenizer **out, const Gguf *g, Error *err)
{
    const char *model;
    size_t n;
    TRY(gguf_get_str(g, "tokenizer.ggml.model", &model, &n, err));
    if (n == 8 && memcmp(model, "no_vocab", n) == 0) return ST_END;
    bool gemma4 = n == 6 && memcmp(model, "gemma4", n) == 0;
    if (!gemma4 && (n != 4 || memcmp(model, "gpt2", n) != 0))
        return fail(err, ST_UNSUPPORTED, "%s: tokenizer.ggml.model \"%.*s\" is not supported, expected gpt2 or "
                    "gemma4", gguf_path(g), (int) (n < 64 ? n : 64), model);
    Tokenizer *t = calloc(1, sizeof *t);
    XXH3_state_t *hash = XXH3_createState();
    Status st = t && hash ? read_all(t, g, gemma4, hash, err)
                          : fail(err, ST_MEMORY, "%s: tokenizer: no memory", gguf_path(g));
    XXH3_freeState(hash);
    if (st != ST_OK) {
        tokenizer_close(t);
        return st == ST_END ? fail(err, ST_FORMAT, "%s: the tokenizer's keys are incomplete", gguf_path(g)) : st;
    }
    *out = t;
    return ST_OK;
}

void tokenizer_close(Tokenizer *t)
{
    if (!t) return;
    bpe_free(&t->bpe);
    special_free(&t->special);
    vocab_free(&t->vocab);
    pretokenize_close(t->pre);
    free(t->end);
    free(t->chat);
    free(t);
}

/* --- queries ------------------------------------------------------------------------------------------------------ */

static bool is_id(const Tokenizer *t, int32_t id) { return id >= 0 && id < t->vocab.n; }

int32_t tokenizer_size(const Tokenizer *t) { return t->vocab.n; }
int32_t tokenizer_bos(const Tokenizer *t) { return t->bos; }
int32_t tokenizer_eos(const Tokenizer *t) { return t->eos; }
int32_t tokenizer_mask(const Tokenizer *t) { return t->mask; }
int32_t tokenizer_unk(const Tokenizer *t) { return t->unknown; }
int32_t tokenizer_pad(const Tokenizer *t) { return t->pad; }
int32_t tokenizer_fim(const Tokenizer *t, FimMark mark) { return t->fim[mark]; }
bool tokenizer_add_bos(const Tokenizer *t) { return t->add_bos; }
bool tokenizer_is_end(const Tokenizer *t, int32_t id) { return is_id(t, id) && t->end[id]; }

int32_t tokenizer_type(const Tokenizer *t, int32_t id)
{
    if (!is_id(t, id)) return 0;
    return t->vocab.type[id] == VOCAB_TEXT ? TOKEN_NORMAL : t->vocab.type[id];
}

uint64_t tokenizer_hash(const Tokenizer *t) { return t->hash; }

int32_t tokenizer_find(const Tokenizer *t, const char *s, size_t n)
{
    int32_t id = vocab_find(&t->vocab, &t->vocab.special, s, n);
    return id >= 0 ? id : vocab_find(&t->vocab, &t->vocab.merged, s, n);
}

const char *tokenizer_chat_template(const Tokenizer *t, size_t *n)
{
    *n = t->n_chat;
    return t->chat;
}

/* --- encoding ----------------------------------------------------------------------------------------------------- */

/* Pre-tokens repeat: for long texts the ids of those of up to 30 bytes are cached, the latest one in each slot. */
typedef struct { uint8_t n_key, n_ids; char key[30]; int32_t id[8]; } CacheSlot;

typedef struct {
    const Tokenizer *t;
    TokenSink        sink;
    BpeScratch       scratch;
    PretokenCursor  *cursor;
    CacheSlot       *cache;                        /* [CACHE_SLOTS], NULL for short texts */
    SpecialHits      hits;
    NfcText          copy;                         /* see normalise */
} Encoder;

static Status encode_piece(Encoder *e, const char *s, size_t n)
{
    CacheSlot *slot = NULL;
    if (e->cache && n > 1 && n <= sizeof slot->key) {
        slot = &e->cache[XXH3_64bits(s, n) % CACHE_SLOTS];
        if (slot->n_key == n && memcmp(slot->key, s, n) == 0) {
            for (int32_t i = 0; i < slot->n_ids; i++) sink_put(&e->sink, slot->id[i]);
            return ST_OK;
        }
    }
    size_t before = e->sink.n;
    TRY(bpe_encode(&e->t->bpe, &e->scratch, &e->sink, s, n));
    size_t n_ids = e->sink.n - before;
    if (slot && n_ids <= sizeof slot->id / sizeof *slot->id && e->sink.n <= e->sink.cap) {
        slot->n_key = (uint8_t) n;
        slot->n_ids = (uint8_t) n_ids;
        memcpy(slot->key, s, n);
        memcpy(slot->id, e->sink.out + before, n_ids * sizeof *slot->id);
    }
    return ST_OK;
}

/* Where a text is not read as it came, *s becomes a copy. */
static Status normalise(Encoder *e, const char **s, size_t *n, bool nfc)
{
    bool spaces = e->t->vocab.spelling == SPELL_SPACES;
    NfcText *copy = &e->copy;
    if (!nfc && !spaces) return ST_OK;
    if (nfc) {
        TRY(nfc_text(copy, *s, *n));
    } else {
        if (!grow_to(&copy->s, &copy->cap, *n, 256, 1)) return ST_MEMORY;
        memcpy(copy->s, *s, copy->n = *n);
    }
    if (spaces) copy->n = vocab_plain_spaces(copy->s, copy->n);
    *s = copy->s;
    *n = copy->n;
    return ST_OK;
}

static Status encode_raw(Encoder *e, const char *s, size_t n, bool nfc)
{
    if (n == 0) return ST_OK;
    TRY(normalise(e, &s, &n, nfc));
    TRY(pretokenize_begin(e->cursor, s, n));
    for (size_t at = 0, piece;; at += piece) {
        Status st = pretokenize_next(e->cursor, &piece);
        if (st == ST_END) return ST_OK;
        if (st != ST_OK) return st;
        TRY(encode_piece(e, s + at, piece));
    }
}

static Status encode_text(Encoder *e, const char *s, size_t n, TokenizeOptions o)
{
    const Tokenizer *t = e->t;
    if (n > 0) TRY(special_scan(&t->special, &e->hits, s, n, o.parse_special, o.client, o.n_client));
    bool has_bos = o.one_bos && e->hits.n > 0 && e->hits.hit[0].at == 0 && e->hits.hit[0].id == t->bos;
    if (o.add_special && t->add_bos && !has_bos) sink_put(&e->sink, t->bos);
    if (n == 0) return ST_OK;
    TRY(pretokenize_cursor(&e->cursor, t->pre));
    if (n >= CACHE_TEXT_MIN) e->cache = calloc(CACHE_SLOTS, sizeof *e->cache);     /* slower without it */
    size_t at = 0;
    for (size_t i = 0; i < e->hits.n; i++) {
        const SpecialHit *hit = &e->hits.hit[i];
        TRY(encode_raw(e, s + at, hit->at - at, o.nfc));
        sink_put(&e->sink, hit->id);
        at = hit->at + hit->n;
    }
    return encode_raw(e, s + at, n - at, o.nfc);
}

size_t tokenizer_encode(const Tokenizer *t, int32_t *out, size_t cap, const char *s, size_t n, TokenizeOptions o,
                        Status *status)
{
    Encoder e = { .t = t, .sink = { out, cap, 0 } };
    Status st = n <= TEXT_MAX ? encode_text(&e, s, n, o) : ST_ARG;
    pretokenize_cursor_free(e.cursor);
    bpe_scratch_free(&e.scratch);
    free(e.cache);
    free(e.hits.hit);
    free(e.copy.s);
    if (status) *status = st;
    return st == ST_OK ? e.sink.n : 0;
}

/* --- decoding ----------------------------------------------------------------------------------------------------- */

const char *tokenizer_bytes(const Tokenizer *t, int32_t id, bool special, size_t *n)
{
    *n = 0;
    if (!is_id(t, id)) return "";
    uint8_t type = t->vocab.type[id];
    if (!special && (type == TOKEN_CONTROL || type == TOKEN_UNKNOWN || type == TOKEN_UNUSED)) return "";
    return vocab_bytes(&t->vocab, id, n);
}

typedef struct { char *out; size_t cap, n; } ByteSink;

static void put_bytes(ByteSink *k, const char *s, size_t n)
{
    if (k->n < k->cap) memcpy(k->out + k->n, s, n < k->cap - k->n ? n : k->cap - k->n);
    k->n += n;
}

size_t tokenizer_decode(const Tokenizer *t, char *out, size_t cap, const int32_t *ids, size_t n, bool special)
{
    enum { STEP = 256 };
    char text[3 * (STEP + 4)];
    Utf8Stream u = { 0 };
    ByteSink sink = { out, cap, 0 };
    for (size_t i = 0; i < n; i++) {
        size_t len;
        const char *bytes = tokenizer_bytes(t, ids[i], special, &len);
        for (size_t at = 0; at < len; at += STEP)
            put_bytes(&sink, text, utf8_stream(&u, text, bytes + at, len - at < STEP ? len - at : STEP));
    }
    put_bytes(&sink, text, utf8_stream_end(&u, text));
    return sink.n;
}
