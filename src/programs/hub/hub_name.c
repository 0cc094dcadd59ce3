#include "programs/hub/hub_name.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/hex.h"
#include "base/path.h"

static bool plain(char c) { return isalnum((unsigned char) c) || c == '.' || c == '_' || c == '-'; }

static bool all_plain(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!plain(s[i])) return false;
    return true;
}

/* One half of ORG/NAME: what the hub itself allows. "--" separates both in the cache's folders. */
static bool half_good(const char *s, size_t n)
{
    if (n < 1 || n > 96 || !all_plain(s, n) || strchr("-.", s[0]) || strchr("-.", s[n - 1])) return false;
    for (size_t i = 0; i + 1 < n; i++)
        if (s[i] == s[i + 1] && strchr("-.", s[i])) return false;
    return true;
}

static bool repo_good(const char *repo)
{
    const char *slash = strchr(repo, '/');
    return slash && half_good(repo, (size_t) (slash - repo)) && half_good(slash + 1, strlen(slash + 1));
}

static bool revision_good(const char *s)
{
    for (const char *p = s; *p; p++)
        if (!plain(*p) && *p != '/') return false;
    return hub_path_good(s);
}

static bool take(char *out, size_t cap, const char *from, size_t n)
{
    if (n == 0 || n >= cap) return false;
    memcpy(out, from, n);
    out[n] = 0;
    return true;
}

/* The length of the first of the beginnings that s has; 0: none. */
static size_t begins_with(const char *s, const char *const *beginning)
{
    for (; *beginning; beginning++)
        if (strncasecmp(s, *beginning, strlen(*beginning)) == 0) return strlen(*beginning);
    return 0;
}

size_t hub_prefix(const char *text)
{
    static const char *const schemes[] = { "https://", "http://", NULL },
                      *const hosts[] = { "hf.co/", "huggingface.co/", "www.huggingface.co/", NULL };
    if (strncmp(text, "hf:", 3) == 0) return 3;
    const size_t scheme = begins_with(text, schemes), host = begins_with(text + scheme, hosts);
    return host ? scheme + host : 0;
}

/* Takes what is in front of the next one of these characters, its escapes (%20) resolved. */
static bool take_part(char *out, size_t cap, const char **s, const char *ends)
{
    const char *end = *s + strcspn(*s, ends);
    size_t n = 0;
    for (const char *p = *s; p < end; p++) {
        const int high = *p == '%' ? hex_value(p[1]) : 0, low = *p == '%' && high >= 0 ? hex_value(p[2]) : 0;
        if (high < 0 || low < 0 || n + 1 >= cap) return false;
        out[n++] = *p == '%' ? (char) (16 * high + low) : *p;
        if (*p == '%') p += 2;
        if (!out[n - 1]) return false;
    }
    out[n] = 0;
    *s = *end == '/' ? end + 1 : end;
    return true;
}

/* The pages of the hub that show a revision or a folder of it (tree), or a file (blob, resolve), behind ORG/NAME. A
 * folder is taken as a type, which it is mostly called by. */
static bool read_page(HubName *out, const char *page)
{
    char kind[16], first[sizeof out->quant];
    int32_t part, parts;
    if (!take_part(kind, sizeof kind, &page, "/?#")) return false;
    const bool tree = strcmp(kind, "tree") == 0, file = strcmp(kind, "blob") == 0 || strcmp(kind, "resolve") == 0;
    if (!take_part(out->revision, sizeof out->revision, &page, tree ? ":/?#" : "/?#")) return false;
    const bool typed = *page == ':';
    page += typed;
    if (!take_part(out->quant, sizeof out->quant, &page, "?#")) return false;
    const size_t n = strlen(out->quant);
    if (tree && !typed && n && out->quant[n - 1] == '/') out->quant[n - 1] = 0;
    if (!(file ? has_suffix(out->quant, ".gguf") : tree) || !revision_good(out->revision)) return false;
    if ((n || typed) && !hub_path_good(out->quant)) return false;
    if (strcmp(out->revision, "main") == 0) out->revision[0] = 0;
    if (hub_split(out->quant, &part, &parts) && hub_split_name(first, sizeof first, out->quant, 1))
        strcpy(out->quant, first);
    return true;
}

