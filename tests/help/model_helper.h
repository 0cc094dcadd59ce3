/* model_helper.h - tiny models on a chosen backend, and passes by hand, for tests of exactness.
 * A Rig is a target, perhaps its drafter, and a backend (the CPU's, or the device-like one of device_backend.h, which
 * runs the same arithmetic behind unreadable memory); a Bench adds one step and one state, and gives rows' logits to
 * compare bit by bit. */
#ifndef RATOON_TESTS_HELP_MODEL_HELPER_H
#define RATOON_TESTS_HELP_MODEL_HELPER_H

#include "decode/inspect.h"
#include "decode/spec.h"
#include "device_backend.h"
#include "engine/engine.h"
#include "model/model.h"
#include "rows_helper.h"
#include "tiny.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

/* ---- random numbers ---- */

typedef struct { uint64_t key, i; } Dice;
static inline int32_t roll(Dice *d, int32_t n) { return (int32_t) (tiny_bits(d->key, d->i++) % (uint64_t) n); }

/* ---- rigs ---- */

typedef struct {
    TinyModel  tm;
    Status   (*write)(const TinyModel *m, const char *path, Error *err);     /* NULL: tiny_model_write */
    bool       draft, mtp;              /* mtp: the target's own layer drafts (qwen35) */
    TinyDraft  td;
    TinyLayout layout;
    bool       device;                  /* on the device-like backend */
    const char *backend;                /* or on the one of this name; NULL: on the CPU */
    int32_t    threads;                 /* 0: 1 */
    const char *level;
    bool       in_place;                /* weights stay where the file is mapped */
    int32_t    cut;                     /* layers of a first stage, on a backend of its own; 0: a single stage */
    Type       kv, kv_v;                /* of stored keys and values; kv T_F32: the file's own; kv_v T_F32: as kv */
} RigOptions;

typedef struct {
    char         dir[64];
    RigOptions   o;
    Backend     *be, *first;            /* first: the first stage's, where there are two */
    Gguf        *file, *draft_file;
    Safetensors *folder;
    Model       *m, *dm;
} Rig;

/* The smallest model of a family; ratio: value heads per key head (qwen35). */
RigOptions rig_options(TinyFamily family, int32_t ratio, bool device);
RigOptions rig_with_draft(RigOptions o, bool dflash2);
/* LAGUNA: with norms of taps and gates; DSPARK: a Markov head; LIBRARY: own embedding, and a head for a third of the
 * tokens. */
typedef enum { DRAFT_DFLASH, DRAFT_DFLASH2, DRAFT_LAGUNA, DRAFT_DSPARK, DRAFT_LIBRARY, DRAFT_KINDS } DraftKind;
RigOptions rig_with_draft_kind(RigOptions o, DraftKind kind);
RigOptions rig_with_mtp(RigOptions o);
void rig_open(Rig *r, const RigOptions *o);
void rig_close(Rig *r);

/* All targets that the tests cover: llama, qwen3, qwen35 with 1, 2 and 3 value heads per key head, qwen3moe,
 * qwen35moe, laguna, gemma4 dense and as a mixture. */
enum { RIG_KINDS = 10 };
RigOptions rig_kind(int32_t kind, bool device);
bool rig_has_mtp(int32_t kind);         /* whether rig_with_mtp knows this family */
/* "cpu:LEVEL", or "cpu" if level is NULL; valid until the next call. */
const char *cpu_named(const char *level);

/* The same files behind the handles of ratoon.h, on the CPU or the device-like backend. The model's files
 * go into dir. */
typedef struct { char dir[64], model[96], draft[96]; rt_engine *g; Backend *be; } PublicRig;
/* The one backend that these options name, which is no device. */
Backend *named_backend(const rt_options *o);
void public_files(PublicRig *p, const RigOptions *o);
void public_open(PublicRig *p, const RigOptions *o, const rt_hooks *hooks);
void public_close(PublicRig *p);                   /* the engine, if it is open, and the files */
/* A step and a session with these options; NULL: the defaults. */
void public_start(rt_step **st, rt_session **s, rt_engine *g, const rt_step_options *sto, const rt_session_options *so);

