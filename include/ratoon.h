/* ratoon.h - language models with lossless speculative decoding: whatever the drafter, budget, cache history and
 * other sessions in the batch, the tokens are those of plain decoding.
 *
 * An engine is a loaded target model, its drafter and a backend; it never changes after rt_open. A session is one text
 * and its state. A step object owns threads, scratch memory and the measured costs, and advances sessions.
 *
 *     rt_options o = RT_OPTIONS_INIT;
 *     o.model = "model.gguf";
 *     rt_engine *engine = NULL;  rt_session *session = NULL;  rt_step *step = NULL;  rt_error e;  rt_block b;
 *     if (rt_open(&engine, &o, &e) != RT_OK || rt_session_new(&session, engine, NULL, &e) != RT_OK ||
 *         rt_step_new(&step, engine, NULL, &e) != RT_OK)
 *         return complain(e.text);
 *     int32_t prompt[1024];
 *     size_t n = rt_tokenize(engine, text, strlen(text), true, prompt, 1024);    // like snprintf: n may exceed 1024
 *     rt_prompt(session, prompt, n);                                             // only recorded; computes nothing
 *     while (rt_next(step, session, &b) == RT_OK)                                // one token or several
 *         for (int32_t i = 0; i < b.n; i++) use(b.token[i]);                     // until rt_token_ends(engine, token)
 *     rt_step_free(step);  rt_session_free(session);  rt_close(engine);
 *
 * examples/hello.c is the whole program.
 *
 * Threads
 *   Engine: every call may run in any number of threads at once; rt_close must be the last call on the engine.
 *   Session, step: each is used by one thread at a time. Different steps of one engine, with different sessions, run in
 *   parallel. Both may be created and freed in any thread.
 *   rt_step_cancel: in any thread while the step object lives.
 *   On NVIDIA's cards calls make the card's primary context the calling thread's, and leave it so.
 *
 * Memory
 *   Memory that a call returns by pointer belongs to the library and lives until the next call on the same object.
 *   What a caller passes in is copied, unless its description says how long it must live.
 *
 * Errors
 *   Functions return RT_OK, RT_END or a negative rt_status. The reason is one line of text: in rt_error if the call
 *   takes one (it may be NULL), else in rt_step_error if it takes a step, else in rt_session_error.
 *
 * Sizes
 *   A struct that the caller fills begins with its size and is initialised by its INIT macro (or, in C, with values:
 *   `RT_OPTIONS(.model = "model.gguf")`); all other fields are then 0, the default everywhere. A function that fills a
 *   caller's struct takes the struct's size as an argument. So a program built with an older header runs with a newer
 *   library, and one built with a newer header runs as long as it sets nothing that the library does not know.
 *
 * The library prints nothing, reads no environment variable, never exits and has no global state. ratoon_chat.h has
 * conversations, grammars and answers on top of this, ratoon_lab.h what measurements and comparisons need. */
#ifndef RATOON_H
#define RATOON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#define RT_INIT(type) [] { type rt_new = {}; rt_new.size = sizeof(type); return rt_new; }()
#else
#define RT_INIT(type) { .size = sizeof(type) }
#define RT_OPTIONS(...)         (rt_options) { .size = sizeof(rt_options), __VA_ARGS__ }
#define RT_SESSION_OPTIONS(...) (rt_session_options) { .size = sizeof(rt_session_options), __VA_ARGS__ }
#define RT_STEP_OPTIONS(...)    (rt_step_options) { .size = sizeof(rt_step_options), __VA_ARGS__ }
#define RT_SAMPLING(...)        (rt_sampling) { .size = sizeof(rt_sampling), __VA_ARGS__ }
#define RT_DIFFUSION(...)       (rt_diffusion) { .size = sizeof(rt_diffusion), __VA_ARGS__ }
#endif
#define RT_OPTIONS_INIT         RT_INIT(rt_options)
#define RT_SESSION_OPTIONS_INIT RT_INIT(rt_session_options)
#define RT_STEP_OPTIONS_INIT    RT_INIT(rt_step_options)
#define RT_SAMPLING_INIT        RT_INIT(rt_sampling)
#define RT_DIFFUSION_INIT       RT_INIT(rt_diffusion)

typedef struct rt_engine rt_engine;
typedef struct rt_session rt_session;
typedef struct rt_step rt_step;

/* ---- results ---- */

