/* What chunks and bodies of Chat Completions and Completions have in common: everything around their choices. */
#include "programs/serve/answer/answer_impl.h"

void write_head(Answer *a, const char *object)
{
    out_json(&a->out, "{'id':%s,'object':%s,'created':%lld,'model':%s,'system_fingerprint':%s", a->id, object,
             (long long) a->o.created, a->q->model, a->fingerprint);
}

void write_tokens(Answer *a, AnswerChoice *c)
{
    if (!a->q->return_tokens) return;
    out_text(&a->out, ",\"tokens\":[");
    for (size_t i = c->tokens_sent; i < c->n_token; i++)
        out_json(&a->out, i > c->tokens_sent ? ",%d" : "%d", (int) c->token[i].id);
    out_text(&a->out, "]");
    c->tokens_sent = c->n_token;
}

bool is_last_choice(const Answer *a, const AnswerChoice *c)
{
    size_t open = 0;
    for (size_t i = 0; i < a->n_choice; i++) open += !a->choice[i].finished && &a->choice[i] != c;
    return open == 0;
}

static void usage_and_timings(Answer *a)
{
    Out *o = &a->out;
    out_text(o, ",\"usage\":");
    write_usage(o, a);
    out_text(o, ",\"timings\":");
    write_timings(o, a);
}

void write_chunk_end(Answer *a, bool last)
{
    Out *o = &a->out;
    if (last) write_ignored(o, a);
    if (last && a->o.show_seed) out_json(o, ",'seed':%lld", (long long) a->o.seed);
    if (a->q->include_usage) out_text(o, ",\"usage\":null");
    if (a->q->timings_per_token || (last && !a->q->include_usage)) {
        out_text(o, ",\"timings\":");
        write_timings(o, a);
    }
    out_text(o, "}\n\n");
}

void write_stream_end(Answer *a, const char *object)
{
    Out *o = &a->out;
    if (a->q->include_usage) {
        out_text(o, "data: ");
        write_head(a, object);
        out_text(o, ",\"choices\":[]");
        usage_and_timings(a);
        out_text(o, "}\n\n");
    }
    out_text(o, "data: [DONE]\n\n");
}

void write_alive(Answer *a, const char *object, const char *empty, int64_t processed, int64_t total, double ms)
{
    Out *o = &a->out;
    if (!a->q->return_progress) {
        out_json(o, ": prefill %lld/%lld\n\n", (long long) processed, (long long) total);
        return;
    }
    out_text(o, "data: ");
    write_head(a, object);
    out_text(o, ",\"choices\":[");
    out_text(o, empty);
    out_json(o, "],'prompt_progress':{'total':%lld,'cache':%lld,'processed':%lld,'time_ms':%f}}\n\n", (long long) total,
             (long long) a->usage.cached, (long long) processed, ms);
}

void write_draft(Answer *a, const char *object, int32_t choice, const char *s, size_t n, int32_t step)
{
    Out *o = &a->out;
    out_text(o, "event: draft\ndata: ");
    write_head(a, object);
    out_text(o, ",\"choices\":[]");
    write_draft_member(o, choice, s, n, step);
    out_text(o, "}\n\n");
}

void write_draft_member(Out *o, int32_t choice, const char *s, size_t n, int32_t step)
{
    out_json(o, ",'draft':{'index':%d,'step':%d,'text':", (int) choice, (int) step);
    out_string(o, s, n);
    out_text(o, "}");
}

void write_stream_error(Answer *a, const HttpError *e)
{
    out_text(&a->out, "data: {\"error\":");
    write_error(&a->out, e);
    out_text(&a->out, "}\n\n");
}

void write_body_end(Answer *a)
{
    Out *o = &a->out;
    out_text(o, "]");
    usage_and_timings(a);
    if (a->o.show_seed) out_json(o, ",'seed':%lld", (long long) a->o.seed);
    write_ignored(o, a);
    out_text(o, "}");
}
