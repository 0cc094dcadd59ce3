/* ratoon.h - an engine is a loaded target, its drafter and a backend; it never changes after rt_open. A session is one line of text and
 * its state. A step object owns the scratch and the measured costs, and advances sessions: one thread per step object, a session in one
 * step object at a time. What a call returns lives until the next call on the same object.
 *
 * The library prints nothing, reads no environment variable, never exits and owns no global state. Speculation is invisible: for any
 * drafter, budget, cache history and neighbour the tokens are those of plain decoding. */
#ifndef RATOON_H
#define RATOON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct rt_engine rt_engine;
typedef struct rt_session rt_session;
typedef struct rt_step rt_step;

typedef enum { RT_OK = 0, RT_END = 1, RT_EARG = -1, RT_ENOMEM = -2, RT_EIO = -3, RT_EFORMAT = -4, RT_EUNSUPPORTED = -5,
               RT_EFULL = -6, RT_ECANCEL = -7, RT_EBACKEND = -8, RT_ENOTOKEN = -9 } rt_status;
typedef struct { rt_status code; char text[512]; } rt_error;       /* text: one line, naming the file or field, its value and what was expected */

/* Any hook may be NULL. log: level 0 error, 1 warning, 2 information, 3 detail. */
typedef struct {
    void *ud;
    void (*log)(void *ud, int level, const char *line);
    bool (*progress)(void *ud, const char *what, int64_t done, int64_t total);    /* false cancels; polled after every layer of a pass */
    void (*trace)(void *ud, const char *name, int32_t layer, const float *rows, int32_t n, int32_t cols);
} rt_hooks;

/* Zero is the default everywhere. model, draft: files (draft also a Hugging Face folder); draft NULL: none,
 * "mtp": the target's own MTP layer, "auto": that where the file has one.
 * backend: "cpu" (also "auto"), or "cpu:LEVEL" with LEVEL portable, avx2, avxvnni, avx512, amx, neon or i8mm. kv_k, kv_v: types of the
 * target's stored keys and values, "f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0" or "tq3_0", in any pair (default f16; f32
 * for a model file that is f32 throughout); a drafter's own stay f16. fa_window: positions that each row of the target looks back on, its
 * own included, where the model has no window of its own (0: all); it changes the text, with or without speculation alike. draft_type:
 * "keep", or "q8_0": drafters above 8 bits are quantised at load. no_repack: weights are read where the file is mapped and not copied, for
 * machines short of memory: slower, the same text; the file must not change while the engine is open. taps: layers whose output rt_rows
 * returns, for an engine without a drafter. */
typedef struct {
    const char *model, *draft, *backend, *kv_k, *kv_v, *draft_type;
    int32_t threads, n_taps, fa_window;
    const int32_t *taps;
    bool no_repack;
    rt_hooks hooks;
} rt_options;
/* ctx in tokens: 0: 8192 or the model's; draft_ctx: the drafter's ring; checkpoints: default 3; ngram: 0: the text is looked up for guesses
 * how it goes on (about 30 bytes a token), -1: not. */
typedef struct { int32_t ctx, draft_ctx, checkpoints, ngram; } rt_session_options;

/* Acceptance drawn instead of decided, for benchmarks: edge[d][r] is the probability that the child of drafter rank r at depth d + 1 is
 * the target's, given its parent. */
typedef struct { int32_t n_depth, n_rank; double edge[16][16]; } rt_profile;
/* budget: 0 automatic, -1 plain decoding, else 1..63 nodes beside the root. chunk: prompt tokens per pass, default 256. draft_block: rows
 * of a proposal with the root's, 2 to 33, instead of those that the drafter was trained for. */
typedef struct { int32_t sessions, chunk, budget, draft_block; bool chain; const rt_profile *simulate; uint64_t simulate_seed; } rt_step_options;

