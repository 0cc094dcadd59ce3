#include "programs/hub/hub_env.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "programs/program.h"

static const char *variable(const char *name)
{
    const char *s = getenv(name);
    return s && *s ? s : NULL;
}

static bool put(char out[HUB_PATH], const char *folder, const char *name)
{
    return snprintf(out, HUB_PATH, "%s%s%s", folder, *name ? "/" : "", name) < HUB_PATH;
}

/* HF_HOME, or where it is without that variable. */
static bool put_home(char out[HUB_PATH], const char *name)
{
    char folder[HUB_PATH];
    const char *home = variable("HF_HOME"), *cache = variable("XDG_CACHE_HOME"), *user = variable("HOME");
    if (home) return put(out, home, name);
    if (cache) return put(folder, cache, "huggingface") && put(out, folder, name);
    return user && put(folder, user, ".cache/huggingface") && put(out, folder, name);
}

bool hub_cache_folder(char out[HUB_PATH])
{
    const char *named = variable("HF_HUB_CACHE");
    if (!named) named = variable("HUGGINGFACE_HUB_CACHE");
    return named ? put(out, named, "") : put_home(out, "hub");
}

/* Without blanks around it. A token with a line break inside could add headers of its own. */
static bool take_token(HubEnv *e, const char *s, const char *where)
{
    s += strspn(s, " \t\r\n");
    size_t n = strcspn(s, " \t\r\n");
    if (s[n + strspn(s + n, " \t\r\n")] || n >= sizeof e->token)
        return complain(e->o, "%s: expected a token, one word shorter than %zu bytes", where, sizeof e->token) == 0;
    for (size_t i = 0; i < n; i++)
        if (s[i] < 33 || s[i] > 126) return complain(e->o, "%s: a token has only plain characters", where) == 0;
    memcpy(e->token, s, n);
    e->token[n] = 0;
    return true;
}

static bool read_token(HubEnv *e)
{
    char path[HUB_PATH], text[1024];
    const char *token = variable("HF_TOKEN"), *named = variable("HF_TOKEN_PATH");
    if (token) return take_token(e, token, "HF_TOKEN");
    if (named ? !put(path, named, "") : !put_home(path, "token")) return true;
    FILE *f = fopen(path, "re");
    if (!f) return true;                           /* most have none */
    size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[n] = 0;
    return take_token(e, text, path);
}

static bool read_endpoint(HubEnv *e)
{
    const char *s = variable("HF_ENDPOINT");
    if (!s) s = "https://huggingface.co";
    size_t n = strlen(s);
    while (n > 0 && s[n - 1] == '/') n--;
    bool good = (strncasecmp(s, "https://", 8) == 0 || strncasecmp(s, "http://", 7) == 0) && n < sizeof e->endpoint;
    for (size_t i = 0; good && i < n; i++) good = s[i] > 32 && s[i] < 127 && !strchr("@?#", s[i]);
    if (!good)
        return complain(e->o, "HF_ENDPOINT is '%.200s', expected https://HOST or http://HOST", s) == 0;
    memcpy(e->endpoint, s, n);
    e->endpoint[n] = 0;
    return true;
}

static bool means_yes(const char *s)
{
    return s && (strcmp(s, "1") == 0 || strcasecmp(s, "true") == 0 || strcasecmp(s, "on") == 0 ||
                 strcasecmp(s, "yes") == 0);
}

bool hub_env_read(HubEnv *e, const Options *o)
{
    *e = (HubEnv) { .o = o, .offline = o->offline || means_yes(variable("HF_HUB_OFFLINE")) };
    return read_endpoint(e) && read_token(e);
}

bool hub_online(const HubEnv *e, const char *what)
{
    if (!e->offline) return true;
    return complain(e->o, "%s: is not on this machine, and nothing is fetched offline (%s)", what,
                    e->o->offline ? "--offline" : "HF_HUB_OFFLINE") == 0;
}
