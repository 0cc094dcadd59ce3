/* ratoon serve: the model over HTTP. The main thread opens the port, starts the others, and waits for signals; the
 * engine thread loads the model and then runs it. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/save.h"
#include "programs/advice.h"
#include "programs/chat/chat.h"
#include "programs/estimate.h"
#include "programs/hub/hub_name.h"
#include "programs/sampling.h"
#include "programs/serve/run/scheduler.h"
#include "programs/serve/run/constraint.h"
#include "programs/serve/run/job.h"
#include "programs/serve/routes.h"
#include "programs/serve/run/replay.h"
#include "programs/serve/run/store.h"

/* Behind an address that nobody can type into a browser. A container does not know where its port is published. */
#define EVERYWHERE " (every address of this machine; of a container, where its port is published)"

enum { KEYS_MAX = 256, WORKERS = 2, FLUSH_SECONDS = 2, CACHE_DRAIN_MS = 20000 };

typedef struct {
    Server      s;
    char       *key_text, *env_keys, *cert, *key; /* from the key file, from RATOON_API_KEY, and for TLS */
    const char *keys[KEYS_MAX]; int32_t n_keys;
    const char *hosts[TEXTS_MAX];
    HttpOptions http;
    pthread_t   engine, worker[WORKERS];
    bool        engine_runs;
    int32_t     n_workers;
    double      begun;
    Files       fetched;                          /* for -hf */
    Memory    memory;                             /* of the model, its sessions and a step, and the free memory before
                                                   * loading */
} Serve;

/* ---- signals ---- */

static int pipe_fd[2] = { -1, -1 };
static volatile sig_atomic_t ends_asked;

static void on_signal(int sig)
{
    unsigned char byte = (unsigned char) sig;
    if (sig != SIGUSR1 && ends_asked++ > 0) _exit(EXIT_INTERRUPTED);
    ssize_t ignored = write(pipe_fd[1], &byte, 1);
    (void) ignored;
}

static bool hear_signals(const Options *o)
{
    if (pipe2(pipe_fd, O_CLOEXEC | O_NONBLOCK) != 0) return complain(o, "pipe: %s", strerror(errno)) == EXIT_FINE;
    struct sigaction a = { .sa_handler = on_signal, .sa_flags = SA_RESTART };
    sigaction(SIGINT, &a, NULL);
    sigaction(SIGTERM, &a, NULL);
    sigaction(SIGUSR1, &a, NULL);
    sigaction(SIGHUP, &(struct sigaction) { .sa_handler = SIG_IGN }, NULL);
    return true;
}

/* Threads started while signals are blocked leave them to the main thread. */
static void block_signals(int how)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGUSR1);
    pthread_sigmask(how, &set, NULL);
}

void server_random(void *ud, void *out, size_t n)
{
    (void) ud;
    for (size_t done = 0; done < n;) {
        ssize_t got = getrandom((char *) out + done, n - done, 0);
        if (got > 0) done += (size_t) got;
        else if (errno != EINTR) _exit(EXIT_FAILED);    /* the kernel has no random numbers: ids would be guessable */
    }
}

/* ---- options ---- */

static void set_defaults(Options *o)
{
    static const struct { size_t at; int32_t value; } numbers[] = {
        { offsetof(Options, parallel), 4 }, { offsetof(Options, queue_size), 32 }, { offsetof(Options, max_n), 4 },
        { offsetof(Options, max_body), 64 },
        { offsetof(Options, max_connections), 256 }, { offsetof(Options, write_timeout), 30 },
        { offsetof(Options, keepalive), 5 },
        { offsetof(Options, reply_budget), 4096 }, { offsetof(Options, cache_disk), 4096 },
        { offsetof(Options, cache_min_tokens), 256 }, { offsetof(Options, cache_interval), 8192 },
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        int32_t *at = (int32_t *) ((char *) o + numbers[i].at);
        if (*at == 0) *at = numbers[i].value;
    }
    if (!o->host) o->host = "127.0.0.1";
    if (o->port < 0) o->port = 8080;
    if (o->shutdown_grace < 0) o->shutdown_grace = 5;
    if (!o->api_prefix) o->api_prefix = "";
}

/* NULL leaves *out as it is. */
static void read_choice(int *out, const char *value)
{
    if (value) *out = strcmp(value, "off") == 0 ? THINK_OFF : strcmp(value, "on") == 0 ? THINK_ON : THINK_AUTO;
}