typedef enum {
    RT_OK           = 0,
    RT_END          = 1,       /* the text has ended: max_tokens were made, or the context is full */
    RT_EARG         = -1,      /* an argument or option is wrong */
    RT_ENOMEM       = -2,      /* memory is too short, or would be after the allocation */
    RT_EIO          = -3,      /* a file cannot be read */
    RT_EFORMAT      = -4,      /* a file or image is damaged or of another format */
    RT_EUNSUPPORTED = -5,      /* it is well formed, but this library does not support it */
    RT_EFULL        = -6,      /* it does not fit the context */
    RT_ECANCEL      = -7,      /* a hook or rt_step_cancel cancelled it */
    RT_EBACKEND     = -8,      /* the backend failed */
    RT_ENOTOKEN     = -9,      /* the mask allows no token; rt_allow, rt_constrain, rt_sampling_set and rt_prompt let
                                * the session try again */
    RT_ELOST        = -10      /* in the place of RT_EBACKEND, from any call: the device is lost to this process, which
                                * has to be started again */
} rt_status;

typedef struct {
    rt_status code;
    char      text[512];       /* one line: the file or field, its value and what was expected; empty with RT_OK */
} rt_error;

const char *rt_version(void);                                                     /* "0.1.0"; static */
const char *rt_status_text(rt_status status);                                     /* "out of memory"; static */

/* ---- the engine ---- */

/* Any hook may be NULL. rt_open calls log and progress, a step calls all three in the thread that runs it. A hook must
 * not call functions of the object that calls it, except rt_step_cancel. */
typedef struct {
    void *ud;                  /* the first argument of every hook */
    /* level: 0 error, 1 warning, 2 information, 3 detail (from a step: the controller starts or stops drafting) */
    void (*log)(void *ud, int level, const char *line);
    /* what: "model" or "drafter": weights loaded, out of total; "pass", 0 of 0: a layer of a pass is done. Return false
     * to cancel. */
    bool (*progress)(void *ud, const char *what, int64_t done, int64_t total);
    /* The rows [n, cols] of each named tensor of a pass, for debugging; layer -1: it belongs to no layer. */
    void (*trace)(void *ud, const char *name, int32_t layer, const float *rows, int32_t n, int32_t cols);
} rt_hooks;

typedef struct {
    size_t      size;          /* RT_OPTIONS_INIT */
    const char *model;         /* the target's GGUF file; required */
    const char *draft;         /* the drafter: a GGUF file or a Hugging Face folder; "mtp": the target's own MTP layer,
                                * "auto": that layer if the file has a usable one; NULL: none. The library searches for
                                * no files. */
    const char *backend;       /* "cpu" (also "auto", the default), "cpu:LEVEL" with LEVEL portable, avx2, avxvnni,
                                * avx512, amx, neon or i8mm, or "cuda", "cuda:N": the first, or N-th from 0, of NVIDIA's
                                * cards; "cuda:N+M", up to RT_CARDS_MAX of them: each runs some of the layers, in this
                                * order, and as many as make it as full as the others. The text is the same. */
    const char *kv_k, *kv_v;   /* types of the target's stored keys and values, in any pair: "f32", "f16", "bf16",
                                * "q8_0", "q5_1", "q5_0", "q4_1", "q4_0" or "tq3_0"; NULL: f16, or f32 for a model file
                                * that is f32 throughout. A drafter's are f16, or f32 with draft_type "keep". */
    const char *draft_type;    /* "q8_0" (NULL): a drafter's matrices above 8 bits are quantised at load; "keep": they
                                * are not */
    int32_t     threads;       /* of a pass: 1 to 256; 0: one per core */
    int32_t     fa_window;     /* positions that each row of the target attends to, itself included, in layers without a
                                * window of their own; 0: all. It changes the text, equally with and without
                                * speculation. */
    const int32_t *taps;       /* for an engine without a drafter: layers whose output rt_rows returns; ascending, 0 to
                                * model.layers; read only during rt_open */
    int32_t     n_taps;        /* 0 to 16 */
    bool        no_repack;     /* weights are read from the mapped file and not copied, for machines short of memory:
                                * slower, the same text. The file must not change while the engine is open. */
    bool        overcommit;    /* allocate weights, sessions and steps even if they need more memory than is free. By
                                * default this is refused (RT_ENOMEM), since the system would grant the memory and kill
                                * the process once it is used. */
    rt_hooks    hooks;         /* log and progress are called while the engine opens */
    int32_t     gpu_layers;    /* how many of the model's last layers run on the backend if that is a GPU, or several,
                                * together with the head and the drafter; the CPU runs the others. The text is the same.
                                * 0: all; RT_LAYERS_AUTO: as many as their free memory has room for, with the usual
                                * session and step (rt_plan says it for others); RT_LAYERS_NONE: the CPU runs all */
    int32_t     expert_slots;  /* with expert_ram or expert_vram: experts per layer that come and go, while the others
                                * stay for as long as they are the most used; 0: an eighth of all */
    uint64_t    expert_ram;    /* of a mixture: bytes of main memory for its experts, those of the layers that a GPU
                                * runs only with expert_vram. Those that are not in memory are read from the file when
                                * rows choose them; the text is the same. 0: all are in memory; RT_EXPERTS_AUTO: as many
                                * as free memory has room for beside the rest, with the usual session and step (rt_plan
                                * says it for others) */
    const char *expert_io;     /* how they are read: "io_uring", "pread" (in threads), both past the page cache where
                                * the file system allows; "mmap" (a file that is cut short meanwhile raises SIGBUS);
                                * "auto" (NULL): io_uring if the system grants it, else pread */
    const char *expert_profile;               /* which experts earlier texts used (rt_experts_save): the most used are
                                * loaded first; NULL, or a file that does not exist: unknown */
    uint64_t    expert_vram;   /* of a mixture: bytes of the GPU's memory for the experts of its layers. These are in
                                * main memory then, where the GPU reads those that it does not hold, or as many of them
                                * as expert_ram has room for, and at least those of a layer; the text is the same. 0:
                                * the GPU holds all; RT_EXPERTS_AUTO: all, or as many as its free memory has room for
                                * beside the rest, where RT_LAYERS_AUTO prefers more layers to more experts. Several
                                * GPUs hold all experts of their layers. */
    const char *weight_type;   /* "keep" (NULL): weights are what the file has; "q8_0": those of 16 bits are quantised
                                * at load, for nearly half the memory and time. It changes the text, equally with and
                                * without speculation, to that of a file quantised so. */
    const int32_t *card_layers;               /* [the GPUs that are named] of several GPUs: how many of the layers each
                                * runs, together gpu_layers, or all; what rt_plan has found for other sessions than the
                                * usual (rt_needs.card). Read only during the call; NULL, or with RT_LAYERS_AUTO: as
                                * many as make it as full as the others */
} rt_options;
enum { RT_LAYERS_AUTO = -1, RT_LAYERS_NONE = -2 };
#define RT_EXPERTS_AUTO UINT64_MAX

