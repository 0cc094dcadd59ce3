#include "engine/sized.h"

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* SIZE_MOST: no option struct will be larger; a larger size was never initialised. */
enum { SIZE_MOST = 4096 };

#define SIZED(var, type, init, ...) const SizedType var = { #type, init, (const size_t[]) { __VA_ARGS__, 0 } }
SIZED(sized_options, rt_options, "RT_OPTIONS_INIT", offsetof(rt_options, gpu_layers),
      offsetof(rt_options, expert_ram), offsetof(rt_options, card_layers), sizeof(rt_options));
SIZED(sized_session_options, rt_session_options, "RT_SESSION_OPTIONS_INIT", sizeof(rt_session_options));
SIZED(sized_step_options, rt_step_options, "RT_STEP_OPTIONS_INIT", sizeof(rt_step_options));
SIZED(sized_sampling, rt_sampling, "RT_SAMPLING_INIT", sizeof(rt_sampling));
SIZED(sized_diffusion, rt_diffusion, "RT_DIFFUSION_INIT", sizeof(rt_diffusion));
SIZED(sized_chat_request, rt_chat_request, "RT_CHAT_REQUEST_INIT", sizeof(rt_chat_request));
SIZED(sized_reply_options, rt_reply_options, "RT_REPLY_OPTIONS_INIT", sizeof(rt_reply_options));

#define ENDS_WITH(type, last) \
    _Static_assert(sizeof(void *) != 8 || offsetof(type, last) + sizeof((type *) 0)->last == sizeof(type), #type)
ENDS_WITH(rt_options, card_layers);
ENDS_WITH(rt_session_options, ngram);
ENDS_WITH(rt_step_options, hooks);
ENDS_WITH(rt_sampling, bias);
ENDS_WITH(rt_diffusion, ud);
ENDS_WITH(rt_chat_request, complete);
ENDS_WITH(rt_reply_options, one_call);

static size_t newest(const SizedType *t)
{
    size_t i = 0;
    while (t->sizes[i + 1]) i++;
    return t->sizes[i];
}

static bool had(const SizedType *t, size_t size)
{
    for (size_t i = 0; t->sizes[i]; i++)
        if (t->sizes[i] == size) return true;
    return false;
}

static bool all_zero(const uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (p[i]) return false;
    return true;
}

Status sized_read(void *out, const SizedType *t, const void *in, Error *err)
{
    const size_t known = newest(t);
    size_t size = known;
    memset(out, 0, known);
    if (in) memcpy(&size, in, sizeof size);
    if (!had(t, size) && (size < known || size > SIZE_MOST || size % sizeof size != 0))
        return fail(err, ST_ARG, "%s.size: %zu, expected %zu (use %s)", t->name, size, known, t->init);
    if (size > known && !all_zero((const uint8_t *) in + known, size - known))
        return fail(err, ST_ARG, "%s.size: %zu, but this library knows %zu bytes and a field behind them is set, "
                    "expected 0: it needs a newer library", t->name, size, known);
    if (in) memcpy(out, in, size < known ? size : known);
    memcpy(out, &known, sizeof known);
    return ST_OK;
}

void sized_write(void *out, size_t room, const void *in, size_t size)
{
    memcpy(out, in, room < size ? room : size);
    if (room > size) memset((uint8_t *) out + size, 0, room - size);
}