static bool add_key(Serve *v, const char *key)
{
    if (!*key) return complain(&v->s.o, "an API key is empty") == EXIT_FINE;
    if (v->n_keys == KEYS_MAX) return complain(&v->s.o, "there are more than %d API keys", KEYS_MAX) == EXIT_FINE;
    v->keys[v->n_keys++] = key;
    return true;
}

static bool read_key_file(Serve *v, const char *path)
{
    size_t n;
    char *save = NULL;
    if (!text_read(&v->s.o, &v->key_text, &n, path)) return false;
    for (char *line = strtok_r(v->key_text, "\r\n", &save); line; line = strtok_r(NULL, "\r\n", &save)) {
        line += strspn(line, " \t");
        if (*line && *line != '#' && !add_key(v, line)) return false;
    }
    return v->n_keys > 0 || complain(&v->s.o, "%s: it holds no key", path) == EXIT_FINE;
}

static bool write_key(void *ud, FILE *f) { return fprintf(f, "%s\n", (const char *) ud) > 0; }

/* The key is said only when it is made: a log lives longer than it is looked at, and the file is there. */
static bool generate_key(Serve *v, const char *path)
{
    unsigned char bytes[24];
    char key[3 + 2 * sizeof bytes + 1] = "rt-";
    Error err = { 0 };
    if (access(path, F_OK) == 0) return read_key_file(v, path);
    server_random(NULL, bytes, sizeof bytes);
    for (size_t i = 0; i < sizeof bytes; i++) snprintf(key + 3 + 2 * i, 3, "%02x", bytes[i]);
    if (save_file(path, SAVE_PRIVATE, write_key, key, &err) != ST_OK)
        return complain(&v->s.o, "--generate-key: %s", err.text) == EXIT_FINE;
    log_line("API key, made now and kept in %s: %s", path, key);
    return read_key_file(v, path);
}

static bool read_keys(Serve *v)
{
    const Options *o = &v->s.o;
    char *save = NULL;
    for (int32_t i = 0; i < o->api_key.n; i++)
        if (!add_key(v, o->api_key.at[i])) return false;
    const char *env = getenv("RATOON_API_KEY");
    if (env && *env && !(v->env_keys = strdup(env))) return complain(o, "out of memory") == EXIT_FINE;
    for (char *k = v->env_keys ? strtok_r(v->env_keys, ",", &save) : NULL; k; k = strtok_r(NULL, ",", &save))
        if (!add_key(v, k)) return false;
    if (o->api_key_file && !read_key_file(v, o->api_key_file)) return false;
    return v->n_keys > 0 || !o->generate_key || generate_key(v, o->generate_key);
}

static bool read_tls(Serve *v)
{
    const Options *o = &v->s.o;
    size_t n;
    if (!o->tls_cert && !o->tls_key) return true;
    if (!o->tls_cert || !o->tls_key) return complain(o, "--tls-cert and --tls-key belong together") == EXIT_FINE;
    return text_read(o, &v->cert, &n, o->tls_cert) && text_read(o, &v->key, &n, o->tls_key);
}

static bool options_agree(Serve *v)
{
    const Options *o = &v->s.o;
    if (*o->api_prefix && *o->api_prefix != '/')
        return complain(o, "--api-prefix is '%s', expected a path that begins with /", o->api_prefix) == EXIT_FINE;
    return true;
}

/* ---- HTTP ---- */

static void on_freed(void *ud) { queue_wake(((Server *) ud)->queue); }

static void on_logged(void *ud, const Exchange *x, int status, double seconds)
{
    Server *s = ud;
    const Route *r = exchange_route(x);
    bool text = r && (r->flags & ROUTE_TEXT);
    if (text) metrics_request(s->metrics, r->dialect, status);
    if (exchange_noted(x) || (status < 400 && exchange_method(x) == METHOD_GET)) return;
    server_log(s, x, status, seconds, exchange_reason(x));
}

