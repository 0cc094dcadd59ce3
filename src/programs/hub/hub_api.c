#include "programs/hub/hub_api.h"

#include <stdlib.h>
#include <string.h>

#include "base/grow.h"
#include "base/json.h"
#include "programs/program.h"

enum { ANSWER_MAX = 16 << 20, PAGES_MAX = 100, FILES_MAX = 100000 };

static const char *revision_of(const HubName *n) { return n->revision[0] ? n->revision : "main"; }

/* The hub answers 401 for a repository that does not exist when no token was sent, as it may be a private one. */
bool hub_refused(const HubEnv *e, const HubName *name, const HubReply *reply, const char *file)
{
    const char *repo = name->repo;
    bool denied = reply->status == 401 || reply->status == 403;
    if (denied && strcmp(reply->error, "GatedRepo") == 0)
        complain(e->o, "%s: gated, its owner wants terms accepted: open %s/%s, then %s", repo, e->endpoint, repo,
                 e->token[0] ? "try again (the token that was sent has no access yet)" :
                 "give a token of that account in HF_TOKEN or the file $HF_HOME/token");
    else if (strcmp(reply->error, "RevisionNotFound") == 0)
        complain(e->o, "%s: has no revision '%s', expected a branch, a tag or a commit", repo, revision_of(name));
    else if (strcmp(reply->error, "EntryNotFound") == 0 || (reply->status == 404 && file))
        complain(e->o, "%s: has no file %s any more", repo, file ? file : "of that name");
    else if (reply->status == 404 || strcmp(reply->error, "RepoNotFound") == 0)
        complain(e->o, "%s: there is no such repository at %s%s", repo, e->endpoint, e->token[0] ?
                 " that this token may read" : "; for a private one give a token in HF_TOKEN");
    else if (denied && e->token[0])
        complain(e->o, "%s: the token is refused (%ld): check HF_TOKEN and the file $HF_HOME/token, and %s/%s", repo,
                 reply->status, e->endpoint, repo);
    else if (denied)
        complain(e->o, "%s: there is no such repository at %s, or it is private: check the name, or give a token in "
                 "HF_TOKEN", repo, e->endpoint);
    else
        complain(e->o, "%s: %s answers %ld", repo, e->endpoint, reply->status);
    return false;
}

/* endpoint/api/models/REPO/WHAT/REVISION */
static bool api_url(char url[HUB_URL], const HubEnv *e, const HubName *n, const char *what, const char *revision)
{
    char escaped[400];
    return hub_escape(escaped, sizeof escaped, revision, true) &&
           snprintf(url, HUB_URL, "%s/api/models/%s/%s/%s", e->endpoint, n->repo, what, escaped) < HUB_URL;
}

static bool ask_json(json_t **out, HubReply *reply, const HubEnv *e, const HubName *name, char url[HUB_URL])
{
    Bytes body = { 0 };
    Error err = { 0 };
    HubAsk how = { .most = ANSWER_MAX };
    bool good = hub_ask(reply, &body, e, url, &how);
    *out = NULL;
    if (good && reply->status != 200) {
        good = hub_refused(e, name, reply, NULL);
    } else if (good && json_read(out, body.at ? body.at : "", body.n, name->repo, &err) != ST_OK) {
        good = complain(e->o, "%s: the hub's answer cannot be read: %s", name->repo, err.text) == 0;
    }
    bytes_free(&body);
    return good;
}

static bool ask_commit(HubRepo *r, const HubEnv *e)
{
    char url[HUB_URL];
    HubReply reply;
    json_t *j;
    if (!api_url(url, e, &r->name, "revision", revision_of(&r->name)) || !ask_json(&j, &reply, e, &r->name, url))
        return false;
    const char *sha = json_string_value(json_object_get(j, "sha"));
    bool good = sha && hub_commit_good(sha);
    if (good) strcpy(r->commit, sha);
    else complain(e->o, "%s: the hub names no commit (sha) of it", r->name.repo);
    json_decref(j);
    return good;
}