/* Loads the files. *out: close it with rt_close; NULL on failure. Strings are not kept. Errors: any but RT_EFULL and
 * RT_ENOTOKEN; RT_ECANCEL if progress returned false. */
rt_status rt_open(rt_engine **out, const rt_options *o, rt_error *e);
/* Call it after freeing the engine's sessions and steps. NULL is allowed, here and in the other free functions. */
void      rt_close(rt_engine *g);

/* Writes a property as text, like snprintf; 0: unknown key. Keys: "identity" (see rt_save), "model", "model.arch",
 * "model.name", "model.layers", "model.dim", "model.vocab", "model.ctx", "model.parameters", "model.bytes",
 * "model.taps", "model.tokenizer", "draft" and "draft.*" likewise with "draft.block", "draft.mask", "draft.fc", "kv",
 * "backend", "backend.level" (the processor's instructions that it uses, such as "avx2"), "backend.layers" (how many of
 * the model's layers it runs), "backend.chunk" (prompt tokens per pass, unless a step says otherwise), "chat_template";
 * "bos_token", "eos_token", "pad_token", "unk_token", and "fim_pre_token", "fim_suf_token", "fim_mid_token",
 * "fim_rep_token", "fim_sep_token" (for filling in text): texts of tokens;
 * "model.pass.parameters" and "model.pass.bytes": the weights that a pass of one row reads and multiplies: all but an
 * embedding that is not also the head, and of a mixture of experts those of one row; "model.canvas": the tokens of a
 * block of a model that denoises, 0: it does not; "model.experts",
 * "model.experts.used", "model.experts.bytes": of a mixture, experts of a layer and of a row, and bytes of all of them,
 * 0: no mixture; "model.kv.bytes": keys and values of one token, "model.kv.q8": if both were of type q8_0;
 * "sampling.temp", "sampling.top_k", "sampling.top_p", "sampling.min_p", "sampling.penalty_repeat",
 * "sampling.penalty_last_n": what the model file recommends for drawing tokens (general.sampling.*), where it says
 * something usable; penalty_last_n 0: no penalty. Nothing uses them unless the caller does. */
size_t    rt_property(const rt_engine *g, const char *key, char *out, size_t cap);

/* ---- text and tokens ---- */

/* rt_tokenize, rt_tokenize_prompt and rt_detokenize are like snprintf: they write at most cap elements and return how
 * many there are. 0 if the file has no tokenizer. */
