#include "programs/bench/compare.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <regex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/json.h"

enum { OUTPUT_MAX = 16 << 20, LIMIT_DEFAULT = 600 };

bool compare_ready(const Options *o)
{
    regex_t re;
    char why[200];
    if (o->compare && !o->compare[strspn(o->compare, " \t\r\n")])
        return complain(o, "--compare: the command is empty") == 0;
    if (!o->compare && o->compare_rate) return complain(o, "--compare-rate needs --compare") == 0;
    if (!o->compare_rate) return true;
    int code = regcomp(&re, o->compare_rate, REG_EXTENDED | REG_NEWLINE);
    if (code != 0) {
        regerror(code, &re, why, sizeof why);
        return complain(o, "--compare-rate: '%s': %s", o->compare_rate, why) == 0;
    }
    size_t groups = re.re_nsub;
    regfree(&re);
    return groups >= 1 || complain(o, "--compare-rate: '%s' has no group ( ) for the number", o->compare_rate) == 0;
}

/* ---- the process ---- */

/* Its output goes to unnamed files: no pipe can fill up, and we need not wait for processes that keep one open. */
static void become(const char *command, int out, int err, pid_t parent)
{
    int in = open("/dev/null", O_RDONLY);
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);              /* in case this process is killed */
    if (getppid() != parent) _exit(127);
    sigaction(SIGPIPE, &(struct sigaction) { .sa_handler = SIG_DFL }, NULL);
    sigaction(SIGXFSZ, &(struct sigaction) { .sa_handler = SIG_DFL }, NULL);
    if (in < 0 || dup2(in, 0) < 0 || dup2(out, 1) < 0 || dup2(err, 2) < 0) _exit(127);
    execl("/bin/sh", "sh", "-c", command, (char *) NULL);
    _exit(127);
}

static int64_t length(FILE *f)
{
    struct stat st;
    return fstat(fileno(f), &st) == 0 ? (int64_t) st.st_size : 0;
}

/* Waits until it has ended by itself and returns its wait status; otherwise kills it and puts the reason in *why. */
static int wait_for(const Options *o, pid_t pid, FILE *out, FILE *err, char why[80])
{
    int limit = o->compare_limit ? o->compare_limit : LIMIT_DEFAULT, status = 0;
    double begun = seconds_now();
    why[0] = 0;
    for (;;) {
        pid_t got = waitpid(pid, &status, WNOHANG);
        if (got != 0 && !(got < 0 && errno == EINTR)) break;
        if (interrupts) snprintf(why, 80, "interrupted");
        else if (seconds_now() - begun > limit)
            snprintf(why, 80, "it had not ended after %d seconds (--compare-limit)", limit);
        else if (length(out) + length(err) > OUTPUT_MAX)
            snprintf(why, 80, "it printed more than %d MiB", OUTPUT_MAX >> 20);
        if (why[0]) {
            kill(-pid, SIGKILL);
            while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
            break;
        }
        nanosleep(&(struct timespec) { .tv_nsec = 20000000 }, NULL);
    }
    kill(-pid, SIGKILL);                           /* remaining processes would slow us down */
    return status;
}

static char *contents(FILE *f, size_t *n)
{
    int64_t len = length(f);
    if (len > OUTPUT_MAX) len = OUTPUT_MAX;     /* more is an error already noticed, or came at the very end */
    char *s = malloc((size_t) len + 1);
    rewind(f);
    *n = s ? fread(s, 1, (size_t) len, f) : 0;
    if (s) s[*n] = 0;
    return s;
}

static const char *last_line(char *s)
{
    size_t n = strlen(s);
    while (n > 0 && strchr(" \t\r\n", s[n - 1])) s[--n] = 0;
    const char *line = strrchr(s, '\n');
    return line ? line + 1 : s;
}