static bool open_port(Serve *v)
{
    Server *s = &v->s;
    const Options *o = &s->o;
    char text[512];
    for (int32_t i = 0; i < o->allow_host.n; i++) v->hosts[i] = o->allow_host.at[i];
    v->http = (HttpOptions) { .host = o->host, .port = o->port, .tls_cert = v->cert, .tls_key = v->key, .cors = o->cors,
                              .keys = v->keys, .n_keys = v->n_keys, .hosts = v->hosts, .n_hosts = o->allow_host.n,
                              .prefix = o->api_prefix, .max_body = (size_t) o->max_body << 20,
                              .max_connections = o->max_connections, .write_timeout = o->write_timeout,
                              .public_metrics = o->public_metrics, .cancel_on_eof = o->cancel_on_eof == 0, .ud = s,
                              .freed = on_freed, .logged = on_logged };
    v->http.routes = routes_table(&v->http.n_routes);
    if (!http_open(&s->http, &v->http, text)) return complain(o, "%s", text) == EXIT_FINE;
    log_line("listening on %s%s", http_url(s->http), http_everywhere(s->http) ? EVERYWHERE : "");
    if (!http_loopback(s->http) && v->n_keys == 0)
        fprintf(stderr, "warning: no API key set: anyone who can reach this machine can use the server "
                "(--api-key)\n");
    return true;
}

/* ---- loading: on the engine thread ---- */

static bool on_load(void *ud, int64_t done, int64_t total)
{
    Server *s = ud;
    if (s->scheduler) return scheduler_progress(s->scheduler);
    if (total > 0) s->loaded = (int) (done * 1000 / total);
    return !s->stop;
}

/* Chooses the context and checks that there is room for it, before anything large is loaded. */
static bool choose_ctx(Serve *v)
{
    Server *s = &v->s;
    Options *o = &s->o;
    rt_error e = { 0 };
    Memory *m = &v->memory;
    char need[24], room[24];
    if (memory_plan(m, &s->p, o->parallel, true, &e) != RT_OK)
        return complain_files(o, e.text, &s->p.files) == EXIT_FINE;
    o->ctx = m->ctx;
    if (memory_fits(m) || o->overcommit) return true;
    int32_t full;
    const bool gpu = !memory_fits_gpu(m, &full);
    const rt_card_needs *c = &m->needs.card[gpu ? full : 0];
    memory_pair(need, room, gpu ? memory_bytes_card(m, full) : memory_bytes(m, m->ctx),
                (double) (gpu ? c->free : m->needs.free));
    complain(o, "%d sessions of %d tokens and all they share take %s, but %s of %s%smemory are free", m->sessions,
             m->ctx, need, room, !gpu ? "" : m->needs.cards > 1 ? c->backend : "the GPU", gpu ? "'s " : "");
    Memory shorter = *m;
    if (memory_choose(&shorter, &s->p, 1, 0, INT32_MAX, &e) == RT_OK && shorter.ctx >= SERVE_CTX_LEAST)
        note(o, "--ctx %d would fit; --overcommit goes ahead all the same", shorter.ctx);
    else if (gpu) note(o, "--gpu-layers auto fits; --overcommit goes ahead all the same");
    else if (m->needs.experts)
        note(o, "no context fits beside so many experts: give %s; --overcommit goes ahead all the same",
             m->needs.expert_ram ? "a smaller --expert-ram" : "--expert-ram auto");
    else note(o, "no context fits (ratoon plan says what does); --overcommit goes ahead all the same");
    return false;
}

static void set_names(Server *s)
{
    const Options *o = &s->o;
    snprintf(s->name, sizeof s->name, "%s", o->model_name ? o->model_name : s->p.files.name);
    if (!o->model_name) s->name[gguf_stem(s->name)] = 0;
    s->names[s->n_names++] = s->name;
    for (int32_t i = 0; i < o->alias.n; i++) s->names[s->n_names++] = o->alias.at[i];
}

static char *property_text(const rt_engine *g, const char *key, size_t *n)
{
    *n = rt_property(g, key, NULL, 0);
    char *s = malloc(*n + 1);
    if (s) rt_property(g, key, s, *n + 1);
    if (s) s[*n] = 0;
    return s;
}

static void set_fim(Server *s)
{
    static const char *const KEYS[FIM_MARKS] = { "fim_pre_token", "fim_suf_token", "fim_mid_token", "fim_rep_token",
                                                 "fim_sep_token" };
    for (int i = 0; i < FIM_MARKS; i++) {
        size_t n;
        char *text = property_text(s->p.engine, KEYS[i], &n);
        s->fim[i] = text && n > 0 ? rt_token_find(s->p.engine, text, n) : -1;
        free(text);
    }
}