bool      rt_has_tokenizer(const rt_engine *g);
/* special: control tokens in the text become their ids, and BOS is prepended if the file asks for it, also to a text
 * that begins with it: rt_tokenize_prompt prepends it only where it is missing. */
size_t    rt_tokenize(const rt_engine *g, const char *s, size_t n, bool special, int32_t *out, size_t cap);
typedef struct { size_t at, n; } rt_span;                                         /* bytes [at, at + n) of a text */
/* Tokenizes the prompt of a conversation. Control tokens become their ids except where they overlap one of the spans
 * (ascending), which mark text that a client wrote. BOS is prepended if the file asks for it and the text does not
 * begin with it. */
size_t    rt_tokenize_prompt(const rt_engine *g, const char *s, size_t n, const rt_span *client, size_t n_client,
                             int32_t *out, size_t cap);
size_t    rt_detokenize(const rt_engine *g, const int32_t *t, size_t n, char *out, size_t cap);
/* The bytes of one token (which may be part of a character) and their number; control tokens have none. The bytes live
 * as long as the engine, as do those of rt_token_text. */
const char *rt_token_bytes(const rt_engine *g, int32_t id, size_t *n);
/* The same, but a control token has its name as text. */
const char *rt_token_text(const rt_engine *g, int32_t id, size_t *n);
bool      rt_token_ends(const rt_engine *g, int32_t id);                          /* an end-of-generation token */
int32_t   rt_token_find(const rt_engine *g, const char *s, size_t n);             /* -1: none has exactly this text */
int32_t   rt_token_bos(const rt_engine *g);                                       /* -1: none */
bool      rt_adds_bos(const rt_engine *g);

/* ---- sessions ---- */

/* The most tokens of a context: rotary embeddings are exact up to this position. A model that denoises needs room for a
 * block behind it, so its longest context is shorter by one. */
enum { RT_CTX_MAX = 1 << 20 };

typedef struct {
    size_t  size;              /* RT_SESSION_OPTIONS_INIT */
    int32_t ctx;               /* tokens of the context, 1 to RT_CTX_MAX; 0: 8192, or fewer if the model was trained for
                                * fewer or fewer fit into 80 % of free memory */
    int32_t draft_ctx;         /* tokens that the drafter sees, 1 to RT_CTX_MAX; 0: chosen to suit it */
    int32_t checkpoints;       /* places to go back to, 1 to 8 (see rt_mark); 0: 3; -1: none */
    int32_t ngram;             /* 0 or 1: earlier text is looked up to guess how the text continues (about 30 bytes a
                                * token); -1: off */
} rt_session_options;

/* o NULL: the defaults. *out: free it before the engine; NULL on failure (RT_EARG, RT_ENOMEM, RT_EBACKEND). */
rt_status rt_session_new(rt_session **out, rt_engine *g, const rt_session_options *o, rt_error *e);
void      rt_session_free(rt_session *s);
const char *rt_session_error(const rt_session *s);                                /* of the last call; "": none */
int32_t   rt_session_ctx(const rt_session *s);

/* Records the prompt (n at least 1); steps do the work. Keeps the longest prefix that it shares with what the session
 * holds, as far as the session can go back (rt_resumable). RT_EFULL: longer than the context; RT_EARG: an id outside
 * the vocabulary. */
rt_status rt_prompt(rt_session *s, const int32_t *t, size_t n);

typedef struct { int32_t id; float add; } rt_bias;            /* added to the logit of id; not NaN */
typedef struct {
    size_t   size;             /* RT_SAMPLING_INIT */
    float    temperature;      /* 0 to 10000; below 1e-5: greedy */
    float    top_p;            /* above 0, up to 1; 1 or 0: off */
    float    min_p;            /* 0 to 1; 0: off */
    float    repetition;       /* 0.01 to 100; 1 or 0: off */
    float    frequency;        /* -2 to 2; 0: off */
    float    presence;         /* -2 to 2; 0: off */
    int32_t  top_k;            /* 0: off */
    int32_t  rep_window;       /* how many tokens the three penalties look back, 1 to 256; 0: 256 */
    int32_t  max_tokens;       /* tokens after the prompt; 0: until the context is full */
    int32_t  n_bias;           /* 0 to 300 */
    uint64_t seed;             /* same seed, text and options: same tokens */
    const rt_bias *bias;       /* copied */
} rt_sampling;
/* Takes effect from the next token on; p NULL: the defaults, which a new session has. RT_EARG names the field that is
 * out of range; nothing changes then. */
