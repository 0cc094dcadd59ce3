#include "programs/chat/turn.h"

#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "programs/drive.h"
#include "programs/estimate.h"
#include "ratoon_chat.h"

typedef struct {
    Talk    *talk;
    Console *console;
    Reply   *reply;
    TalkAnswer *out;
    size_t   cap_token;
    int32_t  first_text;                           /* token in which the visible answer begins; -1: none so far */
    Bytes    text, reasoning;
} Answering;

static int32_t reason_tokens(const Answering *a)
{
    ReplySummary y;
    reply_summary(a->reply, &y);
    return y.reason_tokens;
}

/* Shows and keeps the decoder's output. */
static bool tell(void *ud, int32_t id, int32_t at)
{
    Answering *a = ud;
    ReplyEvent e;
    (void) id, (void) at;
    while (reply_next(a->reply, &e)) {
        if (e.kind != REPLY_REASON && e.kind != REPLY_TEXT) continue;
        if (e.kind == REPLY_TEXT && a->first_text < 0) a->first_text = e.from;
        bytes_put(e.kind == REPLY_TEXT ? &a->text : &a->reasoning, e.bytes, e.n);
        console_say(a->console, &e, e.kind == REPLY_TEXT ? reason_tokens(a) : 0);
    }
    return !a->text.failed && !a->reasoning.failed;
}

static TurnEnd decode(Answering *a, int32_t n_prompt)
{
    Program *p = a->talk->p;
    Drive d = { .engine = p->engine, .reply = a->reply, .token = &a->out->token, .n = &a->out->n, .cap = &a->cap_token,
                .tell = tell, .ud = a };
    DriveEnd end = DRIVE_ON;
    for (rt_block b; end == DRIVE_ON && !a->console->broken;) end = drive_step(&d, p, p->step, p->session, &b);
    switch (end) {
    case DRIVE_STOPPED:   a->out->n = reply_kept(a->reply); return TURN_ENDED;
    case DRIVE_ENDED:     return TURN_ENDED;
    case DRIVE_CANCELLED: return TURN_CANCELLED;
    case DRIVE_FULL:      return rt_constraint_done(p->session) ? TURN_ENDED :
                                 n_prompt + a->out->n >= rt_session_ctx(p->session) ? TURN_FULL : TURN_LENGTH;
    case DRIVE_NO_MEMORY: complain(p->o, "out of memory for the answer"); break;
    case DRIVE_FAILED:    complain(p->o, "%s", drive_error(p->step, p->session)); break;
    default:              break;
    }
    return TURN_FAILED;
}

/* Index of the token at which the visible answer begins, if its bytes are exactly those of the tokens: surrounding
 * markers and blanks are not part of it. */
static int32_t spoken_from(const Answering *a)
{
    const rt_engine *g = a->talk->p->engine;
    const TalkAnswer *out = a->out;
    if (a->first_text < 0) return out->n;
    size_t at = 0;
    for (int32_t i = a->first_text; i < out->n; i++) {
        size_t n;
        const char *bytes = rt_token_bytes(g, out->token[i], &n);
        if (at + n > a->text.n || (n > 0 && memcmp(a->text.at + at, bytes, n) != 0)) return a->first_text == 0 ? 0 : -1;
        at += n;
    }
    return at == a->text.n || a->first_text == 0 ? a->first_text : -1;
}

TurnEnd turn_run(TalkAnswer *out, Talk *t, const Question *q, const rt_sampling *s, Console *v)
{
    Program *p = t->p;
    Answering a = { .talk = t, .console = v, .out = out, .first_text = -1 };
    Error err = { 0 };
    ReplyOptions ro = { .style = t->style, .prompt = q->opening, .n_prompt = q->n_opening, .think_max = -1,
                        .calls_off = true, .stop = p->o->stop.at, .n_stop = (size_t) p->o->stop.n,
                        .token = chat_token, .ud = p->engine };
    if (chat_constrained(p->o)) {                  /* the whole answer has the form: none of it is reasoning */
        ro.style = (ReplyStyle) { 0 };
        ro.n_prompt = 0;
    }
    *out = (TalkAnswer) { 0 };
    if (reply_open(&a.reply, &ro, &err) != ST_OK) {
        complain(p->o, "%s", err.text);
        return TURN_FAILED;
    }
    TurnEnd end = TURN_FAILED;
    if (program_prompt(p, p->session, q->token, q->n) != RT_OK || rt_sampling_set(p->session, s) != RT_OK)
        complain(p->o, "%s", rt_session_error(p->session));
    else if (q->mark > 0 && rt_mark(p->session, &q->mark, 1) != RT_OK)
        complain(p->o, "%s", rt_session_error(p->session));
    else
        end = decode(&a, q->n);
    bool good = reply_end(a.reply, end == TURN_ENDED ? REPLY_ENDED : REPLY_CUT) && tell(&a, -1, -1);
    console_end(v, reason_tokens(&a));
    ReplySummary y;
    reply_summary(a.reply, &y);
    out->unclosed = y.reason_unclosed;
    if (good) out->spoken = spoken_from(&a);
    bytes_char(&a.text, 0);
    bytes_char(&a.reasoning, 0);
    good = good && !a.text.failed && !a.reasoning.failed;
    if (!good && end != TURN_FAILED) complain(p->o, "out of memory for the answer");
    out->text = a.text.at;
    out->reasoning = a.reasoning.at;
    reply_close(a.reply);
    return good ? end : TURN_FAILED;
}

void turn_answer_free(TalkAnswer *a)
{
    free(a->token);
    free(a->text);
    free(a->reasoning);
    *a = (TalkAnswer) { 0 };
}

void turn_stats(const Program *p)
{
    rt_stats s;
    rt_stats_get(p->session, &s, sizeof s);
    const int64_t passes = s.steps ? s.steps : s.passes;
    fprintf(stderr, "%lld tokens, %.1f per second, %s %.2f; prompt %lld tokens, %lld of them held, %.2f s\n",
            (long long) s.generated, s.decode_s > 0 ? (double) s.generated / s.decode_s : 0.0,
            s.steps ? "per step" : "accept length", passes > 0 ? (double) s.generated / (double) passes : 0.0,
            (long long) s.prompt_tokens, (long long) s.resumed, s.prefill_s);
    if (p->loaded.slots == 0) return;
    char read[24];
    fprintf(stderr, "experts: %lld missed, %s read from the file, %.2f s waited for it\n", (long long) s.experts_missed,
            memory_text(read, (double) s.experts_missed_bytes), s.experts_wait_s);
}