/* A template that names the markers of reasoning knows it, even where it cannot be turned off. */
static void set_style(Server *s)
{
    const ChatCaps *caps = s->chat ? chat_prompt_caps(s->chat) : NULL;
    size_t n = 0;
    char *source = property_text(s->p.engine, "chat_template", &n);
    s->style = chat_style(s->p.engine);
    if (s->o.tool_format) call_format_named(&s->style.calls, s->o.tool_format);
    s->tools = caps && caps->tools;
    s->thinks = caps && (caps->thinking || reply_style(source, n, "", NULL, NULL).think != THINK_NONE);
    free(source);
}

static void set_request_defaults(Server *s)
{
    const Options *o = &s->o;
    RequestDefaults *d = &s->defaults;
    int preserve = THINK_AUTO;
    *d = (RequestDefaults) {
        .model = s->name, .alias = s->names, .n_alias = (size_t) s->n_names, .vocab = s->vocab,
        .sampling = sampling_of(o, 0), .max_tokens = o->default_max_tokens ? o->default_max_tokens : 16000,
        .responses_max_tokens = o->default_max_tokens ? o->default_max_tokens : 32768,
        .max_tokens_limit = o->max_tokens_limit,
        .n_max = o->max_n, .thinking = THINK_OFF, .think_budget = o->reasoning_budget, .reply_budget = o->reply_budget,
        .effort = { [EFFORT_LOW] = 4032, [EFFORT_MEDIUM] = 16128, [EFFORT_HIGH] = 32256, [EFFORT_XHIGH] = 56832,
                    [EFFORT_MAX] = 81408 }, .responses_reasoning = SHOW_SUMMARY, .strict_fields = o->strict_fields,
        .strict_model = o->strict_model, .prefill_assistant = o->prefill_assistant,
        .template_preserves = s->chat && chat_prompt_caps(s->chat)->keeps_thinking,
        .no_tools = !s->tools, .no_thinking = !s->thinks, .denoises = property(s->p.engine, "model.canvas") > 0,
        .diffusion = s->p.denoising,
        .no_infill = s->fim[FIM_PRE] < 0 || s->fim[FIM_SUF] < 0 || s->fim[FIM_MID] < 0,
    };
    read_choice(&d->thinking, o->reasoning);
    read_choice(&preserve, o->preserve_thinking);
    d->preserve_thinking = preserve;
}

static void cache_log(void *ud, int level, const char *line)
{
    const Server *s = ud;
    if (level > (s->o.quiet ? 0 : 2)) return;
    log_line("%scache: %s", level == 0 ? "error: " : level == 1 ? "warning: " : "", line);
}

static bool open_cache(Serve *v)
{
    Server *s = &v->s;
    Options *o = &s->o;
    size_t n;
    s->identity = property_text(s->p.engine, "identity", &n);
    if (!s->identity) return complain(o, "out of memory") == EXIT_FINE;
    CacheOptions c = { .ram_bytes = (size_t) memory_prefix_cache(&v->memory, o), .dir = o->cache_dir,
                       .disk_bytes = (uint64_t) o->cache_disk << 20, .min_tokens = o->cache_min_tokens,
                       .log = cache_log, .ud = s };
    if (c.ram_bytes == 0 && !c.dir) return true;
    Error err = { 0 };
    return cache_open(&s->cache, &c, &err) == ST_OK || complain(o, "%s", err.text) == EXIT_FINE;
}