rt_status rt_sampling_set(rt_session *s, const rt_sampling *p);
/* mask writes one bit per id for the token after text + path to bits, in 32-bit words starting with bit 0 of bits[0].
 * It is called in the step's thread, either for the rows that acceptance visits or, if the backend draws the tokens
 * itself, for all rows of a tree while the pass runs, parents first and only if the parent's mask allows the row. So it
 * must be a pure function of text + path. If mask returns false, everything is allowed. NULL: no mask. ud must live as
 * long as the mask is set. For grammars: rt_constrain. */
rt_status rt_allow(rt_session *s, bool (*mask)(void *ud, const int32_t *path, size_t n, uint32_t *bits), void *ud);
/* How a model with a canvas ("model.canvas") denoises it; 0 in each field: as its file says. Such a model writes a
 * block of so many tokens at once, in steps, beginning with random tokens. Of rt_sampling it knows temperature, a
 * factor of both temperatures here (1: a new session's; 0: positions take their likeliest token), seed and max_tokens;
 * what else rt_sampling, rt_allow, rt_constrain and rt_logprobs_set can ask for it does not do (RT_EUNSUPPORTED). A
 * block may go on after a token that ends the text: what follows that token means nothing. */
typedef struct {
    size_t   size;             /* RT_DIFFUSION_INIT */
    int32_t  steps;            /* of a block at most, 1 to 65536 */
    int32_t  stability;        /* a block is done if its likeliest tokens have not changed in so many steps, and: */
    float    confidence;       /* their mean entropy is below this, in nats, up to 100; -1: never */
    float    t_max, t_min;     /* temperatures of the first and, nearly, of the last step, up to 10000 */
    float    entropy_bound;    /* a step takes tokens for positions, those of least entropy first, while the entropies
                                * before them do not add up to more, in nats, up to 10000 */
    float    trim;             /* ends a block before a token whose probability is below this and which is the same as
                                * one beside it, as doubtful ones are (0.9 is known to help): what is cut off is
                                * denoised again. 0: blocks are whole. */
    int32_t  trim_from;        /* but not before so many tokens; 0: 16 */
    bool     lock;             /* another way to write, an experiment that models are not trained for: a block begins as
                                * mask tokens, and positions are locked one by one, once their likeliest token, the mask
                                * left out, has been the same in `stability` steps before and has an entropy below
                                * entropy_bound. Nothing is drawn; confidence and trim have no meaning. */
    int32_t  mask;             /* the mask token; 0: as the file says, else "<mask>", else 4 */
    /* Told after each step of a block, from 1, what the block would be if this were the last: a draft. Called in the
     * step's thread. NULL: nobody is told. */
    void   (*draft)(void *ud, const int32_t *token, int32_t n, int32_t step);
    void    *ud;
} rt_diffusion;
/* Takes effect from the next step on, lock and mask with a new block; p NULL: the defaults. RT_EARG names the field
 * that is out of range, RT_EUNSUPPORTED: the model does not denoise; nothing changes then. */
rt_status rt_diffusion_set(rt_session *s, const rt_diffusion *p);
/* on false: plain decoding from the next pass on; the text is the same. */
rt_status rt_speculate(rt_session *s, bool on);

/* Log-probabilities of the tokens of every block, from the next one on. They belong to the model's own distribution,
 * before penalties, biases, masks and temperature, and are the same with and without speculation. They cost a pass over
 * the vocabulary per token (2 ms for 150,000 on one core). */
enum { RT_TOP_MAX = 20 };
typedef struct { int32_t id; float logprob; } rt_alternative;
typedef struct {
    float   logprob;           /* of the token itself, natural logarithm */
    int32_t n;                 /* alternatives in top */
    rt_alternative top[RT_TOP_MAX];                                               /* likeliest first, then by id */
} rt_logprob;
/* top: how many of the likeliest tokens are listed with each, 0 to RT_TOP_MAX; -1: nothing is computed (the
 * default). */
rt_status rt_logprobs_set(rt_session *s, int32_t top);
/* One per token of the last block, valid as long as the block; NULL: off, or they were off when it was made. */
const rt_logprob *rt_logprobs(const rt_session *s);
/* The same for one row of logits [vocab], such as rt_rows gives: all that scoring a given text needs. */
void      rt_logprob_row(rt_logprob *out, const float *logits, int32_t vocab, int32_t token, int32_t top);

