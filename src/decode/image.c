/* image.c - writing and reading image.h's bytes. */
#include "decode/image.h"

#include <stddef.h>
#include <string.h>

#include "base/bulk_sum.h"
#include "base/check.h"

static const char MAGIC[8] = "ratoonS";
enum { ALIGN = 64 };

/* In the machine's byte order; another order shows in the version. sum: of everything after it. */
typedef struct {
    char     magic[8];
    uint64_t sum;
    uint32_t version, n_identity;
    uint64_t n;                                    /* of the whole image */
    int32_t  n_tokens, draft_P, draft_ring, n_wait;
    uint64_t n_target, n_draft, n_taps;
} ImageHead;

static uint64_t sum_of(const uint8_t *bytes, size_t n)
{
    return bulk_sum(bytes + offsetof(ImageHead, version), n - offsetof(ImageHead, version));
}

/* Where the five parts begin: identity, tokens, target, drafter, taps. Returns false if the sizes are impossible. */
static bool lay_out(size_t start[5], size_t *total, const ImageHead *h)
{
    uint64_t size[5] = { h->n_identity, sizeof(int32_t) * (uint64_t) h->n_tokens, h->n_target, h->n_draft, h->n_taps };
    size_t at = sizeof *h;
    for (int32_t i = 0; i < 5; i++) {
        if (size[i] > SIZE_MAX || !check_round_up(&at, at, ALIGN)) return false;
        start[i] = at;
        if (!check_add(&at, at, (size_t) size[i])) return false;
    }
    *total = at;
    return true;
}

Status image_read(Image *out, const uint8_t *bytes, size_t n, Error *err)
{
    ImageHead h;
    size_t start[5], total;
    if (n < sizeof h) return fail(err, ST_FORMAT, "image: %zu bytes, expected at least %zu", n, sizeof h);
    memcpy(&h, bytes, sizeof h);
    if (memcmp(h.magic, MAGIC, sizeof MAGIC) != 0)
        return fail(err, ST_FORMAT, "image: it does not begin like a session of ratoon");
    if (h.version != IMAGE_VERSION)
        return fail(err, ST_UNSUPPORTED, "image: version %u, expected %d", h.version, IMAGE_VERSION);
    if (h.n != n) return fail(err, ST_FORMAT, "image: %zu bytes, expected %llu", n, (unsigned long long) h.n);
    bool sizes = h.n_tokens >= 1 && h.n_identity < IMAGE_IDENTITY && h.n_wait >= 0 && h.n_wait <= TAP_SLOTS &&
                 h.draft_P >= 0 && h.draft_ring >= 0;
    if (!sizes || !lay_out(start, &total, &h) || total != n)
        return fail(err, ST_FORMAT, "image: its parts of %d tokens do not fill %zu bytes", h.n_tokens, n);
    if (h.sum != sum_of(bytes, n))
        return fail(err, ST_FORMAT, "image: the checksum of its %zu bytes is wrong: it is damaged", n);
    *out = (Image) {
        .identity = (const char *) bytes + start[0], .n_identity = h.n_identity,
        .n_tokens = h.n_tokens, .draft_P = h.draft_P, .draft_ring = h.draft_ring, .n_wait = h.n_wait,
        .tokens = bytes + start[1], .target = bytes + start[2], .draft = bytes + start[3], .taps = bytes + start[4],
        .n_target = (size_t) h.n_target, .n_draft = (size_t) h.n_draft, .n_taps = (size_t) h.n_taps
    };
    return ST_OK;
}

static size_t tap_bytes(const Session *s) { return sizeof(float) * (size_t) s->line.m->tap_width; }

/* The fields that follow from the place alone. */
static ImageHead head_of(const Session *s, const char *identity, int32_t at)
{
    ImageHead h = { .version = IMAGE_VERSION, .n_identity = (uint32_t) strlen(identity), .n_tokens = at,
                    .n_target = state_image_bytes(&s->line.target, at) };
    memcpy(h.magic, MAGIC, sizeof h.magic);
    if (s->dm) {
        h.n_draft = state_image_bytes(&s->draft, at + s->dm->lead);
        h.n_taps = tap_bytes(s) * (size_t) s->dm->hold;
        h.draft_ring = s->draft.ring;
    }
    return h;
}

size_t session_image_bytes(const Session *s, const char *identity, int32_t at)
{
    ImageHead h = head_of(s, identity, at);
    size_t start[5], total;
    return at > 0 && s->line.n_text > 0 && at == state_place(&s->line.target, at, true) && lay_out(start, &total, &h)
           ? total : 0;
}

/* Held taps, from which the drafter starts, exist only at the end of the text; at an earlier place they are keys/values
 * already. */
static int32_t taps_of(const Session *s, int32_t at)
{
    int32_t taken = s->draft.P - s->dm->lead;
    return at == s->line.target.P && s->n_wait <= s->dm->hold && taken + s->n_wait == at ? s->n_wait : 0;
}

