/* ratoon run: continues a text. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "programs/chat/chat.h"
#include "programs/constraint.h"
#include "programs/costs.h"
#include "programs/drive.h"
#include "programs/expert_use.h"
#include "programs/sampling.h"
#include "text/json_flow.h"
#include "text/reply/reply.h"

static const char *const finish_names[] = { "stop", "stop_sequence", "length", "cancelled", "error" };
typedef enum { FINISH_STOP, FINISH_STOP_SEQUENCE, FINISH_LENGTH, FINISH_CANCELLED, FINISH_ERROR } Finish;

typedef struct {
    Program  p;
    Options  o;
    char    *text; size_t text_len;                /* the prompt, unless it came as tokens */
    int32_t *prompt, n_prompt;
    int32_t *token, n_token;                       /* generated, without an end token */
    size_t   cap_token;
    Reply   *reply;                                /* without a format: whole characters, and stop strings */
    Bytes    shown;
    rt_grammar *form;                              /* that the text follows; NULL: none */
    rt_sampling sampling;
    Finish   finish;
    bool     end_token;                            /* the last generated token was an end token */
    rt_stats stats;
} Run;

/* ---- the prompt ---- */

static bool options_agree(Run *r)
{
    const Options *o = &r->o;
    if ((o->prompt != NULL) + (o->file != NULL) + (o->tokens != NULL) > 1)
        return complain(o, "there can be only one of -p, -f and --tokens") == 0;
    if (o->grammar && o->json_schema) return complain(o, "there can be only one of --grammar and --json-schema") == 0;
    if ((o->grammar || o->json_schema) && o->ignore_eos)
        return complain(o, "--ignore-eos cannot be combined with --grammar or --json-schema, whose texts end") == 0;
    if (o->tokens && o->chat) return complain(o, "--chat needs text, not --tokens") == 0;
    if (o->special && o->chat) return complain(o, "--special does not go with --chat: what a user says is text") == 0;
    if (o->generation_config && !o->chat) return complain(o, "--generation-config needs --chat") == 0;
    if (!o->chat && (o->system || o->think || o->no_think))
        return complain(o, "%s needs --chat", o->system ? "--system" : o->think ? "--think" : "--no-think") == 0;
    if (o->think && o->no_think) return complain(o, "there can be only one of --think and --no-think") == 0;
    return !o->tokens || ids_read(o, &r->prompt, &r->n_prompt, o->tokens, "--tokens", 0, INT32_MAX);
}

/* Reads the prompt before anything is loaded, so that Ctrl-C or a missing file costs no time. */
static bool read_text(Run *r)
{
    const Options *o = &r->o;
    if (o->tokens) return true;
    if (o->prompt) {
        r->text = strdup(o->prompt);
        r->text_len = strlen(o->prompt);
        return r->text != NULL;
    }
    if (!o->file && isatty(STDIN_FILENO) == 1) note(o, "the prompt is read from the keyboard; end it with Ctrl-D");
    return text_read(o, &r->text, &r->text_len, o->file);
}

static bool make_prompt(Run *r)
{
    rt_engine *g = r->p.engine;
    if (r->text) {
        if (!rt_has_tokenizer(g))
            return complain(&r->o, "%s: it carries no tokenizer, so text cannot be read; give --tokens",
                            r->p.files.model) == 0;
        if (r->o.chat) return chat_tokens(&r->p, &r->prompt, &r->n_prompt, r->text, r->text_len);
        if (!text_tokens(&r->p, &r->prompt, &r->n_prompt, r->text, r->text_len, r->o.special)) return false;
    }
    if (r->n_prompt > 0) return true;
    if (rt_token_bos(g) < 0)
        return complain(&r->o, "the prompt is empty, and the model has no token to begin a text with") == 0;
    free(r->prompt);
    r->prompt = malloc(sizeof *r->prompt);
    if (!r->prompt) return complain(&r->o, "out of memory") == 0;
    r->prompt[r->n_prompt++] = rt_token_bos(g);
    return true;
}

/* ---- the text ---- */

static bool show(Run *r)
{
    ReplyEvent e;
    bool good = true;
    while (reply_next(r->reply, &e)) {
        bytes_put(&r->shown, e.bytes, e.n);
        if (!r->o.json) good &= text_show(stdout, e.bytes, e.n) && fflush(stdout) == 0;
    }
    if (good && !r->shown.failed) return true;
    if (good) complain(&r->o, "out of memory for the text");
    else output_failed(&r->o);
    r->finish = FINISH_ERROR;
    return false;
}