Status hub_name_read(HubName *out, const char *text, Error *err)
{
    const size_t prefix = hub_prefix(text);
    const char *s = text + prefix, *colon = strchr(s, ':'), *end = colon ? colon : s + strlen(s),
               *at = memchr(s, '@', (size_t) (end - s));
    const bool address = prefix > strlen("hf:");
    const size_t owner = strcspn(s, "/"), repo = s[owner] ? owner + 1 + strcspn(s + owner + 1, "/:@") : owner;
    *out = (HubName) { 0 };
    if (address && s[repo] == '/' && s[repo + 1]) {
        if (take(out->repo, sizeof out->repo, s, repo) && repo_good(out->repo) && read_page(out, s + repo + 1))
            return ST_OK;
        return fail(err, ST_ARG, "'%.200s': expected the address of a repository (ORG/NAME), of its files "
                    "(ORG/NAME/tree/REVISION) or of one (ORG/NAME/blob/REVISION/FILE.gguf)", text);
    }
    if (address && end > s && end[-1] == '/') end--;                     /* some addresses end so */
    if (!take(out->repo, sizeof out->repo, s, (size_t) ((at ? at : end) - s)) || !repo_good(out->repo))
        return fail(err, ST_ARG, "'%.200s': expected ORG/NAME[@REVISION][:QUANT], as in unsloth/Qwen3-8B-GGUF:Q4_K_M",
                    text);
    if (at && (!take(out->revision, sizeof out->revision, at + 1, (size_t) (end - at - 1)) ||
               !revision_good(out->revision)))
        return fail(err, ST_ARG, "'%.200s': the revision behind @ is a branch, a tag or a commit", text);
    if (colon && (!take(out->quant, sizeof out->quant, colon + 1, strlen(colon + 1)) || !hub_path_good(out->quant)))
        return fail(err, ST_ARG, "'%.200s': expected a type such as Q4_K_M or a file's name behind the colon", text);
    return ST_OK;
}

bool hub_path_good(const char *path)
{
    size_t n = strlen(path);
    if (n == 0 || n > 512) return false;
    for (const char *p = path; *p; p++)
        if ((unsigned char) *p < 32 || *p == 127 || *p == '\\' ||
            (*p == '\xc2' && (unsigned char) p[1] >= 0x80 && (unsigned char) p[1] < 0xa0)) return false;  /* controls */
    for (const char *p = path;; p++) {
        size_t part = strcspn(p, "/");
        if (part == 0 || part > 255 || (part <= 2 && strspn(p, ".") >= part)) return false;
        p += part;
        if (!*p) return true;
    }
}

bool hub_commit_good(const char *commit)
{
    size_t n = strspn(commit, "0123456789abcdef");
    return !commit[n] && (n == 40 || n == 64);
}

bool hub_etag_good(const char *etag)
{
    size_t n = 0;
    while (isalnum((unsigned char) etag[n]) || etag[n] == '-') n++;
    return !etag[n] && n >= 8 && n <= 128;
}

bool hub_escape(char *out, size_t cap, const char *s, bool slash)
{
    size_t n = 0;
    for (; *s; s++) {
        if (n + 4 > cap) return false;
        if (plain(*s) || *s == '~' || (*s == '/' && !slash)) out[n++] = *s;
        else n += (size_t) snprintf(out + n, 4, "%%%02X", (unsigned char) *s);
    }
    if (n >= cap) return false;
    out[n] = 0;
    return true;
}

/* ---- what file names say ---- */

/* Whether word stands in s between separators, in any case. */
static bool has_word(const char *s, const char *word, const char *separators)
{
    size_t n = strlen(word);
    for (const char *p = s; *p; p++)
        if (strncasecmp(p, word, n) == 0 && (p == s || strchr(separators, p[-1])) &&
            (!p[n] || strchr(separators, p[n])))
            return true;
    return false;
}

HubKind hub_kind(const char *path)
{
    static const char *const drafters[] = { "dflash", "dflash2", "draft", "drafter", "eagle", "eagle3", "mtp",
                                            "assistant" };
    const char *name = base_name(path);
    if (!has_suffix(name, ".gguf") || strcasestr(name, "mmproj") || strcasestr(name, "imatrix")) return HUB_OTHER;
    for (size_t i = 0; i < sizeof drafters / sizeof *drafters; i++)
        if (has_word(name, drafters[i], "-._")) return HUB_DRAFTER;
    return HUB_TARGET;
}