static bool run_command(const Options *o, char **out, size_t *n_out, char **err, size_t *n_err)
{
    FILE *fo = tmpfile(), *fe = tmpfile();
    bool good = fo && fe;
    char why[80];
    if (!good) complain(o, "--compare: a temporary file: %s", strerror(errno));
    fflush(stdout);
    pid_t parent = getpid(), pid = good ? fork() : -1;
    if (pid == 0) become(o->compare, fileno(fo), fileno(fe), parent);
    if (good && pid < 0) good = complain(o, "--compare: it could not be started: %s", strerror(errno)) == 0;
    if (good) {
        setpgid(pid, pid);                         /* done by both processes, since either may come first */
        int status = wait_for(o, pid, fo, fe, why);
        *out = contents(fo, n_out);
        *err = contents(fe, n_err);
        if (!*out || !*err) {
            good = complain(o, "--compare: out of memory for what it printed") == 0;
        } else if (why[0]) {
            good = complain(o, "--compare: '%s': %s", o->compare, why) == 0;
        } else if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
            char *last = *n_err > 0 ? *err : *out;
            good = complain(o, "--compare: '%s' ended with %s %d; its last line: %s",
                            o->compare, WIFSIGNALED(status) ? "signal" : "exit code",
                            WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status), last_line(last)) == 0;
        }
    }
    if (fo) fclose(fo);
    if (fe) fclose(fe);
    return good;
}

/* ---- what it printed ---- */

typedef struct { Compared *p; bool counts; int32_t found; } Reading;

static void add(Reading *r, RateKind kind, int64_t n, double tok_s)
{
    Compared *p = r->p;
    if (!(tok_s > 0) || !isfinite(tok_s) || n < 0 || n > INT32_MAX) return;
    r->found++;
    if (!r->counts) return;
    int32_t i = 0;
    while (i < p->n && !(p->rate[i].kind == kind && p->rate[i].n == n)) i++;
    if (i == COMPARED_RATES_MAX) return;           /* more than anything here needs */
    ComparedRate *x = &p->rate[i];
    if (i == p->n) {
        *x = (ComparedRate) { .kind = kind, .n = (int32_t) n, .tok_s = calloc(COMPARED_ROUNDS_MAX, sizeof *x->tok_s) };
        if (!x->tok_s) return;
        p->n++;
    }
    if (x->run != p->runs && x->rounds < COMPARED_ROUNDS_MAX) x->tok_s[x->rounds++] = tok_s;
    else if (tok_s > x->tok_s[x->rounds - 1]) x->tok_s[x->rounds - 1] = tok_s;     /* several values in one run */
    x->run = p->runs;
}

/* Warns if the other program read another file or used another number of threads, since a ratio then means little. */
static void look_alike(Compared *p, const json_t *j)
{
    if (p->told) return;
    p->told = true;
    const char *file = json_string_value(json_object_get(j, "model_filename"));
    const json_t *threads = json_object_get(j, "n_threads");
    if (file && strcmp(base_name(file), base_name(p->model)) != 0)
        note(p->o, "--compare: the command measured %s, not %s", base_name(file), base_name(p->model));
    if (json_is_integer(threads) && json_integer_value(threads) != p->threads)
        note(p->o, "--compare: the command used %lld threads, ours are %d", (long long) json_integer_value(threads),
             p->threads);
}

/* One result of llama-bench (n_prompt, n_gen, samples_ts) or of llama-batched-bench (pl, speed_tg). */
static void read_result(Reading *r, const json_t *j)
{
    int64_t prompt = json_integer_value(json_object_get(j, "n_prompt")),
            made = json_integer_value(json_object_get(j, "n_gen"));
    int64_t sequences = json_integer_value(json_object_get(j, "pl"));
    double rate = json_number_value(json_object_get(j, "avg_ts"));
    const json_t *samples = json_object_get(j, "samples_ts");
    for (size_t i = 0; i < json_array_size(samples); i++)
        rate = fmax(rate, json_number_value(json_array_get(samples, i)));
    if (r->counts) look_alike(r->p, j);
    if (sequences > 0) add(r, RATE_ROWS, sequences, json_number_value(json_object_get(j, "speed_tg")));
    else if (prompt > 0 && made == 0) add(r, RATE_PROMPT, prompt, rate);
    else if (made > 0 && prompt == 0) add(r, RATE_DECODE, made, rate);
}