/* Sources of guesses: a drafter's block, the text itself, the target's own MTP layer. */
enum { RT_BLOCK, RT_NGRAM, RT_MTP, RT_SOURCES, RT_SOURCES_MAX = 8 };
/* Sums since rt_prompt. */
typedef struct {
    int64_t prompt_tokens;     /* of the prompt */
    int64_t resumed;           /* of these, the tokens that were not computed again */
    int64_t generated;         /* tokens in blocks */
    int64_t passes;            /* of the target while decoding */
    int64_t drafted, accepted; /* rows that were guessed; rows that the target agreed with */
    double  prefill_s;         /* seconds for the prompt */
    double  decode_s;          /* seconds for the rest */
    int64_t drafts;            /* proposals of the drafting model */
    int64_t plain;             /* passes of one row */
    int64_t changes;           /* how often the controller started or stopped using the drafting model */
    int64_t drafted_by[RT_SOURCES_MAX], accepted_by[RT_SOURCES_MAX];
                               /* rows by source; a row that two sources proposed counts for both. The first RT_SOURCES
                                * entries are in use. */
    double  pass_s;            /* the part of decode_s spent in the target's passes; the rest is look-up, drafting,
                                * trees, acceptance and keeping */
    /* Mixtures: experts that rows chose, in all layers, in the passes in which this session decoded or which
     * rt_time_pass timed, and how many of them were different in their pass and layer, so that they were read. Both
     * count the rows of all sessions that shared these passes. 0: no mixture, or the backend does not count. */
    int64_t experts_chosen, experts_read;
    /* Of an engine with expert_ram or expert_vram, in all passes in which this session took part, prompts included:
     * experts that were not in memory, their bytes in the file, and seconds in which passes waited for them. */
    int64_t experts_missed, experts_missed_bytes;
    double  experts_wait_s;
    /* Models that denoise: blocks that were finished, and steps, those of an unfinished block included. */
    int64_t blocks, steps;
} rt_stats;
/* size: sizeof(rt_stats) of the caller's header; that many bytes are written. */
void      rt_stats_get(const rt_session *s, rt_stats *out, size_t size);

/* ---- steps ---- */

typedef struct {
    size_t  size;              /* RT_STEP_OPTIONS_INIT */
    int32_t sessions;          /* maximum per pass, 1 to 64; 0: 1 */
    int32_t chunk;             /* prompt tokens per pass, 1 to 4096; 0: what suits the backend ("backend.chunk") */
    int32_t budget;            /* guessed rows per pass, 1 to 63; 0: automatic; -1: plain decoding */
    int32_t draft_block;       /* rows of a proposal including the root, 2 to 33; 0: what the drafter was trained for */
    int32_t threads;           /* 1 to 256; 0: as many as the engine. Steps that run in parallel share the cores best
                                * with few threads each. */
    bool    chain;             /* draft one chain instead of a tree */
    rt_hooks hooks;
} rt_step_options;

/* o NULL: the defaults. *out: free it before the engine; NULL on failure (RT_EARG, RT_ENOMEM, RT_EBACKEND). */
rt_status rt_step_new(rt_step **out, rt_engine *g, const rt_step_options *o, rt_error *e);
void      rt_step_free(rt_step *st);
const char *rt_step_error(const rt_step *st);                                     /* of the last call; "": none */
/* Cancels the pass under way after its current layer, or the next pass if none is running: once, with RT_ECANCEL. May
 * be called in any thread. What was committed stays, and the step can be run again. */
void      rt_step_cancel(rt_step *st);

/* The last token of a block is the target's own; those before it were guessed, and the target agreed. Or it is a canvas
 * that has been denoised (rt_diffusion), of up to 256 tokens. status RT_OK with n 0: a prompt chunk or a step of a
 * canvas was computed, or it is not yet the session's turn. RT_END, also with n 0: the text has ended. A negative
 * status belongs to that session alone, with the reason in rt_session_error, and stays until rt_prompt (RT_ENOTOKEN:
 * see there). */
typedef struct { const int32_t *token; int32_t n; rt_status status; } rt_block;
/* Runs one pass for all n sessions, which must be distinct, belong to the step's engine and have a prompt; fills out
 * [n] in their order. (Of a model that denoises: for one of them, in turn, and if it has a canvas, for those of others
 * that there is room for.) A pass that fails leaves every session as it was; the reason is in rt_step_error. */
rt_status rt_step_run(rt_step *st, rt_session *const *s, rt_block *out, size_t n);
/* Runs passes until s has a block or ends; returns the block's status, or that of the pass that failed. */
rt_status rt_next(rt_step *st, rt_session *s, rt_block *out);
/* Keeps the first n tokens of the last block, as if the others had not been generated. RT_EARG: the block has fewer, or
 * the next pass has begun. */
rt_status rt_take(rt_session *s, int32_t n);

/* What a step has learned about the times of passes and proposals, as a line of text like snprintf; 0: nothing yet. A
 * program may keep it (at most RT_COSTS bytes with the zero) and hand it to a later step of the same engine identity,
 * backend, machine, threads and draft_block, which then need not learn it again. */
