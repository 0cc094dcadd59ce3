#include "text/chat_builtin.h"

#include <stddef.h>
#include <string.h>

/* Tool calls and results are shown as JSON in the tags of the Qwen family, the most common form. */
static const char CHATML[] =
    "{%- set first = namespace(text='') %}"
    "{%- if messages[0].role == 'system' %}{% set first.text = messages[0].content %}{% endif %}"
    "{%- if first.text or tools %}{{ '<|im_start|>system\\n' + first.text }}"
    "{%- if tools %}{{ '\\n\\n# Tools\\n\\nCall a function by writing its name and arguments as JSON:\\n<tool_call>\\n"
    "{\"name\": NAME, \"arguments\": OBJECT}\\n</tool_call>\\n\\n<tools>' }}"
    "{%- for tool in tools %}{{ '\\n' + tool | tojson }}{% endfor %}{{ '\\n</tools>' }}{% endif %}{{ '<|im_end|>\\n' "
    "}}{% endif %}"
    "{%- for m in messages %}"
    "{%- if m.role == 'tool' %}"
    "{%- if loop.first or loop.previtem.role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}"
    "{{- '\\n<tool_response>\\n' + m.content + '\\n</tool_response>' }}"
    "{%- if loop.last or loop.nextitem.role != 'tool' %}{{ '<|im_end|>\\n' }}{% endif %}"
    "{%- elif m.role != 'system' or not loop.first %}"
    "{{- '<|im_start|>' + m.role + '\\n' + m.content }}"
    "{%- for call in m.tool_calls or [] %}{% set f = call.function or call %}"
    "{{- '\\n' if m.content or not loop.first else '' }}{{ '<tool_call>\\n{\"name\": \"' + f.name + '\", "
    "\"arguments\": ' }}"
    "{{- f.arguments if f.arguments is string else f.arguments | tojson }}{{ '}\\n</tool_call>' }}{% endfor %}"
    "{{- '<|im_end|>\\n' }}{% endif %}{% endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

static const char LLAMA3[] =
    "{{- bos_token }}"
    "{%- for m in messages %}"
    "{{- '<|start_header_id|>' + ('ipython' if m.role == 'tool' else m.role) + '<|end_header_id|>\\n\\n' }}"
    "{%- if m.content %}{{ m.content | trim }}{% endif %}"
    "{%- for call in m.tool_calls or [] %}{% set f = call.function or call %}"
    "{{- '{\"name\": \"' + f.name + '\", \"parameters\": ' }}{{ f.arguments if f.arguments is string else f.arguments "
    "| tojson }}{{ '}' }}{% endfor %}"
    "{%- if loop.first and tools %}{{ '\\n\\nFunctions that can be called by answering with {\"name\": NAME, "
    "\"parameters\": OBJECT}:' }}"
    "{%- for tool in tools %}{{ '\\n' + tool | tojson }}{% endfor %}{% endif %}"
    "{{- '<|eot_id|>' }}{% endfor %}"
    "{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}";

/* Without system turn and tools. */
static const char GEMMA_TURN[] =
    "{{- bos_token }}"
    "{%- for m in messages %}"
    "{%- if m.role == 'system' %}{{ raise_exception('This model knows no system message.') }}{% endif %}"
    "{{- '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\\n' + "
    "m.content | trim + '<end_of_turn>\\n' }}{% endfor %}"
    "{%- if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}";

/* Written from the published form: a model's turn holds its calls, their results and what it says then; thoughts are
 * left out. Nothing is written for a model that is not to think. */