static bool load(Serve *v)
{
    Server *s = &v->s;
    TemplateError err;
    struct stat st;
    s->p.watch = on_load;
    s->p.watch_ud = s;
    const int with = WITH_DRAFTER | OWN_SIGNALS;
    if (!program_find(&s->p, &s->o, with)) return false;
    program_read_early(&s->p);
    if (!choose_ctx(v) || !program_load(&s->p, with, NULL, 0)) return false;
    rt_engine *g = s->p.engine;
    if (!rt_has_tokenizer(g)) return complain(&s->o, "%s: it carries no tokenizer", s->p.files.model) == EXIT_FINE;
    program_check_ctx(&s->p);
    program_kv_hint(&s->p, s->o.parallel);
    program_expert_note(&s->p);
    s->vocab = (int32_t) property(g, "model.vocab");
    s->ctx = s->o.ctx;
    for (int32_t id = 0; id < s->vocab; id++) {
        size_t n;
        rt_token_bytes(g, id, &n);
        if (n > s->longest) s->longest = n;
    }
    s->model_time = stat(s->p.files.model, &st) == 0 ? (int64_t) st.st_mtime : 0;
    set_names(s);
    if (!sampling_for_answers(&s->o, &s->p)) return false;
    if (chat_open(&s->chat, &s->p, &err) != ST_OK) {
        snprintf(s->chat_trouble, sizeof s->chat_trouble, "%s", err.error.text);
        note(&s->o, "%s: only /v1/completions is there", s->chat_trouble);
    }
    s->store = store_new((size_t) memory_store(&v->memory, &s->o));
    s->replay = replay_new();
    set_style(s);
    set_fim(s);
    hub_quant(s->quant, s->p.files.model);
    if (!*s->quant) strcpy(s->quant, s->p.files.type);
    if (!s->store || !s->replay || !(s->constraints = constraints_new(g, s->style)))
        return complain(&s->o, "out of memory") == EXIT_FINE;
    set_request_defaults(s);
    Scheduler *scheduler = NULL;
    bool good = open_cache(v) && scheduler_open(&scheduler, s);
    s->scheduler = scheduler;
    return good;
}

/* The address 0.0.0.0 is none that a browser could open. */
static void say_page(const Server *s)
{
    const char *url = http_url(s->http), *port = strrchr(url, ':');
    if (strncmp(url, "http", 4) != 0) return;
    if (http_everywhere(s->http)) log_line("the page: %s://127.0.0.1%s%s/", s->o.tls_cert ? "https" : "http", port,
                                           s->o.api_prefix);
    else log_line("the page: %s%s/", url, s->o.api_prefix);
}

static void say_ready(const Serve *v)
{
    const Server *s = &v->s;
    const char *draft = s->p.files.draft;
    char gpu[64];
    if (s->o.quiet) return;
    log_line("model %s, context %d for each of %d sessions%s, drafter %s, tool calls as %s, reasoning %s, %s", s->name,
             s->ctx, s->o.parallel, program_gpu_text(gpu, &s->p), draft[0] ? base_name(draft) : "none",
             call_format_name(s->style.calls), s->o.reasoning ? s->o.reasoning : "off",
             v->n_keys ? "with keys" : "no key asked");
    char sampling[256];
    log_line("sampling where a request does not say: %s", sampling_text(sampling, &s->defaults.sampling, false));
    say_page(s);
    log_line("ready in %.1f s", seconds_now() - v->begun);
}

static void *engine_thread(void *ud)
{
    Serve *v = ud;
    Server *s = &v->s;
    if (load(v)) {
        int loading = SERVER_LOADING;
        atomic_compare_exchange_strong(&s->state, &loading, (int) SERVER_READY);
        say_ready(v);
        scheduler_run(s->scheduler);
    } else {
        s->failed = !s->stop;                      /* else it was asked to end meanwhile */
        unsigned char byte = 0;
        ssize_t ignored = write(pipe_fd[1], &byte, 1);
        (void) ignored;
    }
    return NULL;
}

static void *worker_thread(void *ud)
{
    while (queue_work(ud));
    return NULL;
}

static bool start_threads(Serve *v)
{
    if (pthread_create(&v->engine, NULL, engine_thread, v) != 0)
        return complain(&v->s.o, "a thread could not be started") == EXIT_FINE;
    v->engine_runs = true;
    for (; v->n_workers < WORKERS; v->n_workers++)
        if (pthread_create(&v->worker[v->n_workers], NULL, worker_thread, v->s.queue) != 0)
            return complain(&v->s.o, "a thread could not be started") == EXIT_FINE;
    return true;
}

/* ---- waiting, ending ---- */

static void say_status(const Server *s)
{
    SchedulerNow e = { 0 };
    if (s->scheduler) scheduler_now(s->scheduler, &e); /* NULL while the model loads, and if that failed */
    fprintf(stderr, "status: %s, %d running, %d waiting, %d connections, %d tokens held\n",
            s->state == SERVER_LOADING ? "loading" : s->state == SERVER_READY ? "ready" : "draining", e.running,
            queue_waiting(s->queue), http_connections(s->http), e.used);
}