enum { RT_COSTS = 2048 };
size_t    rt_step_costs(const rt_step *st, char *out, size_t cap);
/* Call it before the first pass. It changes speed only, never a token, and times that do not hold here are soon
 * replaced. RT_EFORMAT: the line is damaged or no machine has such times; nothing changes. */
rt_status rt_step_costs_set(rt_step *st, const char *line);

/* ---- experts of which memory holds only some ---- */

/* What an engine with expert_ram or expert_vram has done since it was opened, with both the sums. All zero: its experts
 * are all in memory, those of a GPU's layers in its own. */
enum { RT_LATENCIES = 24 };
typedef struct {
    int64_t slots, pinned;     /* experts that memory has room for, in all layers; of these, those that stay as long as
                                * they are the most used. The others make room for what is read: the ring. */
    int64_t bytes;             /* of memory for them and for reading */
    int64_t chosen;            /* how often rows chose an expert. A layer reads each once per pass, from: */
    int64_t pinned_hits, ring_hits, misses;    /* memory, a GPU's layers from its own; or the file */
    int64_t missed_bytes;      /* read from there */
    int64_t evicted, promoted; /* experts that made room; that came from the ring to stay */
    int64_t latency[RT_LATENCIES];             /* of reads, by the power of two of their microseconds: [i] counts those
                                                * below 2^(i + 1) */
    double  wait_s, pack_s;    /* seconds in which passes waited for reads; in which what was read was packed */
    char    io[24];            /* how the file is read: "io_uring, direct"; "bus": main memory has what a GPU has not */
    int64_t bus_hits;          /* neither in the GPU's memory nor missed: read by the GPU in main memory */
    int64_t bus_bytes;         /* that it has read there, just read from the file or not */
} rt_expert_stats;
/* May be called at any time, in any thread. size: sizeof(rt_expert_stats) of the caller's header. */
void      rt_expert_stats_get(const rt_engine *g, rt_expert_stats *out, size_t size);
/* Adds to the file at path how often each expert was used since the last such call, for expert_profile of later
 * engines; it is written completely or not at all. RT_END: all experts are in memory, nothing is counted. RT_EFORMAT:
 * there is a file of another model, or a damaged one; it is left alone. */
rt_status rt_experts_save(rt_engine *g, const char *path, rt_error *e);

/* ---- memory, before it is taken ---- */

/* What one of the GPUs will hold. */
typedef struct {
    uint64_t model, drafter, session, step;        /* bytes of its memory, by owner */
    uint64_t free, total;      /* see device_free, device_total */
    int32_t  layers;           /* that it runs; the last GPU that runs any has the head and the drafter besides */
    char     backend[20];      /* its name for rt_options.backend */
} rt_card_needs;
enum { RT_CARDS_MAX = 8 };
typedef struct {
    uint64_t model, drafter, session, step, process;                              /* bytes of main memory, by owner; see
                                                                                   * rt_plan */
    uint64_t free;             /* bytes available now without swapping, within the limits of this process and its
                                * control groups; 0: unknown */
    uint64_t total;            /* bytes of the machine's memory; 0: unknown */
    int32_t  ctx;              /* of the session, in tokens */
    int32_t  ctx_train;        /* that the model was trained for, in tokens */
    /* What a pass of the target, and one of the drafter, reads and multiplies besides keys and values: bytes and
     * values of weights; of the drafter with the head, which may be the target's. 0: no drafter. */
    uint64_t pass_bytes, pass_parameters, draft_bytes, draft_parameters;
    uint64_t kv_bytes;         /* keys and values of one token */
    uint64_t state_bytes;      /* of recurrent layers: what a pass reads and writes whatever the context */
    int32_t  layers, draft_layers;
    int32_t  draft_block;      /* rows of a proposal, the root included */
    int32_t  draft_passes;     /* passes of the drafter for a proposal: 1, or one per guess */
    char     level[16];        /* the backend's; see rt_property "backend.level" */
    uint64_t kv_q8_bytes;      /* keys and values of one token if both were of type q8_0; 0: they cannot be */
    uint64_t device_model, device_drafter, device_session, device_step;           /* bytes of a GPU's memory, by
                                                                                   * owner; 0: it is main memory. Of
                                                                                   * several GPUs, here and in the next
                                                                                   * three: the sums; see card */
    uint64_t device_free;      /* bytes of it that may be taken: a 64th of what is free is left for what the driver
                                * takes besides; 0: unknown */
    uint64_t device_total;     /* bytes of it in all; 0: there is none */
    int32_t  gpu_layers;       /* layers that the GPU runs: as given, or as many as fit */
    uint64_t expert_bytes;     /* of a mixture's experts, all together. A pass of one row reads experts_used / experts
                                * of them; pass_bytes and pass_parameters are of such a pass. */
    int32_t  experts, experts_used;                                               /* of a layer, of a row; 0: none */
    uint64_t expert_ram;       /* bytes of memory for experts, if it does not hold all: as given, or as many as fit;
                                * 0: it holds all */
    uint64_t expert_vram;      /* the same of a GPU's memory; and bytes of main memory, in `model` too, where the GPU */
    uint64_t expert_host;      /* reads the others, or some of them, and then in expert_ram too */
    int32_t  canvas, canvas_steps;                 /* of a model that denoises: tokens of a block, and its steps at
                                                    * the most, each a pass of as many rows; 0: it does not */
    int32_t  cards;                                /* the GPUs that were named; 0: none */
    rt_card_needs card[RT_CARDS_MAX];              /* [cards], in the order of their layers */
} rt_needs;
#define RT_DEVICE "device "    /* begins the names of the parts that are in a GPU's memory; of several GPUs, the GPU's
                                * name comes next */