typedef struct { int32_t id; float add; } rt_bias;
/* temperature below 1e-5: greedy. top_p 1 (0 is taken for 1), min_p 0, top_k 0, repetition 1 (0 is taken for 1), frequency and presence
 * 0: off. rep_window: tokens that penalties look back on, at most 256 (0: 256). max_tokens 0: up to the context. */
typedef struct {
    float temperature, top_p, min_p, repetition, frequency, presence;
    int32_t top_k, rep_window, max_tokens;
    uint64_t seed;
    const rt_bias *bias; int32_t n_bias;                                          /* at most 300, copied */
} rt_sampling;

/* The last token of a block is the target's own; those before it were guessed, and it agreed. status RT_OK with n 0: a prompt chunk was
 * computed, or the session's turn is still to come. */
typedef struct { const int32_t *token; int32_t n; rt_status status; } rt_block;
/* Who guesses: a drafter's block, the text itself, the target's own MTP layer. */
enum { RT_BLOCK, RT_NGRAM, RT_MTP, RT_SOURCES };
/* drafted, accepted: rows, in all and by who proposed them (a row that two proposed counts for both); drafts: proposals of the drafting
 * model; plain: passes of one row; changes: how often the controller began or gave up to ask the drafting model. pass_s: the part of decode_s
 * that the target's passes took; the rest is looking up, drafting, trees, acceptance and keeping. */
typedef struct {
    int64_t prompt_tokens, resumed, generated, passes, drafted, accepted;
    double  prefill_s, decode_s;
    int64_t drafts, plain, changes, drafted_by[RT_SOURCES], accepted_by[RT_SOURCES];
    double  pass_s;
} rt_stats;

const char *rt_version(void);

rt_status rt_open(rt_engine **out, const rt_options *o, rt_error *e);
void      rt_close(rt_engine *g);                                                 /* after its sessions and steps */
/* Every part of the memory that one session and one step will take, before anything large is loaded: model, drafter, session, step, and
 * "tables" for what the process itself holds (tokenizer, file indexes). NULL so, st: the defaults. */
rt_status rt_plan(const rt_options *o, const rt_session_options *so, const rt_step_options *st,
                  void (*part)(void *ud, const char *name, size_t bytes), void *ud, rt_error *e);
/* A fact as text, like snprintf; 0: unknown key. Keys: "identity" (see rt_save), "model", "model.arch", "model.name", "model.layers",
 * "model.dim", "model.vocab",
 * "model.ctx", "model.parameters", "model.bytes", "model.taps", "model.tokenizer", "draft" and "draft.*" likewise with "draft.block",
 * "draft.mask", "draft.fc", "kv", "backend", "chat_template"; "bos_token", "eos_token", "pad_token", "unk_token": texts of tokens;
 * "model.pass.parameters" and "model.pass.bytes": what every pass reads and multiplies, which is all but an embedding that is not the
 * head as well; "model.kv.bytes": keys and values of one token. */
size_t    rt_property(const rt_engine *g, const char *key, char *out, size_t cap);

/* Text and tokens; both like snprintf. special: control tokens in the text become their ids. Without a tokenizer in the file: 0. */
bool      rt_has_tokenizer(const rt_engine *g);
size_t    rt_tokenize(const rt_engine *g, const char *s, size_t n, bool special, int32_t *out, size_t cap);
/* The prompt of a conversation: control tokens become their ids but where they touch one of the spans (ascending), which hold what a client
 * wrote; BOS in front where the file asks for it and the text does not begin with it. */
typedef struct { size_t at, n; } rt_span;
size_t    rt_tokenize_prompt(const rt_engine *g, const char *s, size_t n, const rt_span *client, size_t n_client, int32_t *out, size_t cap);
size_t    rt_detokenize(const rt_engine *g, const int32_t *t, size_t n, char *out, size_t cap);
const char *rt_token_bytes(const rt_engine *g, int32_t id, size_t *n);            /* of one token, maybe part of a character; control tokens: none */
bool      rt_token_ends(const rt_engine *g, int32_t id);                          /* an end-of-generation token */
const char *rt_token_text(const rt_engine *g, int32_t id, size_t *n);             /* the same, but control tokens have the text of their names */
int32_t   rt_token_find(const rt_engine *g, const char *s, size_t n);             /* -1: no token has exactly this text */
int32_t   rt_token_bos(const rt_engine *g);                                       /* -1: none */
bool      rt_adds_bos(const rt_engine *g);

