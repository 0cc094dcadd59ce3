/* fuzz_request.c - any bytes as the body of a request: the first one chooses the dialect, the rest is the JSON. What
 * must hold: an error has a status and a message; a request stays within its own limits; its answer, which repeats the
 * request's own texts in pieces, is JSON. */
#include "base/json.h"
#include "programs/serve/answer/answer.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

static void same_bytes(void *ud, void *out, size_t n)
{
    (void) ud;
    memset(out, 7, n);
}

static void check(const Request *q)
{
    if (q->n < 1 || q->n > 4 || q->n_stop > 16 || q->n_bias > 300 || q->top_logprobs < 0 || q->top_logprobs > 20 ||
        q->max_tokens < -1 || !q->model)
        abort();
    if (!(q->sampling.temperature >= 0) || !(q->sampling.top_p > 0) || q->spec_budget < -1 || q->spec_budget > 63 ||
        q->think_budget < -1)
        abort();
    if (q->infill.is && (q->n_prompt != 1 || !q->prompt->text || !q->infill.prefix || !q->infill.suffix)) abort();
    if (q->n_indent < 0 || q->sampling.top_k < 0 || q->sampling.rep_window < 0) abort();
    if (json_array_size(q->messages) != json_array_size(q->handles) || json_array_size(q->tools) != q->n_tool) abort();
    for (size_t i = 0; i < json_array_size(q->messages); i++)
        if (!json_is_string(json_object_get(json_array_get(q->messages, i), "role"))) abort();
    for (size_t i = 0; i < q->n_tool; i++)
        if (request_tool(q, q->tool[i].name, strlen(q->tool[i].name)) != &q->tool[i]) abort();
    for (size_t i = 0; i < q->n_prompt; i++)
        for (size_t k = 0; k < q->prompt[i].n_ids; k++)
            if (q->prompt[i].ids[k] < 0 || q->prompt[i].ids[k] >= 1000) abort();
}

/* Each kind of event with a piece of the input as its text, incomplete characters included. */
static void answer(const Request *q, const char *s, size_t n)
{
    static const ReplyKind KINDS[] = { REPLY_REASON, REPLY_TEXT, REPLY_CALL_BEGIN, REPLY_CALL_ARGS, REPLY_CALL_END,
                                       REPLY_TEXT };
    size_t len;
    json_t *v;
    Answer *a = answer_new(&(AnswerOptions) { .request = q, .version = "1", .random = same_bytes, .handle = "v1.x" });
    if (!a) return;
    size_t choices = (size_t) q->n * (q->n_prompt ? q->n_prompt : 1);
    answer_open(a);
    for (size_t c = 0; c < choices; c++) {
        for (size_t i = 0; i < 6; i++) {
            size_t from = n * i / 6, to = n * (i + 1) / 6;
            if (to - from > 300) to = from + 300;
            answer_event(a, (int32_t) c, &(ReplyEvent) { .kind = KINDS[i], .bytes = s + from, .n = to - from });
            if (!answer_take(a, &len)) abort();
        }
        answer_end(a, (int32_t) c,
                   &(AnswerEnd) { .reason = n % 2 ? FINISH_STOP : FINISH_LENGTH, .call_cut = n % 3 == 0 });
    }
    answer_close(a, 0);
    const char *out = answer_take(a, &len);
    if (!out || len == 0 || !answer_done(a)) abort();
    if (!q->stream) {
        if (json_read(&v, out, len, "answer", NULL) != ST_OK) abort();
        json_decref(v);
    }
    answer_free(a);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    static const RequestDefaults DEFAULTS = { .model = "tiny", .vocab = 1000,
                                              .sampling = { .top_p = 1, .repetition = 1 }, .max_tokens = 16000,
                                              .responses_max_tokens = 32768, .n_max = 4, .think_budget = -1,
                                              .reply_budget = 4096, .responses_reasoning = SHOW_SUMMARY };
    json_t *body;
    Request *q;
    HttpError e;
    size_t len;
    if (n == 0 || json_read(&body, (const char *) bytes + 1, n - 1, "fuzz", NULL) != ST_OK) return 0;
    if (request_read(&q, (Dialect) (bytes[0] % DIALECTS), body, NULL, &DEFAULTS, &e)) {
        check(q);
        answer(q, (const char *) bytes + 1, n - 1);
    } else {
        char *text = http_error_body((Dialect) (bytes[0] % DIALECTS), &e, "req", &len);
        json_t *v;
        if (q || e.status < 400 || !*e.message || !text || json_read(&v, text, len, "error", NULL) != ST_OK) abort();
        json_decref(v);
        free(text);
    }
    request_free(q);
    json_decref(body);
    return 0;
}