Status session_image(Spec *sp, Session *s, const char *identity, int32_t at, uint8_t *out, size_t n, Error *err)
{
    size_t need = session_image_bytes(s, identity, at), start[5];
    if (need == 0)
        return fail(err, ST_ARG,
                    "image: the session cannot be saved after %d tokens, expected its end or a checkpoint", at);
    if (n < need) return fail(err, ST_ARG, "image: it takes %zu bytes, but there is room for %zu", need, n);
    if (sp->drafter && sp->drafter->uses_taps) TRY(spec_flush_taps(sp, s, err));
    TRY(step_fold(&sp->step, &s->line.target, err));
    ImageHead h = head_of(s, identity, at);
    lay_out(start, &need, &h);
    h.n = need;
    if (s->dm) {
        h.n_wait = taps_of(s, at);
        h.draft_P = s->draft.P < at + s->dm->lead ? s->draft.P : at + s->dm->lead;
    }
    size_t end = sizeof h, size[5] = { h.n_identity, sizeof *s->line.text * (size_t) at, (size_t) h.n_target,
                                       (size_t) h.n_draft, (size_t) h.n_taps };
    for (int32_t i = 0; i < 5; end = start[i] + size[i], i++) memset(out + end, 0, start[i] - end);
    memcpy(out + start[0], identity, size[0]);
    memcpy(out + start[1], s->line.text, size[1]);
    TRY(state_image(&s->line.target, &sp->step.on, at, out + start[2], err));
    if (s->dm) {
        Backend *be = sp->last->be;
        TRY(state_image(&s->draft, &sp->last->on, at + s->dm->lead, out + start[3], err));
        memset(out + start[4], 0, size[4]);
        for (int32_t j = 0; j < h.n_wait; j++)
            be->copy_out(be, out + start[4] + tap_bytes(s) * (size_t) j,
                         (uint8_t *) s->taps + tap_bytes(s) * (size_t) s->wait[j], tap_bytes(s));
        TRY(be->sync(be, err));
    }
    memcpy(out, &h, sizeof h);
    h.sum = sum_of(out, need);
    memcpy(out, &h, sizeof h);
    return ST_OK;
}

static Status check_fit(const Session *s, const Image *im, const char *identity, Error *err)
{
    if (im->n_identity != strlen(identity) || memcmp(im->identity, identity, im->n_identity) != 0)
        return fail(err, ST_UNSUPPORTED, "image: it is of '%.*s', expected '%s'", (int) im->n_identity, im->identity,
                    identity);
    if (im->n_tokens > s->line.ctx)
        return fail(err, ST_FULL, "image: %d tokens, but the context holds %d", im->n_tokens, s->line.ctx);
    for (int32_t i = 0; i < im->n_tokens; i++) {
        int32_t id;
        memcpy(&id, im->tokens + sizeof id * (size_t) i, sizeof id);
        if (id < 0 || id >= s->line.m->vocab)
            return fail(err, ST_FORMAT, "image: token %d is %d, expected 0 to %d", i, id, s->line.m->vocab - 1);
    }
    size_t target = state_image_bytes(&s->line.target, im->n_tokens),
           taps = s->dm ? tap_bytes(s) * (size_t) s->dm->hold : 0;
    if (im->n_target != target)
        return fail(err, ST_FORMAT, "image: %zu bytes of state for %d tokens, expected %zu", im->n_target, im->n_tokens,
                    target);
    if (im->n_taps != taps) return fail(err, ST_FORMAT, "image: %zu bytes of taps, expected %zu", im->n_taps, taps);
    bool draft = s->dm
                 ? im->n_wait <= s->dm->hold && im->draft_P >= s->dm->lead && im->draft_P <= im->n_tokens + s->dm->lead
                 : !im->n_wait && !im->draft_P && !im->draft_ring;
    if (!draft)
        return fail(err, ST_FORMAT, "image: %d of the drafter's %d positions and %d waiting taps cannot be",
                    im->draft_P, im->n_tokens, im->n_wait);
    return ST_OK;
}

/* Slots of a ring depend on its size, so an image with another ring size is usable only if neither ring has wrapped.
 * Without the image the drafter starts with a hole: slower for a while, but the text is the same. */
static Status load_draft(Session *s, const Image *im, Error *err)
{
    int32_t end = im->n_tokens + s->dm->lead, lesser = im->draft_ring < s->draft.ring ? im->draft_ring : s->draft.ring;
    bool fits = (im->draft_ring == s->draft.ring || end <= lesser) && im->n_draft == state_image_bytes(&s->draft, end);
    TRY(state_restore(&s->draft, &s->dm->stages, fits ? im->draft : NULL, end, err));
    s->n_wait = 0;
    if (!fits) return ST_OK;
    state_back(&s->draft, im->draft_P);
    Backend *be = stages_last(&s->line.m->stages);
    for (; s->n_wait < im->n_wait; s->n_wait++) {
        s->wait[s->n_wait] = s->n_wait;
        be->copy_in(be, (uint8_t *) s->taps + tap_bytes(s) * (size_t) s->n_wait,
                    im->taps + tap_bytes(s) * (size_t) s->n_wait, tap_bytes(s));
    }
    return be->sync(be, err);
}

Status session_load(Session *s, const char *identity, const uint8_t *bytes, size_t n, Error *err)
{
    Image im;
    TRY(image_read(&im, bytes, n, err));
    TRY(check_fit(s, &im, identity, err));
    session_forget(s);
    Status st = state_restore(&s->line.target, &s->line.m->stages, im.target, im.n_tokens, err);
    if (st == ST_OK && s->dm) st = load_draft(s, &im, err);
    if (st != ST_OK) {
        session_forget(s);
        return st;
    }
    memcpy(s->line.text, im.tokens, sizeof *s->line.text * (size_t) im.n_tokens);
    s->line.n_text = s->line.n_prompt = im.n_tokens;
    s->line.n_rows = 0;
    s->line.n_made = 0;
    s->stats = (SpecStats) { 0 };
    return ST_OK;
}
