/* ratoon serve: the model behind HTTP. The main thread opens the port, starts the others, and waits for signals; the engine thread loads
 * the model and then runs it. */
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

#include "programs/chat.h"
#include "programs/serve/runner.h"
#include "programs/serve/forms.h"
#include "programs/serve/job.h"
#include "programs/serve/plain.h"
#include "programs/serve/replay.h"
#include "programs/serve/store.h"

enum { KEYS_MAX = 256, WORKERS = 2, FLUSH_SECONDS = 2, CACHE_DRAIN_MS = 20000, CTX_MOST = 131072, CTX_LEAST = 2048 };

typedef struct {
    Server      s;
    char       *key_text, *env_keys, *cert, *key;  /* of the key file, of RATOON_API_KEY, of TLS */
    const char *keys[KEYS_MAX]; int32_t n_keys;
    const char *hosts[TEXTS_MAX];
    HttpOptions http;
    pthread_t   engine, worker[WORKERS];
    bool        engine_runs;
    int32_t     n_workers;
    atomic_bool failed;                            /* loading: the reason has been said */
    double      begun;
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

/* Threads that are started now leave the signals to the main thread. */
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
        else if (errno != EINTR) _exit(EXIT_FAILED);                   /* the kernel has no random numbers: ids would be guessable */
    }
}

/* ---- options ---- */