/* Adds a file; names that are no plain paths are passed over. */
static bool add_file(HubRepo *r, const json_t *j)
{
    const char *type = json_string_value(json_object_get(j, "type")),
               *path = json_string_value(json_object_get(j, "path"));
    const json_t *lfs = json_object_get(j, "lfs"), *size = json_object_get(lfs ? lfs : j, "size");
    const char *oid = json_string_value(json_object_get(lfs, "oid"));
    json_int_t bytes = json_integer_value(size);
    if (!type || strcmp(type, "file") != 0 || !path || !hub_path_good(path) || !json_is_integer(size) || bytes < 0)
        return true;
    HubFile f = { .path = strdup(path), .bytes = (uint64_t) bytes };
    if (oid && strlen(oid) == 64 && hub_commit_good(oid)) strcpy(f.sha256, oid);
    if (!f.path || r->n >= FILES_MAX || !grow_to(&r->at, &r->cap, r->n + 1, 64, sizeof *r->at)) {
        free(f.path);
        return false;
    }
    r->at[r->n++] = f;
    return true;
}

static int by_path(const void *a, const void *b)
{
    const HubFile *x = a, *y = b;
    return strcmp(x->path, y->path);
}

static bool list_files(HubRepo *r, const HubEnv *e)
{
    char url[HUB_URL];
    HubReply reply = { 0 };
    if (!api_url(url, e, &r->name, "tree", r->commit)) return false;
    strcat(url, "?recursive=true");
    for (int32_t page = 0; page < PAGES_MAX; page++) {
        json_t *list, *item;
        size_t i;
        bool good = true;
        if (!ask_json(&list, &reply, e, &r->name, url)) return false;
        json_array_foreach(list, i, item) good = good && add_file(r, item);
        json_decref(list);
        if (!good) return complain(e->o, "%s: its list of files is too long", r->name.repo) == 0;
        if (!reply.next[0]) break;
        strcpy(url, reply.next);
    }
    if (r->n > 0) qsort(r->at, r->n, sizeof *r->at, by_path);
    return true;
}

bool hub_repo_list(HubRepo *out, const HubEnv *e, const HubName *name)
{
    *out = (HubRepo) { .name = *name };
    return hub_online(e, name->repo) && ask_commit(out, e) && list_files(out, e);
}

void hub_repo_free(HubRepo *r)
{
    for (size_t i = 0; i < r->n; i++) free(r->at[i].path);
    free(r->at);
    *r = (HubRepo) { 0 };
}

bool hub_resolve(HubPlace *out, const HubEnv *e, const HubRepo *repo, const HubFile *file)
{
    char escaped[1600];
    HubReply reply;
    const HubAsk how = { .head = true, .stay = true };
    *out = (HubPlace) { 0 };
    if (!hub_escape(escaped, sizeof escaped, file->path, false) ||
        snprintf(out->url, HUB_URL, "%s/%s/resolve/%s/%s", e->endpoint, repo->name.repo, repo->commit, escaped) >=
        HUB_URL) return complain(e->o, "%s: its name is too long", file->path) == 0;
    if (!hub_ask(&reply, NULL, e, out->url, &how)) return false;
    if (reply.status != 200 && (reply.status < 300 || reply.status > 399))
        return hub_refused(e, &repo->name, &reply, file->path);
    int64_t bytes = reply.linked_size >= 0 ? reply.linked_size : reply.status == 200 ? reply.length : -1;
    strcpy(out->etag, reply.linked_etag[0] ? reply.linked_etag : reply.etag);
    out->bytes = bytes >= 0 ? (uint64_t) bytes : file->bytes;
    if (hub_etag_good(out->etag) && out->bytes == file->bytes) return true;
    return complain(e->o, "%s: the hub says %llu bytes under the tag '%.64s', expected %llu bytes and a plain tag",
                    file->path, (unsigned long long) out->bytes, out->etag, (unsigned long long) file->bytes) == 0;
}