static void finish(Run *r, DriveEnd end)
{
    static const Finish reason[] = {
        [DRIVE_ENDED] = FINISH_STOP, [DRIVE_STOPPED] = FINISH_STOP_SEQUENCE, [DRIVE_FULL] = FINISH_LENGTH,
        [DRIVE_CANCELLED] = FINISH_CANCELLED, [DRIVE_NO_MEMORY] = FINISH_ERROR, [DRIVE_FAILED] = FINISH_ERROR };
    r->finish = end == DRIVE_FULL && rt_constraint_done(r->p.session) ? FINISH_STOP : reason[end];
    r->end_token = end == DRIVE_ENDED;
    if (end == DRIVE_STOPPED) r->n_token = reply_kept(r->reply);
    if (end == DRIVE_NO_MEMORY) complain(&r->o, "out of memory for the text");
    if (end == DRIVE_FAILED) complain(&r->o, "%s", drive_error(r->p.step, r->p.session));
}

static void decode(Run *r)
{
    Drive d = { .engine = r->p.engine, .ignore_eos = r->o.ignore_eos, .reply = r->reply, .token = &r->token,
                .n = &r->n_token, .cap = &r->cap_token };
    for (DriveEnd end = DRIVE_ON; end == DRIVE_ON;) {
        rt_block b;
        end = drive_step(&d, &r->p, r->p.step, r->p.session, &b);
        if (end != DRIVE_ON) finish(r, end);
        if (!show(r)) return;
    }
    if (!reply_end(r->reply, REPLY_ENDED)) return;
    if (reply_stop(r->reply) != REPLY_GO && r->finish != FINISH_STOP_SEQUENCE) r->finish = FINISH_STOP_SEQUENCE;
    show(r);
}

/* ---- the report ---- */

static double speed(const rt_stats *s) { return s->decode_s > 0 ? (double) s->generated / s->decode_s : 0; }
static double accept_length(const rt_stats *s)
{
    return s->passes > 0 ? (double) s->generated / (double) s->passes : 0;
}

static bool print_json(Run *r)
{
    json_t *tokens = json_array();
    for (int32_t i = 0; i < r->n_token; i++) json_array_append_new(tokens, json_integer(r->token[i]));
    const rt_stats *s = &r->stats;
    json_t *stats = json_pack("{s:I s:I s:I s:I s:I s:f s:f s:f s:f s:f s:I s:I s:I s:I s:f s:I s:I}", "prompt_tokens",
                              (json_int_t) s->prompt_tokens, "generated", (json_int_t) s->generated,
                              "passes", (json_int_t) s->passes, "drafted", (json_int_t) s->drafted, "accepted",
                              (json_int_t) s->accepted, "accept_length", accept_length(s), "prefill_s", s->prefill_s,
                              "decode_s", s->decode_s, "pass_s", s->pass_s, "tok_s", speed(s), "experts_chosen",
                              (json_int_t) s->experts_chosen, "experts_read", (json_int_t) s->experts_read,
                              "experts_missed", (json_int_t) s->experts_missed, "experts_missed_bytes",
                              (json_int_t) s->experts_missed_bytes, "experts_wait_s", s->experts_wait_s, "blocks",
                              (json_int_t) s->blocks, "steps", (json_int_t) s->steps);
    const rt_expert_stats experts = expert_use_since(&r->p, &r->p.loaded);
    json_object_set_new(stats, "expert_store", expert_use_json(&experts, s->prefill_s + s->decode_s));
    json_t *sampling = sampling_json(&r->sampling);
    json_object_set_new(sampling, "seed", json_integer((json_int_t) r->sampling.seed));
    json_t *draft = r->p.files.draft[0] ? json_string(base_name(r->p.files.draft)) : json_null();
    json_t *text = json_stringn(r->shown.at ? r->shown.at : "", r->shown.n);
    return json_print(&r->o, json_pack("{s:o s:o s:s s:s s:o s:o s:o}", "text", text, "tokens", tokens,
                                       "finish_reason", finish_names[r->finish], "model", r->p.files.name, "draft",
                                       draft, "sampling", sampling, "stats", stats));
}

static void print_speculation(const Run *r)
{
    static const char *const source[RT_SOURCES] = { [RT_BLOCK] = "drafter", [RT_NGRAM] = "text",
                                                    [RT_MTP] = "MTP layer" };
    const rt_stats *s = &r->stats;
    const char *draft = r->p.files.draft[0] ? base_name(r->p.files.draft) : "none";
    fprintf(stderr, "speculation: accept length %.2f (%lld passes, %lld of them plain), %lld of %lld drafted rows "
            "accepted, drafter %s\n", accept_length(s), (long long) s->passes, (long long) s->plain,
            (long long) s->accepted, (long long) s->drafted, draft);
    for (int32_t i = 0; i < RT_SOURCES; i++)
        if (s->drafted_by[i])
            fprintf(stderr, "  from the %-10s %lld of %lld rows accepted\n", source[i], (long long) s->accepted_by[i],
                    (long long) s->drafted_by[i]);
    if (s->drafted && s->decode_s > 0)
        fprintf(stderr, "  speculation overhead (drafting, trees, acceptance): %.1f %% of decoding\n",
                100 * (1 - s->pass_s / s->decode_s));
}