static void set_defaults(Options *o)
{
    static const struct { size_t at; int32_t value; } numbers[] = {
        { offsetof(Options, parallel), 4 }, { offsetof(Options, queue_size), 32 }, { offsetof(Options, max_n), 4 }, { offsetof(Options, max_body), 64 },
        { offsetof(Options, max_connections), 256 }, { offsetof(Options, write_timeout), 30 }, { offsetof(Options, keepalive), 5 },
        { offsetof(Options, reply_budget), 4096 }, { offsetof(Options, cache_disk), 4096 }, { offsetof(Options, cache_min_tokens), 256 }, { offsetof(Options, cache_interval), 8192 },
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

static bool one_of(const Options *o, const char *option, const char *value, int *out)
{
    static const char *const names[] = { [THINK_OFF] = "off", [THINK_ON] = "on", [THINK_AUTO] = "auto" };
    for (int i = 0; value && i < 3; i++) {
        if (strcmp(value, names[i]) != 0) continue;
        *out = i;
        return true;
    }
    return !value || complain(o, "%s is '%s', expected on, off or auto", option, value) == EXIT_FINE;
}

static bool add_key(Serve *v, const char *key)
{
    if (!*key) return complain(&v->s.o, "an API key is empty") == EXIT_FINE;
    if (v->n_keys == KEYS_MAX) return complain(&v->s.o, "there are more than %d API keys", KEYS_MAX) == EXIT_FINE;
    v->keys[v->n_keys++] = key;
    return true;
}

static bool read_keys(Serve *v)
{
    const Options *o = &v->s.o;
    size_t n;
    char *save = NULL;
    for (int32_t i = 0; i < o->api_key.n; i++)
        if (!add_key(v, o->api_key.at[i])) return false;
    const char *env = getenv("RATOON_API_KEY");
    if (env && *env && !(v->env_keys = strdup(env))) return complain(o, "out of memory") == EXIT_FINE;
    for (char *k = v->env_keys ? strtok_r(v->env_keys, ",", &save) : NULL; k; k = strtok_r(NULL, ",", &save))
        if (!add_key(v, k)) return false;
    if (!o->api_key_file) return true;
    if (!text_read(o, &v->key_text, &n, o->api_key_file)) return false;
    for (char *line = strtok_r(v->key_text, "\r\n", &save); line; line = strtok_r(NULL, "\r\n", &save)) {
        line += strspn(line, " \t");
        if (*line && *line != '#' && !add_key(v, line)) return false;
    }
    return v->n_keys > 0 || complain(o, "%s: it holds no key", o->api_key_file) == EXIT_FINE;
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
    CallFormat f;
    int ignored;
    if (!one_of(o, "--reasoning", o->reasoning, &ignored) || !one_of(o, "--preserve-thinking", o->preserve_thinking, &ignored)) return false;
    if (o->tool_format && !call_format_named(&f, o->tool_format)) return complain(o, "--tool-format is '%s', expected qwen3, hermes, qwen35, laguna, gemma4, llama3, json or none", o->tool_format) == EXIT_FINE;
    if (*o->api_prefix && *o->api_prefix != '/') return complain(o, "--api-prefix is '%s', expected a path that begins with /", o->api_prefix) == EXIT_FINE;
    return true;
}

/* ---- HTTP ---- */

static void on_freed(void *ud) { queue_wake(((Server *) ud)->queue); }

static void on_logged(void *ud, const Exchange *x, int status, double seconds)
{
    Server *s = ud;
    const Route *r = exchange_route(x);
    int32_t n;
    const Route *all = plain_routes(&n);
    bool text = r && (r->dialect != DIALECT_CHAT || strcmp(r->path, "/v1/chat/completions") == 0);
    if (text && r >= all) metrics_request(s->metrics, r->dialect, status);
    if (!s->o.quiet && status >= 400) fprintf(stderr, "%s %s: %d, %.3f s\n", exchange_path(x), exchange_id(x), status, seconds);
}

static bool open_port(Serve *v)
{
    Server *s = &v->s;
    const Options *o = &s->o;
    char text[512];
    for (int32_t i = 0; i < o->allow_host.n; i++) v->hosts[i] = o->allow_host.at[i];
    v->http = (HttpOptions) { .host = o->host, .port = o->port, .tls_cert = v->cert, .tls_key = v->key, .cors = o->cors, .keys = v->keys, .n_keys = v->n_keys, .hosts = v->hosts,
                              .n_hosts = o->allow_host.n, .prefix = o->api_prefix, .max_body = (size_t) o->max_body << 20, .max_connections = o->max_connections,
                              .write_timeout = o->write_timeout, .public_metrics = o->public_metrics, .cancel_on_eof = o->cancel_on_eof == 0, .ud = s, .freed = on_freed,
                              .logged = on_logged };
    v->http.routes = plain_routes(&v->http.n_routes);
    if (!http_open(&s->http, &v->http, text)) return complain(o, "%s", text) == EXIT_FINE;
    fprintf(stderr, "listening on %s\n", http_url(s->http));
    if (!http_loopback(s->http) && v->n_keys == 0) fprintf(stderr, "warning: everybody who can reach this machine can use it: give an --api-key\n");
    return true;
}

/* ---- loading: on the engine thread ---- */

static bool on_load(void *ud, int64_t done, int64_t total)
{
    Server *s = ud;
    if (s->state == SERVER_LOADING) {
        if (total > 0) s->loaded = (int) (done * 1000 / total);
        return !s->stop;
    }
    return !s->runner || runner_progress(s->runner);
}

static void add_part(void *ud, const char *name, size_t bytes)
{
    size_t *sum = ud;
    if (strcmp(name, "session") == 0) sum[0] += bytes;
    if (strcmp(name, "step") == 0) sum[1] += bytes;
}

static size_t memory_free(void)
{
    FILE *f = fopen("/proc/meminfo", "r");
    char line[128];
    unsigned long long kib = 0;
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %llu", &kib) == 1) break;
    if (f) fclose(f);
    return (size_t) kib << 10;
}

/* The context that all sessions can have in 80 % of the free memory, the model being loaded already. */
static bool choose_ctx(Serve *v)
{
    Server *s = &v->s;
    Options *o = &s->o;
    int64_t trained = property(s->p.engine, "model.ctx");
    bool given = o->ctx > 0;
    if (!given) o->ctx = trained > 0 && trained < CTX_MOST ? (int32_t) trained : CTX_MOST;
    for (;;) {
        rt_error e = { 0 };
        rt_options ro = program_options(&s->p, NULL, 0);
        rt_session_options so = program_session_options(o);
        rt_step_options st = program_step_options(o);
        size_t sum[2] = { 0 }, room = memory_free() / 5 * 4;
        ro.hooks = (rt_hooks) { 0 };
        st.sessions = o->parallel;
        if (given || room == 0) return true;
        if (rt_plan(&ro, &so, &st, add_part, sum, &e) != RT_OK) return complain(o, "%s", e.text) == EXIT_FINE;
        if (sum[0] * (size_t) o->parallel + sum[1] <= room || o->ctx / 2 < CTX_LEAST) return true;
        o->ctx /= 2;
    }
}

static void set_names(Server *s)
{
    const Options *o = &s->o;
    snprintf(s->name, sizeof s->name, "%s", o->model_name ? o->model_name : base_name(s->p.files.model));
    size_t n = strlen(s->name);
    if (!o->model_name && n > 5 && strcmp(s->name + n - 5, ".gguf") == 0) s->name[n - 5] = 0;
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

static void set_style(Server *s)
{
    s->style = chat_style(s->p.engine);
    if (s->o.tool_format) call_format_named(&s->style.calls, s->o.tool_format);
}

static void set_request_defaults(Server *s)
{
    const Options *o = &s->o;
    RequestDefaults *d = &s->defaults;
    int preserve = THINK_AUTO;
    *d = (RequestDefaults) {
        .model = s->name, .alias = s->names, .n_alias = (size_t) s->n_names, .vocab = s->vocab, .sampling = program_sampling(o, 0),
        .max_tokens = o->default_max_tokens ? o->default_max_tokens : 16000, .responses_max_tokens = o->default_max_tokens ? o->default_max_tokens : 32768,
        .max_tokens_limit = o->max_tokens_limit, .n_max = o->max_n, .thinking = THINK_OFF, .think_budget = o->reasoning_budget, .reply_budget = o->reply_budget,
        .effort = { [EFFORT_LOW] = 4032, [EFFORT_MEDIUM] = 16128, [EFFORT_HIGH] = 32256, [EFFORT_XHIGH] = 56832, [EFFORT_MAX] = 81408 },
        .responses_reasoning = SHOW_SUMMARY, .strict_fields = o->strict_fields, .strict_model = o->strict_model, .prefill_assistant = o->prefill_assistant,
        .template_preserves = s->chat && chat_prompt_caps(s->chat)->keeps_thinking,
        .lookup = { .ud = s->store, .response = store_response, .item = store_item },
    };
    one_of(o, "--reasoning", o->reasoning, &d->thinking);
    one_of(o, "--preserve-thinking", o->preserve_thinking, &preserve);
    d->preserve_thinking = preserve;
}

static void cache_log(void *ud, int level, const char *line)
{
    const Server *s = ud;
    if (level <= (s->o.quiet ? 0 : 2)) fprintf(stderr, "%scache: %s\n", level == 0 ? "error: " : level == 1 ? "warning: " : "", line);
}

static bool open_cache(Serve *v)
{
    Server *s = &v->s;
    Options *o = &s->o;
    size_t n, quarter = memory_free() / 4;
    s->identity = property_text(s->p.engine, "identity", &n);
    if (!s->identity) return complain(o, "out of memory") == EXIT_FINE;
    CacheOptions c = { .ram_bytes = (size_t) (o->cache_ram < 0 ? 8192 : o->cache_ram) << 20, .dir = o->cache_dir, .disk_bytes = (uint64_t) o->cache_disk << 20,
                       .min_tokens = o->cache_min_tokens, .log = cache_log, .ud = s };
    if (o->cache_ram < 0 && quarter > 0 && c.ram_bytes > quarter) c.ram_bytes = quarter;
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
    if (!program_open(&s->p, &s->o, WITH_DRAFTER | OWN_SIGNALS, NULL, 0)) return false;
    rt_engine *g = s->p.engine;
    if (!rt_has_tokenizer(g)) return complain(&s->o, "%s: it carries no tokenizer", s->p.files.model) == EXIT_FINE;
    if (!choose_ctx(v)) return false;
    s->vocab = (int32_t) property(g, "model.vocab");
    s->ctx = s->o.ctx;
    for (int32_t id = 0; id < s->vocab; id++) {
        size_t n;
        rt_token_bytes(g, id, &n);
        if (n > s->longest) s->longest = n;
    }
    s->model_time = stat(s->p.files.model, &st) == 0 ? (int64_t) st.st_mtime : 0;
    set_names(s);
    if (chat_open(&s->chat, &s->p, &err) != ST_OK) {
        snprintf(s->chat_trouble, sizeof s->chat_trouble, "%s", err.error.text);
        note(&s->o, "%s: only /v1/completions is there", s->chat_trouble);
    }
    s->store = store_new();
    s->replay = replay_new();
    set_style(s);
    if (!s->store || !s->replay || !(s->forms = forms_new(g, s->style))) return complain(&s->o, "out of memory") == EXIT_FINE;
    set_request_defaults(s);
    Runner *runner = NULL;
    bool good = open_cache(v) && runner_open(&runner, s);
    s->runner = runner;
    return good;
}

static void say_ready(const Serve *v)
{
    const Server *s = &v->s;
    const char *draft = s->p.files.draft;
    if (s->o.quiet) return;
    fprintf(stderr, "model %s, context %d for each of %d sessions, drafter %s, tool calls as %s, reasoning %s, %s\n", s->name, s->ctx, s->o.parallel,
            draft[0] ? base_name(draft) : "none", call_format_name(s->style.calls), s->o.reasoning ? s->o.reasoning : "off", v->n_keys ? "with keys" : "no key asked");
    fprintf(stderr, "ready in %.1f s\n", seconds_now() - v->begun);
}

static void *engine_thread(void *ud)
{
    Serve *v = ud;
    Server *s = &v->s;
    if (load(v)) {
        int loading = SERVER_LOADING;
        atomic_compare_exchange_strong(&s->state, &loading, (int) SERVER_READY);
        say_ready(v);
        runner_run(s->runner);
    } else {
        v->failed = true;
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
    if (pthread_create(&v->engine, NULL, engine_thread, v) != 0) return complain(&v->s.o, "a thread could not be started") == EXIT_FINE;
    v->engine_runs = true;
    for (; v->n_workers < WORKERS; v->n_workers++)
        if (pthread_create(&v->worker[v->n_workers], NULL, worker_thread, v->s.queue) != 0) return complain(&v->s.o, "a thread could not be started") == EXIT_FINE;
    return true;
}

/* ---- waiting, ending ---- */

static void say_status(const Server *s)
{
    RunnerNow e = { 0 };
    if (s->state != SERVER_LOADING) runner_now(s->runner, &e);
    fprintf(stderr, "status: %s, %d running, %d waiting, %d connections, %d tokens held\n", s->state == SERVER_LOADING ? "loading" : s->state == SERVER_READY ? "ready" : "draining",
            e.running, queue_waiting(s->queue), http_connections(s->http), e.used);
}

/* A second at a time; true: the end was asked for, or loading failed. */
static bool wait_second(Serve *v, int ms)
{
    struct pollfd p = { .fd = pipe_fd[0], .events = POLLIN };
    unsigned char byte;
    poll(&p, 1, ms);
    while (read(pipe_fd[0], &byte, 1) == 1)
        if (byte == SIGUSR1) say_status(&v->s);
    http_tick(v->s.http);
    return ends_asked > 0 || v->failed;
}

static bool idle(const Serve *v)
{
    RunnerNow e = { 0 };
    const Server *s = &v->s;
    if (s->runner) runner_now(s->runner, &e);
    return e.jobs == 0 && queue_waiting(s->queue) == 0;
}

/* Requests that run have a while; those that wait are refused. */
static void drain(Serve *v)
{
    Server *s = &v->s;
    bool was_loading = s->state == SERVER_LOADING;
    s->state = SERVER_DRAINING;
    http_quiesce(s->http);
    if (was_loading || v->failed) s->stop = true;
    double until = seconds_now() + s->o.shutdown_grace;
    if (!was_loading && !idle(v)) note(&s->o, "ending: %d s for the requests that run (again: at once)", s->o.shutdown_grace);
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
    runner_close(s->runner);
    cache_close(s->cache, CACHE_DRAIN_MS);
    forms_free(s->forms);
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

/* Descriptors for the connections; prompts are private and stay out of core files. */
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
    return good && !v->failed ? EXIT_FINE : EXIT_FAILED;
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