/* Waits a second; returns true if the server was asked to stop or has failed. */
static bool wait_second(Serve *v, int ms)
{
    struct pollfd p = { .fd = pipe_fd[0], .events = POLLIN };
    unsigned char byte;
    poll(&p, 1, ms);
    while (read(pipe_fd[0], &byte, 1) == 1)
        if (byte == SIGUSR1) say_status(&v->s);
    http_tick(v->s.http);
    return ends_asked > 0 || v->s.failed;
}

static bool idle(const Serve *v)
{
    SchedulerNow e = { 0 };
    const Server *s = &v->s;
    if (s->scheduler) scheduler_now(s->scheduler, &e);
    return e.jobs == 0 && queue_waiting(s->queue) == 0;
}

/* Gives running requests some time to finish; waiting ones are refused. */
static void drain(Serve *v)
{
    Server *s = &v->s;
    bool was_loading = s->state == SERVER_LOADING;
    s->state = SERVER_DRAINING;
    http_quiesce(s->http);
    if (was_loading) s->stop = true;
    double until = seconds_now() + s->o.shutdown_grace;
    if (!was_loading && !s->failed && !idle(v))
        note(&s->o, "ending: %d s for the requests that run (again: at once)", s->o.shutdown_grace);
    while (!was_loading && !idle(v) && seconds_now() < until) wait_second(v, 20);
    queue_close(s->queue);
    for (int32_t i = 0; i < v->n_workers; i++) pthread_join(v->worker[i], NULL);
    s->stop = true;
    queue_wake(s->queue);
    if (v->engine_runs) pthread_join(v->engine, NULL);
    until = seconds_now() + FLUSH_SECONDS;
    while (http_exchanges(s->http) > 0 && seconds_now() < until) wait_second(v, 10);
}

static void close_all(Serve *v)
{
    Server *s = &v->s;
    http_close(s->http);
    scheduler_close(s->scheduler);
    cache_close(s->cache, CACHE_DRAIN_MS);
    constraints_free(s->constraints);
    replay_free(s->replay);
    store_free(s->store);
    chat_prompt_close(s->chat);
    free(s->identity);
    program_close(&s->p);
    metrics_free(s->metrics);
    queue_free(s->queue);
    free(v->key_text);
    free(v->env_keys);
    free(v->cert);
    free(v->key);
    if (pipe_fd[0] >= 0) close(pipe_fd[0]);
    if (pipe_fd[1] >= 0) close(pipe_fd[1]);
}

/* Enough file descriptors for the connections; no core files, since prompts are private. */
static void set_limits(const Options *o)
{
    struct rlimit r;
    if (getrlimit(RLIMIT_NOFILE, &r) == 0) {
        rlim_t wanted = (rlim_t) o->max_connections + 256;
        if (r.rlim_cur < wanted) r.rlim_cur = r.rlim_max < wanted ? r.rlim_max : wanted;
        setrlimit(RLIMIT_NOFILE, &r);
    }
    setrlimit(RLIMIT_CORE, &(struct rlimit) { 0, 0 });
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
}

static int serve(Serve *v)
{
    Server *s = &v->s;
    set_limits(&s->o);
    hear_interrupts();                             /* until the server hears signals itself */
    if (!files_fetch(&v->fetched, &s->o)) return interrupts ? EXIT_INTERRUPTED : EXIT_FAILED;
    s->queue = queue_new(s->o.queue_size);
    s->metrics = metrics_new();
    if (!s->queue || !s->metrics) return complain(&s->o, "out of memory");
    if (!hear_signals(&s->o)) return EXIT_FAILED;
    block_signals(SIG_BLOCK);
    bool good = open_port(v) && start_threads(v);
    block_signals(SIG_UNBLOCK);
    if (!s->http) return EXIT_FAILED;
    while (good && !wait_second(v, 1000));
    drain(v);
    return good && !s->failed ? EXIT_FINE : EXIT_FAILED;
}

int cmd_serve(int argc, char **argv)
{
    Serve *v = calloc(1, sizeof *v);
    int status = EXIT_FAILED;
    if (!v) return EXIT_FAILED;
    if (options_read(&v->s.o, argc, argv, &status)) {
        v->begun = seconds_now();
        v->s.started = (int64_t) time(NULL);
        set_defaults(&v->s.o);
        status = options_agree(v) ? read_keys(v) && read_tls(v) ? serve(v) : EXIT_FAILED : EXIT_USAGE;
        close_all(v);
    }
    free(v);
    return status;
}