static void print_stats(const Run *r)
{
    const rt_stats *s = &r->stats;
    char sampling[256];
    fprintf(stderr, "sampling: %s\n", sampling_text(sampling, &r->sampling, true));
    fprintf(stderr, "prompt %lld tokens in %.2f s, generated %lld in %.2f s (%.1f per second), %s\n",
            (long long) s->prompt_tokens, s->prefill_s, (long long) s->generated, s->decode_s, speed(s),
            finish_names[r->finish]);
    if (s->steps)
        fprintf(stderr, "denoising: %lld blocks in %lld steps (%.1f tokens per step)\n", (long long) s->blocks,
                (long long) s->steps, (double) s->generated / (double) s->steps);
    else
        print_speculation(r);
    if (s->experts_read && s->generated)
        fprintf(stderr, "experts: %lld chosen, %lld read (%.1f per token)\n", (long long) s->experts_chosen,
                (long long) s->experts_read, (double) s->experts_read / (double) s->generated);
    const rt_expert_stats experts = expert_use_since(&r->p, &r->p.loaded);
    expert_use_print(stderr, &experts, s->prefill_s + s->decode_s);
    if (r->o.budget == BUDGET_OPTION_AUTO && r->p.files.draft[0])
        fprintf(stderr, "  controller: %lld drafts, %lld mode switches\n", (long long) s->drafts,
                (long long) s->changes);
}

static int report(Run *r)
{
    rt_stats_get(r->p.session, &r->stats, sizeof r->stats);
    r->stats.generated = r->n_token + r->end_token;
    if (r->stats.accepted > r->stats.generated) r->stats.accepted = r->stats.generated;
    if (r->o.json && !print_json(r)) return EXIT_FAILED;
    if (!r->o.json && r->shown.n > 0 && r->shown.at[r->shown.n - 1] != '\n' && isatty(STDOUT_FILENO) == 1)
        putchar('\n');
    if (r->o.stats) print_stats(r);
    if (!r->o.grammar && !r->o.json_schema) program_judge(&r->p, &r->stats);
    if (r->finish == FINISH_ERROR) return EXIT_FAILED;                    /* an error is reported only once */
    if (output_done(&r->o)) return EXIT_FAILED;
    if (r->finish == FINISH_CANCELLED) note(&r->o, "cancelled");
    return r->finish == FINISH_CANCELLED ? EXIT_INTERRUPTED : EXIT_FINE;
}

static int run(Run *r)
{
    Program *p = &r->p;
    if (!make_prompt(r)) return EXIT_FAILED;
    if (r->o.chat && !sampling_for_answers(&r->o, p)) return EXIT_FAILED;
    sampling_for_texts(&r->o, p);
    r->sampling = sampling_of(&r->o, r->o.n);
    char line[256];
    if (r->o.chat && !r->o.stats) note(&r->o, "sampling: %s", sampling_text(line, &r->sampling, true));
    rt_status st = program_prompt(p, p->session, r->prompt, r->n_prompt);
    if (st == RT_OK) st = rt_sampling_set(p->session, &r->sampling);
    if (st == RT_OK) st = rt_constrain(p->session, r->form);
    if (st != RT_OK) return complain_prompt(p, p->session, st);
    costs_load(p, p->step);
    decode(r);
    costs_save(p, p->step);
    return report(r);
}

int cmd_run(int argc, char **argv)
{
    Run r = { 0 };
    int status;
    if (!options_read(&r.o, argc, argv, &status)) return status;
    ReplyOptions reply = { .think_max = -1, .stop = r.o.stop.at, .n_stop = (size_t) r.o.stop.n };
    status = EXIT_USAGE;
    if (reply_open(&r.reply, &reply, NULL) != ST_OK) {
        complain(&r.o, "out of memory");
        status = EXIT_FAILED;
    } else if (options_agree(&r)) {
        status = EXIT_FAILED;
        if (constraint_read(&r.form, &r.o) && read_text(&r)) {
            if (program_open(&r.p, &r.o, WITH_DRAFTER | WITH_SESSION, NULL, 0)) status = run(&r);
            else if (interrupts) status = EXIT_INTERRUPTED;
            program_close(&r.p);
        }
    }
    free(r.text);
    free(r.prompt);
    free(r.token);
    reply_close(r.reply);
    bytes_free(&r.shown);
    rt_grammar_free(r.form);
    return status;
}