/* Where the -00001-of-00002 of "x-00001-of-00002.gguf" starts, or where .gguf does. */
static size_t stem_length(const char *name, int32_t *part, int32_t *parts)
{
    size_t n = strlen(name);
    int end = 0;
    *part = *parts = 1;
    if (!has_suffix(name, ".gguf")) return n;
    n -= 5;
    if (n > 15 && sscanf(name + n - 15, "-%5d-of-%5d%n", part, parts, &end) == 2 && end == 15 && *part >= 1 &&
        *parts >= *part) return n - 15;
    *part = *parts = 1;
    return n;
}

bool hub_split(const char *path, int32_t *part, int32_t *parts)
{
    const char *name = base_name(path);
    return has_suffix(name, ".gguf") && stem_length(name, part, parts) + 5 < strlen(name);
}

bool hub_split_name(char *out, size_t cap, const char *path, int32_t part)
{
    int32_t old, parts;
    if (!hub_split(path, &old, &parts) || strlen(path) >= cap) return false;
    int stem = (int) strlen(path) - 20;
    return snprintf(out, cap, "%.*s-%05d-of-%05d.gguf", stem, path, part, parts) < (int) cap;
}

static bool is_type(const char *s, size_t n)
{
    static const char *const whole[] = { "F32", "F16", "BF16", "FP16", "F64" };
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++)
        if (n == strlen(whole[i]) && strncasecmp(s, whole[i], n) == 0) return true;
    if (n >= 5 && (strncasecmp(s, "MXFP4", 5) == 0 || strncasecmp(s, "NVFP4", 5) == 0)) return true;
    size_t letters = strncasecmp(s, "IQ", 2) == 0 || strncasecmp(s, "TQ", 2) == 0 ? 2 : (s[0] | 32) == 'q' ? 1 : 0;
    return letters > 0 && n > letters + 1 && isdigit((unsigned char) s[letters]) && s[letters + 1] == '_';
}

void hub_quant(char out[HUB_QUANT], const char *path)
{
    const char *name = base_name(path);
    int32_t part, parts;
    size_t end = stem_length(name, &part, &parts);
    out[0] = 0;
    while (end > 0 && !out[0]) {                   /* from the last word to the first */
        size_t from = end;
        while (from > 0 && !strchr("-.", name[from - 1])) from--;
        if (is_type(name + from, end - from)) {
            bool ud = from >= 3 && strncasecmp(name + from - 3, "UD-", 3) == 0;
            snprintf(out, HUB_QUANT, "%s%.*s", ud ? "UD-" : "", (int) (end - from), name + from);
        }
        end = from > 0 ? from - 1 : 0;
    }
    for (char *p = out; *p; p++) *p = (char) toupper((unsigned char) *p);
}

static int32_t rank_of_default(const char *quant, HubKind wish)
{
    static const char *const orders[2][3] = { { "Q4_K_M", "UD-Q4_K_M", "Q4_0" }, { "Q8_0", "BF16", "F16" } };
    const char *const *order = orders[wish == HUB_DRAFTER];
    for (int32_t i = 0; i < 3; i++)
        if (strcmp(quant, order[i]) == 0) return i;
    return 3;
}

int32_t hub_rank(const char *path, const char *quant, HubKind wish)
{
    char own[HUB_QUANT];
    int32_t part, parts, rank;
    HubKind kind = hub_kind(path);
    if (hub_split(path, &part, &parts) && part != 1) return -1;
    if (has_suffix(quant, ".gguf"))
        return strcasecmp(path, quant) == 0 || strcasecmp(base_name(path), quant) == 0 ? 0 : -1;
    if (kind == HUB_OTHER) return -1;
    hub_quant(own, path);
    if (!*quant) rank = rank_of_default(own, wish);
    else if (strcasecmp(own, quant) == 0) rank = 0;
    else if (has_word(path, quant, "-./")) rank = 1;
    else return -1;
    return rank + (kind == wish ? 0 : 10);
}
