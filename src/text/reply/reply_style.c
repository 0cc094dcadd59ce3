/* Detects how a model writes: from the template, the most reliable source, then from the architecture and the
 * vocabulary. */
#include <string.h>

#include "text/reply/reply_impl.h"

static const struct { const char *name; CallFormat format; } NAMES[] = {
    { "none", CALLS_NONE }, { "qwen3", CALLS_QWEN3 }, { "qwen35", CALLS_QWEN35 }, { "laguna", CALLS_LAGUNA },
    { "gemma4", CALLS_GEMMA4 },
    { "llama3", CALLS_LLAMA3 }, { "json", CALLS_JSON }, { "hermes", CALLS_QWEN3 },
};
enum { N_NAMES = sizeof NAMES / sizeof *NAMES };

bool call_format_named(CallFormat *out, const char *name)
{
    for (size_t i = 0; i < N_NAMES; i++)
        if (strcmp(NAMES[i].name, name) == 0) {
            *out = NAMES[i].format;
            return true;
        }
    return false;
}

const char *call_format_name(CallFormat f)
{
    for (size_t i = 0; i < N_NAMES; i++)
        if (NAMES[i].format == f) return NAMES[i].name;
    return "none";
}

static bool has(const char *source, size_t n, const char *text)
{
    return source && memmem(source, n, text, strlen(text));
}

static CallFormat by_template(const char *s, size_t n)
{
    if (has(s, n, "<|tool_call>")) return CALLS_GEMMA4;
    if (has(s, n, "<arg_key>")) return CALLS_LAGUNA;
    if (has(s, n, "<function=") && has(s, n, "<parameter=")) return CALLS_QWEN35;
    if (has(s, n, "<tool_call>")) return CALLS_QWEN3;
    if (has(s, n, "<|python_tag|>") || (has(s, n, "<|start_header_id|>") && has(s, n, "\"parameters\"")))
        return CALLS_LLAMA3;
    return CALLS_NONE;
}

static CallFormat by_arch(const char *arch, TokenOf token, void *ud)
{
    static const struct { const char *part; CallFormat format; } PARTS[] = {
        { "qwen35", CALLS_QWEN35 }, { "qwen3next", CALLS_QWEN35 }, { "qwen", CALLS_QWEN3 }, { "laguna", CALLS_LAGUNA },
        { "gemma4", CALLS_GEMMA4 }, { "diffusion-gemma", CALLS_GEMMA4 }, { "diffusion_gemma", CALLS_GEMMA4 },
    };
    for (size_t i = 0; i < sizeof PARTS / sizeof *PARTS; i++)
        if (strstr(arch, PARTS[i].part)) return PARTS[i].format;
    if (!token) return CALLS_NONE;
    if (token(ud, "<|tool_call>") >= 0) return CALLS_GEMMA4;
    if (token(ud, "<|python_tag|>") >= 0 || token(ud, "<|start_header_id|>") >= 0) return CALLS_LLAMA3;
    return token(ud, "<tool_call>") >= 0 || token(ud, "<|im_start|>") >= 0 ? CALLS_QWEN3 : CALLS_NONE;
}

ReplyStyle reply_style(const char *source, size_t n, const char *arch, TokenOf token, void *ud)
{
    ReplyStyle s = { by_template(source, n), THINK_NONE };
    if (s.calls == CALLS_NONE) s.calls = by_arch(arch, token, ud);
    if (s.calls == CALLS_NONE) s.calls = CALLS_JSON;
    bool channel = has(source, n, "<|channel>") || (token && token(ud, "<|channel>") >= 0);
    bool tags = has(source, n, "<think>") || has(source, n, "</think>") || (token && token(ud, "</think>") >= 0);
    if (channel || (s.calls == CALLS_GEMMA4 && !tags)) s.think = THINK_CHANNEL;
    else if (tags) s.think = THINK_TAGS;
    return s;
}

void style_marks(ReplyStyle s, const char *mark[N_MARKS])
{
    static const char *const ALL[N_MARKS] = {
        [S_CALL - S_QUOTE] = "<tool_call>", [S_CALL_END - S_QUOTE] = "</tool_call>",
        [S_FUNCTION - S_QUOTE] = "<function=",
        [S_FUNCTION_END - S_QUOTE] = "</function>", [S_PARAM - S_QUOTE] = "<parameter=",
        [S_PARAM_END - S_QUOTE] = "</parameter>",
        [S_CODE - S_QUOTE] = "<tool_code>", [S_CODE_END - S_QUOTE] = "</tool_code>",
    };
    memcpy(mark, ALL, sizeof ALL);
    if (s.think == THINK_TAGS) {
        mark[S_THINK - S_QUOTE] = "<think>";
        mark[S_THINK_END - S_QUOTE] = "</think>";
    } else if (s.think == THINK_CHANNEL) {
        mark[S_THINK - S_QUOTE] = "<|channel>";
        mark[S_THINK_END - S_QUOTE] = "<channel|>";
        mark[S_CHANNEL - S_QUOTE] = "thought\n";
    }
    switch (s.calls) {
    case CALLS_LAGUNA:
        mark[S_KEY - S_QUOTE] = "<arg_key>";
        mark[S_KEY_END - S_QUOTE] = "</arg_key>";
        mark[S_VALUE - S_QUOTE] = "<arg_value>";
        mark[S_VALUE_END - S_QUOTE] = "</arg_value>";
        break;
    case CALLS_GEMMA4:
        mark[S_CALL - S_QUOTE] = "<|tool_call>";
        mark[S_CALL_END - S_QUOTE] = "<tool_call|>";
        mark[S_QUOTE - S_QUOTE] = "<|\"|>";
        mark[S_TURN - S_QUOTE] = "<|tool_response>";
        mark[S_NAMED - S_QUOTE] = "call:";
        break;
    case CALLS_LLAMA3:
        mark[S_PYTHON - S_QUOTE] = "<|python_tag|>";
        mark[S_CALL - S_QUOTE] = mark[S_CALL_END - S_QUOTE] = NULL;
        break;
    case CALLS_JSON:
        mark[S_CALL - S_QUOTE] = mark[S_CALL_END - S_QUOTE] = NULL;
        break;
    case CALLS_NONE:
        for (int k = 0; k < N_MARKS; k++)
            if (k != S_THINK - S_QUOTE && k != S_THINK_END - S_QUOTE && k != S_CHANNEL - S_QUOTE) mark[k] = NULL;
        break;
    default: break;
    }
}

const char *reply_call_mark(ReplyStyle s)
{
    const char *mark[N_MARKS];
    style_marks(s, mark);
    return mark[S_CALL - S_QUOTE];
}

const char *reply_think_open(ReplyStyle s)
{
    static const char *const OPEN[] = { [THINK_NONE] = NULL, [THINK_TAGS] = "<think>\n",
                                        [THINK_CHANNEL] = "<|channel>thought\n" };
    return OPEN[s.think];
}