static void read_json(Reading *r, const char *s, size_t n)
{
    json_t *j = NULL;
    Error err = { 0 };
    if (json_read(&j, s, n, "the command's output", &err) != ST_OK) return;
    if (json_is_object(j)) read_result(r, j);
    for (size_t i = 0; i < json_array_size(j); i++) read_result(r, json_array_get(j, i));
    json_decref(j);
}

/* Parses one array over many lines, from the first line that starts with '[', or else one object per line. */
static void read_output(Reading *r, const char *s)
{
    const char *array = s[0] == '[' ? s : strstr(s, "\n[");
    if (array) {
        const char *last = strrchr(array, ']');
        if (last) read_json(r, array + (*array == '\n'), (size_t) (last + 1 - array) - (*array == '\n'));
    }
    if (r->found > 0) return;
    for (const char *line = s; line; line = strchr(line, '\n')) {
        line += strspn(line, " \t\r\n");
        if (*line == '{') read_json(r, line, strcspn(line, "\n"));
    }
}

static void match_output(Reading *r, const char *s)
{
    regex_t re;
    regmatch_t at[2];
    if (regcomp(&re, r->p->o->compare_rate, REG_EXTENDED | REG_NEWLINE) != 0) return;
    double rate = 0;
    for (const char *from = s; regexec(&re, from, 2, at, from > s && from[-1] != '\n' ? REG_NOTBOL : 0) == 0;) {
        if (at[1].rm_so >= 0) rate = strtod(from + at[1].rm_so, NULL);
        from += at[0].rm_eo;
        if (at[0].rm_eo == at[0].rm_so && !*from++) break;             /* an empty match would be found again */
    }
    regfree(&re);
    add(r, RATE_DECODE, 0, rate);
}

bool compare_run(Compared *p, bool counts)
{
    char *out = NULL, *err = NULL;
    size_t n_out = 0, n_err = 0;
    Reading r = { .p = p, .counts = counts };
    bool good = run_command(p->o, &out, &n_out, &err, &n_err);
    p->runs += counts;
    if (good && p->o->compare_rate) {
        match_output(&r, out);
        if (r.found == 0) match_output(&r, err);
        if (r.found == 0)
            good = complain(p->o, "--compare: '%s' printed nothing that '%s' finds a positive number in", p->o->compare,
                            p->o->compare_rate) == 0;
    } else if (good) {
        read_output(&r, out);
        if (r.found == 0) read_output(&r, err);
        if (r.found == 0)
            good = complain(p->o, "--compare: '%s' printed %s; expected llama-bench's or llama-batched-bench's JSON "
                            "(-o json, --output-format jsonl), or give --compare-rate", p->o->compare,
                            n_out == 0 ? "nothing" : "no results that are understood") == 0;
    }
    free(out);
    free(err);
    return good;
}

void compare_free(Compared *p)
{
    for (int32_t i = 0; i < p->n; i++) free(p->rate[i].tok_s);
    p->n = 0;
}

/* ---- asking ---- */

static const ComparedRate *find(const Compared *p, RateKind kind, int32_t n)
{
    for (int32_t i = 0; i < p->n; i++)
        if (p->rate[i].kind == kind && (n == 0 || p->rate[i].n == n)) return &p->rate[i];
    return NULL;
}

double compare_fastest(const Compared *p, RateKind kind, int32_t n)
{
    const ComparedRate *x = find(p, kind, n);
    double best = 0;
    for (int32_t i = 0; x && i < x->rounds; i++) best = fmax(best, x->tok_s[i]);
    return best;
}

double compare_median(const Compared *p, RateKind kind, int32_t n)
{
    const ComparedRate *x = find(p, kind, n);
    return x ? median(x->tok_s, x->rounds) : 0;
}

double compare_rows(const Compared *p, int32_t n, const char **what)
{
    static const struct {
        RateKind kind;
        const char *name;
    } ways[] = { { RATE_ROWS, "batched" }, { RATE_PROMPT, "pp" }, { RATE_DECODE, "tg" } };
    for (int32_t i = 0; i < 3; i++) {
        double rate = ways[i].kind != RATE_DECODE ? compare_fastest(p, ways[i].kind, n) : n == 1
                      ? compare_fastest(p, RATE_DECODE, 0) : 0;
        *what = ways[i].name;
        if (rate > 0) return rate;
    }
    return 0;
}