rt_status rt_session_new(rt_session **out, rt_engine *g, const rt_session_options *o, rt_error *e);
void      rt_session_free(rt_session *s);
const char *rt_session_error(const rt_session *s);
int32_t   rt_session_ctx(const rt_session *s);
/* Notes the text; steps do the work. Goes back to the deepest place that it shares with what the session holds (rt_resumable). */
rt_status rt_prompt(rt_session *s, const int32_t *t, size_t n);
rt_status rt_sampling_set(rt_session *s, const rt_sampling *p);                   /* from the next token on */
/* One bit per id for the token after text + path; asked for visited rows only; a pure function of text + path. mask returning false
 * allows everything. NULL: no mask. */
rt_status rt_allow(rt_session *s, bool (*mask)(void *ud, const int32_t *path, size_t n, uint32_t *bits), void *ud);
rt_status rt_speculate(rt_session *s, bool on);                                   /* false: plain decoding from the next pass on; the text is the same */
rt_status rt_take(rt_session *s, int32_t n);                                      /* keep the first n tokens of the last block */
/* Log-probabilities of the tokens of every block, from the next one on. top: how many of the likeliest tokens come with each, 0 to 20;
 * -1: none are computed (the default). They are of the model's own distribution, before penalties, biases, masks and temperature, and the
 * same with speculation and without. Costs a pass over the vocabulary per token (2 ms for 150,000 on one core). */
enum { RT_TOP_MAX = 20 };
typedef struct { int32_t id; float logprob; } rt_alternative;
typedef struct { float logprob; int32_t n; rt_alternative top[RT_TOP_MAX]; } rt_logprob;     /* top [n]: likeliest first, of equals the lower id */
rt_status rt_logprobs_set(rt_session *s, int32_t top);
const rt_logprob *rt_logprobs(const rt_session *s);                               /* one per token of the last block, and as long-lived; NULL: off */
/* The same of one row of logits [vocab], such as rt_rows gives: the scoring of a given text needs nothing else. */
void      rt_logprob_row(rt_logprob *out, const float *logits, int32_t vocab, int32_t token, int32_t top);
void      rt_stats_get(const rt_session *s, rt_stats *out);

/* ---- going on later: in the session, or from an image of it ----
 * A model of attention alone can go on from any place (number of tokens) of what it holds. Delta-net matrices cannot be trimmed: such a
 * session goes on from its end, or from a checkpoint. Checkpoints are made at the last token of each prompt and at the marks, as many as
 * rt_session_options asked for; when they are all in use the oldest makes room. */

/* What the session holds: all tokens that it was given or made. Lives until its next step or prompt. */
size_t    rt_session_text(const rt_session *s, const int32_t **t);
/* Tokens of the prompt t that rt_prompt would not have computed again; at most n - 1, since the last one is always evaluated. */
int32_t   rt_resumable(const rt_session *s, const int32_t *t, size_t n);
/* Places of the noted prompt at which a later prompt shall be able to go on: ascending, each in [1, prompt), at most RT_MARKS. A step's chunk
 * ends at each of them and leaves a checkpoint; those that the session has passed are left out. Replaces the marks before; rt_prompt
 * clears them. */
enum { RT_MARKS = 32 };
rt_status rt_mark(rt_session *s, const int32_t *at, size_t n);