static const char GEMMA4[] =
    "{%- macro value(v) %}"
    "{%- if v is string %}{{ '<|\"|>' + v + '<|\"|>' }}"
    "{%- elif v is mapping %}{{ '{' }}{% for k, x in v | dictsort %}{{ ',' if not loop.first }}{{ k + ':' }}"
    "{{ value(x) }}{% endfor %}{{ '}' }}"
    "{%- elif v is sequence %}{{ '[' }}{% for x in v %}{{ ',' if not loop.first }}{{ value(x) }}{% endfor %}{{ ']' }}"
    "{%- else %}{{ v | tojson }}{% endif %}"
    "{%- endmacro %}"
    "{%- macro schema(s) %}{%- set ns = namespace(between='{') %}"
    "{%- for k, v in s | dictsort if k in ['description', 'enum', 'items', 'nullable', 'properties', 'required', "
    "'type'] %}{{ ns.between + k + ':' }}{% set ns.between = ',' %}"
    "{%- if k == 'type' %}{{ value(v | upper if v is string else v | map('upper') | list) }}"
    "{%- elif k == 'properties' %}{{ '{' }}{% for name, p in v | dictsort %}{{ ',' if not loop.first }}{{ name + ':' }}"
    "{{ schema(p) }}{% endfor %}{{ '}' }}"
    "{%- elif k == 'items' %}{{ schema(v) }}{% else %}{{ value(v) }}{% endif %}"
    "{%- endfor %}{{ '}' if ns.between == ',' else '{}' }}{% endmacro %}"
    "{{- bos_token }}"
    "{%- set given = messages[0].role == 'system' %}"
    "{%- if given or tools or enable_thinking %}{{ '<|turn>system\n' + ('<|think|>\n' if enable_thinking else '') }}"
    "{{- messages[0].content | trim if given else '' }}"
    "{%- for tool in tools or [] %}{% set f = tool.function or tool %}"
    "{{- '<|tool>declaration:' + f.name + '{description:' }}{{ value(f.description or '') }}"
    "{%- if f.parameters %}{{ ',parameters:' }}{{ schema(f.parameters) }}{% endif %}{{ '}<tool|>' }}{% endfor %}"
    "{{- '<turn|>\n' }}{% endif %}"
    "{%- set turn = namespace(open=false, calls=[]) %}"
    "{%- for m in messages %}"
    "{%- if m.role == 'tool' %}{% if turn.open %}"
    "{%- set from = namespace(name=m.name or 'unknown') %}"
    "{%- for call in turn.calls if call.id and call.id == m.tool_call_id %}{% set from.name = (call.function or "
    "call).name %}{% endfor %}"
    "{{- '<|tool_response>response:' + from.name + '{value:' }}{{ value(m.content) }}{{ '}<tool_response|>' }}"
    "{% endif %}"
    "{%- elif m.role != 'system' or not loop.first %}"
    "{%- if not (turn.open and m.role == 'assistant') %}{{ '<turn|>\n' if turn.open else '' }}"
    "{{- '<|turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' }}{% endif %}"
    "{{- m.content | trim }}"
    "{%- set turn.calls = m.tool_calls or [] %}{% set turn.open = turn.calls != [] %}"
    "{%- for call in turn.calls %}{% set f = call.function or call %}"
    "{{- '<|tool_call>call:' + f.name }}{{ value(f.arguments) }}{{ '<tool_call|>' }}{% endfor %}"
    "{{- '' if turn.open else '<turn|>\n' }}{% endif %}{% endfor %}"
    "{%- if add_generation_prompt and not turn.open %}{{ '<|turn>model\n' }}{% endif %}";

/* Where no system turn opens the conversation, it opens with the one of the released template; an empty one and no
 * tools: none. */
static const char LAGUNA[] =
    "{{- '\\u3008|EOS|\\u3009' }}"
    "{%- set given = messages[0].role == 'system' %}"
    "{%- set system = messages[0].content if given else 'You are a helpful, conversationally-fluent assistant made by "
    "Poolside. You are here to be helpful to users through natural language conversations.' %}"
    "{%- if system.strip() or tools %}{{ '<system>\\n' + system }}"
    "{%- if tools %}{{ '\\n\\n### Tools\\n\\nCall a function by writing its name and arguments:\\n<tool_call>NAME\\n"
    "<arg_key>KEY</arg_key>\\n<arg_value>VALUE</arg_value>\\n</tool_call>\\n\\n<available_tools>' }}"
    "{%- for tool in tools %}{{ '\\n' + tool | tojson }}{% endfor %}{{ '\\n</available_tools>' }}{% endif %}"
    "{{- '\\n</system>\\n' }}{% endif %}"
    "{%- for m in messages %}"
    "{%- set tag = 'tool_response' if m.role == 'tool' else m.role %}"
    "{%- if m.role == 'assistant' %}{{ '<assistant>\\n</think>\\n' + m.content + '\\n' }}"
    "{%- for call in m.tool_calls or [] %}{% set f = call.function or call %}"
    "{{- '<tool_call>' + f.name + '\\n' }}{% for k, v in f.arguments.items() %}"
    "{{- '<arg_key>' + k + '</arg_key>\\n<arg_value>' }}{{ v if v is string else v | tojson "
    "}}{{ '</arg_value>\\n' }}{% endfor %}"
    "{{- '</tool_call>\\n' }}{% endfor %}{{ '</assistant>\\n' }}"
    "{%- elif not (given and loop.first) %}{{ '<' + tag + '>\\n' + m.content + '\\n</' + tag + '>\\n' }}{% endif %}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<assistant>\\n' + ('<think>' if enable_thinking else '</think>') }}{% endif %}";

const ChatBuiltin *chat_builtin(const char *arch, bool (*has_token)(void *ud, const char *text), void *ud)
{
    static const ChatBuiltin ALL[] = {
        { "laguna", "</assistant>", "laguna", LAGUNA }, { "chatml", "<|im_start|>", NULL, CHATML },
        { "llama3", "<|start_header_id|>", NULL, LLAMA3 }, { "gemma-turn", "<start_of_turn>", NULL, GEMMA_TURN },
        { "gemma4", "<|turn>", NULL, GEMMA4 },
    };
    for (size_t i = 0; i < sizeof ALL / sizeof *ALL; i++)
        if ((!ALL[i].arch || strstr(arch, ALL[i].arch)) && has_token(ud, ALL[i].token)) return &ALL[i];
    return NULL;
}