/* ---- passes by hand ---- */

enum { BENCH_CTX = 700, BENCH_CHUNK = 300, BENCH_SCRATCH = 4 << 20 };
typedef struct { Rig *r; Step step; int32_t vocab; Error err; } Bench;
void   bench_open(Bench *b, Rig *r);
void   bench_close(Bench *b);
State *bench_state(Bench *b, int32_t n_ckpt);      /* of the target; free with bench_free */
void   bench_free(State *s);

/* Runs rows as a pending tree (parent NULL: a chain); logits [n, vocab] (NULL: none). */
Status bench_tree(Bench *b, State *s, int32_t n, const int32_t *token, const int32_t *parent, float *logits);
/* Runs rows as a CHAIN, then advances over them; if `keep` is false, abandons them. */
Status bench_chain(Bench *b, State *s, int32_t n, const int32_t *token, float *logits, bool keep);
/* The bytes of the committed state, after folding it; malloc'd. */
uint8_t *bench_image(Bench *b, State *s, size_t *n);

/* A random tree of n rows: parents of all shapes; siblings have different tokens. */
void random_tree(Dice *d, int32_t n, int32_t vocab, int32_t *token, int32_t *parent);
void random_tokens(Dice *d, int32_t n, int32_t vocab, int32_t *token);

void assert_ok(Status st, const Error *err);
/* memcmp with the first difference in the message. */
void assert_same(const void *a, const void *b, size_t n, const char *what, ...) __attribute__((format(printf, 4, 5)));

/* ---- decoding ---- */

typedef struct {
    int32_t  ctx, draft_ctx, chunk, budget, sessions;   /* where 0: 200, the drafter's, 16, automatic, 1 */
    bool     chain, ngram;                         /* ngram: the sessions look their text up */
} LoopOptions;
typedef struct { Rig *r; Spec sp; ModelDrafter dflash; LoopOptions o; Error err; } Loop;
/* d NULL: the rig's own drafter, if it has one; &no_drafter: no drafter. */
extern Drafter no_drafter;
void     loop_open(Loop *l, Rig *r, Drafter *d, const LoopOptions *o);
void     loop_close(Loop *l);
Session *loop_session(Loop *l);                    /* free with loop_free */
void     loop_free(Session *s);
/* Steps until the session has n more tokens (or ends) and writes them to text [n]. Returns their number. */
int32_t  loop_run(Loop *l, Session *s, int32_t n, int32_t *text);
/* The text of a plain loop without a drafter: the truth for all comparisons. */
void     plain_text(Rig *r, const Sampling *p, const int32_t *prompt, int32_t n_prompt, int32_t *text, int32_t n,
                    int32_t ctx);
/* The folded image of a session's target state. */
uint8_t *loop_image(Loop *l, Session *s, size_t *n);
/* Checks that the session's state equals that of a fresh prompt of the same tokens. */
void     assert_fresh(Loop *l, Session *s, const char *what, ...) __attribute__((format(printf, 3, 4)));
/* truth [PROMPT + TEXT + AHEAD]: a random prompt and the text that plain decoding continues it with. */
enum { PROMPT = 20, TEXT = 40, AHEAD = 24 };
void     make_truth(Rig *r, int32_t mode, uint64_t seed, int32_t *truth);

enum { MODES = 4 };
/* 0 greedy; T 1 with top-p and penalties; T 0.7 with top-k and min-p; greedy with penalties */
Sampling sampling_mode(int32_t mode);

/* ---- drafters of the tests ---- */

typedef enum { FAKE_NOISE, FAKE_TRUTH, FAKE_SHIFTED, FAKE_MIXED } FakeKind;
typedef struct {
    Drafter        drafter;
    FakeKind       kind;
    Dice           dice;
    const int32_t *truth; int32_t n_truth;         /* the whole text, known in advance */
    struct { const Session *s; const int32_t *truth; int32_t n; } of[8];   /* where it depends on the session */
} FakeDrafter;
void fake_drafter(FakeDrafter *f, FakeKind kind, uint64_t seed, const int32_t *truth, int32_t n_truth);

#endif