/* An image holds the tokens, keys/values, matrices and windows of a place, and the drafter's keys/values and waiting taps; loaded, text and
 * state go on to the bit as if it had all been computed, at the accept lengths of before. It is valid under one identity, which
 * rt_property(g, "identity") gives as a line of text: model file, numeric recipe, backend, types of keys and values, fa_window, drafter.
 * The size of a session's context is no part of it. All bytes of an image are defined, and a checksum covers them. */

/* The deepest place at or below `most` at which the session can be saved as it is; 0: none. */
int32_t   rt_save_place(const rt_session *s, int32_t most);
/* Bytes of the image at such a place; 0: it cannot be saved there. */
size_t    rt_save_bytes(const rt_session *s, int32_t at);
/* Writes the image to out [n]; n is at least rt_save_bytes. The session goes on as if nothing had happened, but its last block can no longer
 * be shortened. Errors are the step's. */
rt_status rt_save(rt_step *st, rt_session *s, int32_t at, uint8_t *out, size_t n);
/* Replaces what the session holds; the next call is rt_prompt, with any text. An image that is damaged, of another identity or longer than
 * the context is refused with the reason (RT_EFORMAT, RT_EUNSUPPORTED, RT_EFULL) and leaves the session as it was; image needs no
 * alignment. After RT_EBACKEND the session is empty. Called where the session's steps are. */
rt_status rt_load(rt_session *s, const uint8_t *image, size_t n);

rt_status rt_step_new(rt_step **out, rt_engine *g, const rt_step_options *o, rt_error *e);
void      rt_step_free(rt_step *st);
const char *rt_step_error(const rt_step *st);
rt_status rt_step_run(rt_step *st, rt_session *const *s, rt_block *out, size_t n);/* one pass for all of them */
rt_status rt_next(rt_step *st, rt_session *s, rt_block *out);                     /* runs steps until s has a block or ends */
/* Acceptance seen so far by this step object, as a profile for `simulate`. */
void      rt_step_profile(const rt_step *st, rt_profile *out);

/* Looking inside, for comparisons with other programs. Each call sets the session's text to `prefix` (committed first, may be empty),
 * evaluates n rows after it and keeps none. parents NULL: a chain of any length; else one tree, n <= 64, parents[0] == -1, parents[i] <
 * i. row is called in order with logits [vocab] and, for an engine with taps, taps [n_taps * dim] (else NULL). */
typedef void (*rt_row)(void *ud, int32_t i, const float *logits, const float *taps);
rt_status rt_rows(rt_step *st, rt_session *s, const int32_t *prefix, size_t n_prefix, const int32_t *token, const int32_t *parent, int32_t n,
                  rt_row row, void *ud);
/* The drafter's logits for the block that starts with `anchor` after prefix; row is called draft.block times. */
rt_status rt_draft_rows(rt_step *st, rt_session *s, const int32_t *prefix, size_t n_prefix, int32_t anchor, rt_row row, void *ud);
/* Milliseconds of a pass of n rows as if `after` tokens were committed, at least those that are (whose number -1 stands for); repeats >= 1 values
 * to ms. Nothing is kept. */
rt_status rt_time_pass(rt_step *st, rt_session *s, int32_t after, int32_t n, int32_t repeats, double *ms);

/* What this machine can do at most: bytes read from memory, int8 and f32 operations (a multiply-add is two). Measured in rounds of about
 * a twentieth of a second, so that they can lie between passes: a round on n <= threads threads raises what it finds faster in `fastest`. */
typedef struct rt_roofline rt_roofline;
typedef struct { double bytes_per_s, int8_ops_per_s, f32_ops_per_s; } rt_peaks;
rt_status rt_roofline_new(rt_roofline **out, int32_t threads, rt_error *e);       /* threads 0: one per core */
void      rt_roofline_free(rt_roofline *r);
int32_t   rt_roofline_threads(const rt_roofline *r);
void      rt_roofline_round(rt_roofline *r, int32_t n, rt_peaks *fastest);

#ifdef __cplusplus
}
#endif
#endif