/* Reports every part of the memory that one session and one step will take, before anything large is loaded. owner:
 * "model", "drafter", "session", "step", or "process" for what the process itself holds (tokenizer, file indexes). The
 * names of parts that are in a GPU's memory begin with RT_DEVICE. Not in it: what only some sessions take, such as a
 * constraint (rt_constrain, about 24 MB each) or a saved state. part and needs may be NULL. so, st NULL: the defaults;
 * RT_LAYERS_AUTO counts a session for each of the step's. size: sizeof(rt_needs) of the caller's header; that many
 * bytes of needs are written. */
rt_status rt_plan(const rt_options *o, const rt_session_options *so, const rt_step_options *st,
                  void (*part)(void *ud, const char *owner, const char *name, size_t bytes), void *ud, rt_needs *needs,
                  size_t size, rt_error *e);

/* ---- resuming later: in the session, or from an image of it ----
 * A place is a number of tokens. A model with attention only can resume at any place within what it holds. Delta-net
 * matrices cannot be trimmed: such a session resumes at its end or at a checkpoint. Layers with a window of their own
 * keep only what it covers: if that is less than the context, a session resumes at one of its last 64 places or at a
 * checkpoint. Checkpoints are made at the last token of each prompt and at the marks, up to the number given in
 * rt_session_options; when all are in use the oldest is replaced. */

/* All tokens that the session holds, given or generated; returns their number. Valid until its next step or prompt. */
size_t    rt_session_text(const rt_session *s, const int32_t **t);
/* How many tokens of the prompt t would not be computed again after rt_prompt; at most n - 1, since the last one is
 * always evaluated. */
int32_t   rt_resumable(const rt_session *s, const int32_t *t, size_t n);
/* Marks places of the current prompt at which a later prompt shall be able to resume: ascending, each in [1, prompt),
 * at most RT_MARKS. A step's chunk ends at each of them and leaves a checkpoint; marks that the session has already
 * passed are ignored. Replaces earlier marks; rt_prompt clears them. */
enum { RT_MARKS = 32 };
rt_status rt_mark(rt_session *s, const int32_t *at, size_t n);

/* An image holds the tokens, keys/values, matrices and windows of a place, and the drafter's keys/values and waiting
 * taps. After loading, text and state continue bit for bit as if everything had been computed, with the same accept
 * lengths. An image is valid under one identity, which rt_property(g, "identity") gives as a line of text: model file,
 * numeric recipe, types of keys and values, fa_window, drafter. The session's context size is not part of it. All bytes
 * of an image are defined, and a checksum covers them. */

/* The last place at or below `most` at which the session can be saved as it is; 0: none. */
int32_t   rt_save_place(const rt_session *s, int32_t most);
/* Size of the image at such a place; 0: the session cannot be saved there. */
size_t    rt_save_bytes(const rt_session *s, int32_t at);
/* Writes the image to out [n]; n is at least rt_save_bytes. The session continues as if nothing had happened, except
 * that rt_take can no longer shorten its last block. Errors are the step's. */
rt_status rt_save(rt_step *st, rt_session *s, int32_t at, uint8_t *out, size_t n);
/* Replaces what the session holds; the next call is rt_prompt, with any text. An image that is damaged, of another
 * identity or longer than the context is refused with the reason (RT_EFORMAT, RT_EUNSUPPORTED, RT_EFULL) and leaves the
 * session as it was; image needs no alignment. After RT_EBACKEND the session is empty. Call it in the thread that runs
 * the session's steps. */
rt_status rt_load(rt_session *s, const uint8_t *image, size_t n);

#ifdef __cplusplus
}
#endif
#endif
