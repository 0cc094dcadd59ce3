/* dialect_cases.h - conversations of the four dialects and the expected result (test_dialects.c). JSON with single
 * quotes. */
static const struct { Dialect dialect; const char *body, *messages, *tools; } TALKS[] = {
    /* Chat */
    { DIALECT_CHAT, "{'messages':[{'role':'system','content':'s'},{'role':'user','content':[{'type':'text','text':'a'},"
      "{'type':'text','text':'b'}]}]}", "[{'role':'system','content':'s'},{'role':'user','content':[{'type':'text',"
      "'text':'a'},{'type':'text','text':'b'}]}]", NULL },
    { DIALECT_CHAT, "{'messages':[{'role':'developer','content':'s'},{'role':'user','name':'N',"
      "'content':[{'type':'input_text','text':'a'}]},{'role':'system','content':'later'}]}", "[{'role':'developer',"
      "'content':'s'},{'role':'user','content':'a','name':'N'},{'role':'system','content':'later'}]", NULL },
    { DIALECT_CHAT,
      "{'messages':[{'role':'user','content':'q'},{'role':'assistant','content':null,'reasoning_content':'r',"
      "'tool_calls':[{'id':'c1','type':'function','function':{'name':'f','arguments':'{\\'a\\':1}'}},"
      "{'id':'c2','type':'function','function':{'name':'g','arguments':{'b':[2]}}}]},{'role':'tool',"
      "'tool_call_id':'c2','content':'R2'},{'role':'tool','tool_call_id':'c1','content':'R1'}]}",
      "[{'role':'user','content':'q'},{'role':'assistant','content':'','reasoning_content':'r',"
      "'tool_calls':[{'id':'c1','type':'function','function':{'name':'f','arguments':'{\\'a\\':1}'}},"
      "{'id':'c2','type':'function','function':{'name':'g','arguments':{'b':[2]}}}]},{'role':'tool','content':'R2',"
      "'tool_call_id':'c2','name':'g'},{'role':'tool','content':'R1','tool_call_id':'c1','name':'f'}]", NULL },
    { DIALECT_CHAT, "{'messages':[{'role':'user','content':'q'},{'role':'assistant','function_call':{'name':'f',"
      "'arguments':'{}'}},{'role':'function','name':'f','content':'R'}],'functions':[{'name':'f'}]}",
      "[{'role':'user','content':'q'},{'role':'assistant','content':'','tool_calls':[{'type':'function',"
      "'function':{'name':'f','arguments':'{}'}}]},{'role':'tool','content':'R','name':'f'}]",
      "[{'type':'function','function':{'name':'f'}}]" },
    { DIALECT_CHAT, "{'messages':[{'role':'user','content':'q'},{'role':'assistant','tool_calls':[{'id':'c',"
      "'type':'custom','custom':{'name':'p','input':'x y'}}]},{'role':'assistant','refusal':'no'}],"
      "'tools':[{'type':'custom','custom':{'name':'p','description':'d'}}]}",
      "[{'role':'user','content':'q'},{'role':'assistant','content':'','tool_calls':[{'id':'c','type':'function',"
      "'function':{'name':'p','arguments':{'input':'x y'}}}]},{'role':'assistant','content':'no'}]",
      "[{'type':'function','function':{'name':'p','description':'d','parameters':{'type':'object',"
      "'properties':{'input':{'type':'string'}},'required':['input']}}}]" },
    { DIALECT_CHAT, "{'messages':[{'role':'system','content':'x-anthropic-billing-header: cc_version=1; "
      "cch=a5145;'},{'role':'user','content':'q'}]}", "[{'role':'user','content':'q'}]", NULL },
    { DIALECT_CHAT, "{'messages':[{'role':'user','content':'q'}],"
      "'tools':[{'type':'function','function':{'name':'f'}},{'type':'function','function':{'name':'g'}}],"
      "'tool_choice':{'type':'allowed_tools','allowed_tools':{'mode':'required','tools':[{'type':'function',"
      "'function':{'name':'g'}}]}}}", "[{'role':'user','content':'q'}]",
      "[{'type':'function','function':{'name':'g'}}]" },
    /* Responses */
    { DIALECT_RESPONSES, "{'input':'q','instructions':'s'}",
      "[{'role':'system','content':'s'},{'role':'user','content':'q'}]", NULL },
    { DIALECT_RESPONSES, "{'input':'q','instructions':'x-anthropic-billing-header: cch=a5145; You are.\\nMore.'}",
      "[{'role':'system','content':'You are.\\nMore.'},{'role':'user','content':'q'}]", NULL },
    { DIALECT_RESPONSES,
      "{'input':[{'role':'developer','content':'d'},{'type':'message','role':'user','content':[{'type':'input_text',"
      "'text':'q'}]},{'type':'reasoning','id':'rs_1','summary':[{'type':'summary_text','text':'r1'},"
      "{'type':'summary_text','text':'r2'}]},{'type':'message','role':'assistant','content':[{'type':'output_text',"
      "'text':'t','annotations':[]}]},{'type':'function_call','call_id':'c1','name':'f','arguments':'{}'},"
      "{'type':'function_call','id':'c2','namespace':'ns','name':'g','arguments':''},{'type':'function_call_output',"
      "'call_id':'c1','output':'R1'},{'type':'function_call_output','call_id':'c2','output':{'x':1}},"
      "{'type':'message','role':'assistant','content':'done'}]}",
      "[{'role':'developer','content':'d'},{'role':'user','content':'q'},{'role':'assistant','tool_calls':[{'id':'c1',"
      "'type':'function','function':{'name':'f','arguments':'{}'}},"
      "{'id':'c2','type':'function','function':{'name':'ns__g','arguments':'{}'}}],'content':'t',"
      "'reasoning_content':'r1\\nr2'},{'role':'tool','content':'R1','tool_call_id':'c1','name':'f'},"
      "{'role':'tool','content':'{\\'x\\': "
      "1}','tool_call_id':'c2','name':'ns__g'},{'role':'assistant','content':'done'}]", NULL },
    { DIALECT_RESPONSES,
      "{'input':[{'role':'user','content':'q'},{'type':'custom_tool_call','call_id':'c1','name':'apply_patch',"
      "'input':'P'},{'type':'custom_tool_call_output','call_id':'c1','output':[{'type':'input_text','text':'ok'}]},"
      "{'type':'local_shell_call','call_id':'c2','action':{'type':'exec','command':['ls'],'env':{}}},"
      "{'type':'local_shell_call_output','call_id':'c2','output':'files'},{'type':'web_search_call','id':'w'}]}",
      "[{'role':'user','content':'q'},{'role':'assistant','tool_calls':[{'id':'c1','type':'function',"
      "'function':{'name':'apply_patch','arguments':{'input':'P'}}}],'content':''},"
      "{'role':'tool','content':'ok','tool_call_id':'c1','name':'apply_patch'},{'role':'assistant',"
      "'tool_calls':[{'id':'c2','type':'function','function':{'name':'local_shell','arguments':{'command':['ls'],"
      "'env':{}}}}],"
      "'content':''},{'role':'tool','content':'files','tool_call_id':'c2','name':'local_shell'}]",
      NULL },
    { DIALECT_RESPONSES, "{'input':[{'role':'user','content':'q'}],'previous_response_id':'resp_old'}",
      "[{'role':'user','content':'Q0'},{'role':'assistant','content':'A0'},{'role':'user','content':'q'}]", NULL },
    { DIALECT_RESPONSES, "{'input':[{'type':'item_reference','id':'msg_old'},{'role':'user','content':'q'}]}",
      "[{'role':'assistant','content':'A0'},{'role':'user','content':'q'}]", NULL },
    { DIALECT_RESPONSES, "{'input':'q','tools':[{'type':'function','name':'f','description':'d',"
      "'parameters':{'type':'object'},'strict':false},{'type':'web_search'},{'type':'namespace','name':'ns',"
      "'tools':[{'type':'function','name':'g'}]}]}", "[{'role':'user','content':'q'}]",
      "[{'type':'function','function':{'name':'f','description':'d','parameters':{'type':'object'}}},"
      "{'type':'function','function':{'name':'ns__g'}}]" },
    /* as Codex 0.169 sends a turn back: the item's contents are null, its ids are ours */
    { DIALECT_RESPONSES,
      "{'input':[{'type':'message','id':'msg_1','role':'developer','content':[{'type':'input_text','text':'d1'},"
      "{'type':'input_text','text':'d2'}]},{'type':'message',"
      "'id':'msg_2','role':'user','content':[{'type':'input_text','text':'q'}]},"
      "{'type':'reasoning','id':'rs_1','summary':[{'type':'summary_text','text':'r'}],'content':null,"
      "'encrypted_content':'v1.0'},{'type':'function_call','status':'completed','id':'fc_1','name':'exec_command',"
      "'arguments':'{\\'cmd\\':\\'ls\\'}','call_id':'call_1'},{'type':'function_call_output','call_id':'call_1',"
      "'output':'files'}],'reasoning':{'summary':'auto'},'include':['reasoning.encrypted_content'],'store':false}",
      "[{'role':'developer','content':[{'type':'text','text':'d1'},"
      "{'type':'text','text':'d2'}]},{'role':'user','content':'q'},"
      "{'role':'assistant','tool_calls':[{'id':'call_1','type':'function','function':{'name':'exec_command',"
      "'arguments':'{\\'cmd\\':\\'ls\\'}'}}],'content':'','reasoning_content':'r'},{'role':'tool','content':'files',"
      "'tool_call_id':'call_1','name':'exec_command'}]", NULL },
    /* Messages */
    /* as Claude Code 2.1 begins: instructions between and after the user's messages too */
    { DIALECT_MESSAGES,
      "{'system':[{'type':'text','text':'S1','cache_control':{'type':'ephemeral'}},{'type':'text','text':'S2',"
      "'cache_control':{'type':'ephemeral'}}],'messages':[{'role':'user','content':[{'type':'text','text':'a'},"
      "{'type':'text','text':'q','cache_control':{'type':'ephemeral'}}]},{'role':'system','content':'later'}],"
      "'thinking':{'type':'adaptive'},'context_management':{'edits':[]},'output_config':{'effort':'high'}}",
      "[{'role':'system','content':'S1'},{'role':'system','content':'S2'},{'role':'user','content':[{'type':'text',"
      "'text':'a'},{'type':'text','text':'q'}]},{'role':'system','content':'later'}]", NULL },
    { DIALECT_MESSAGES, "{'system':[{'type':'text','text':'x-anthropic-billing-header: cch=1;'},{'type':'text',"
      "'text':'S','cache_control':{'type':'ephemeral'}}],'messages':[{'role':'user','content':'q'}]}",
      "[{'role':'system','content':'S'},{'role':'user','content':'q'}]", NULL },
    { DIALECT_MESSAGES,
      "{'messages':[{'role':'user','content':[{'type':'text',"
      "'text':'q'}]},{'role':'assistant','content':[{'type':'thinking','thinking':'r','signature':'s'},"
      "{'type':'redacted_thinking','data':'x'},{'type':'text','text':'t'},"
      "{'type':'tool_use','id':'u1','name':'f','input':{'a':1}},{'type':'tool_use','id':'u2','name':'g','input':{}}]},"
      "{'role':'user','content':[{'type':'tool_result','tool_use_id':'u1','content':'R1'},"
      "{'type':'tool_result','tool_use_id':'u2','is_error':true,'content':[{'type':'text','text':'R'},{'type':'text',"
      "'text':'2'}]},{'type':'text','text':'next'}]}],'tools':[{'name':'f',"
      "'description':'d','input_schema':{'type':'object'}}]}",
      "[{'role':'user','content':'q'},{'role':'assistant','tool_calls':[{'id':'u1','type':'function',"
      "'function':{'name':'f','arguments':{'a':1}}},{'id':'u2','type':'function','function':{'name':'g',"
      "'arguments':{}}}],"
      "'content':'t','reasoning_content':'r'},{'role':'tool','content':'R1','tool_call_id':'u1','name':'f'},"
      "{'role':'tool','content':'Error: R2','tool_call_id':'u2','name':'g'},{'role':'user','content':'next'}]",
      "[{'type':'function','function':{'name':'f','description':'d','parameters':{'type':'object'}}}]" },
    { DIALECT_MESSAGES, "{'messages':[{'role':'user','content':[{'type':'text','text':'before'},{'type':'tool_result',"
      "'tool_use_id':'zz','content':'R'}]},{'role':'user','content':[]}]}", "[{'role':'user','content':'before'},"
      "{'role':'tool','content':'R','tool_call_id':'zz'},{'role':'user','content':''}]", NULL },
    { DIALECT_MESSAGES, "{'messages':[{'role':'user','content':[{'type':'document','title':'T','source':{'type':'text',"
      "'media_type':'text/plain','data':'D'}},{'type':'search_result','title':'A','source':'B',"
      "'content':[{'type':'text','text':'C'}]}]}]}",
      "[{'role':'user','content':[{'type':'text','text':'T'},{'type':'text','text':'\\n'},{'type':'text','text':'D'},"
      "{'type':'text','text':'A'},{'type':'text','text':'\\n'},{'type':'text','text':'B'},{'type':'text','text':'\\n'},"
      "{'type':'text','text':'C'}]}]", NULL },
    { DIALECT_OLLAMA_CHAT, "{'messages':[{'role':'system','content':'S'},{'role':'user','content':'q','images':[]},"
      "{'role':'assistant','content':'','thinking':'r','tool_calls':[{'function':{'name':'f','arguments':{'a':1}}}]},"
      "{'role':'tool','tool_name':'f','content':'R'},{'role':'tool','tool_call_id':'x','name':'g','content':'T'}],"
      "'tools':[{'type':'function','function':{'name':'f'}}]}",
      "[{'role':'system','content':'S'},{'role':'user','content':'q'},{'role':'assistant','content':'',"
      "'reasoning_content':'r','tool_calls':[{'type':'function','function':{'name':'f','arguments':{'a':1}}}]},"
      "{'role':'tool','content':'R','name':'f'},{'role':'tool','content':'T','tool_call_id':'x','name':'g'}]",
      "[{'type':'function','function':{'name':'f'}}]" },
    { DIALECT_OLLAMA_GENERATE, "{'prompt':'q','system':'S'}",
      "[{'role':'system','content':'S'},{'role':'user','content':'q'}]", NULL },
    { DIALECT_OLLAMA_GENERATE, "{'prompt':'q','system':''}", "[{'role':'user','content':'q'}]", NULL },
    { DIALECT_OLLAMA_GENERATE, "{'prompt':'q','raw':true,'system':'S'}", "[]", NULL },
    { DIALECT_OLLAMA_CHAT, "{}", "[]", NULL },
};

#define ASK "'messages':[{'role':'user','content':'x'}]"
static const struct { Dialect dialect; const char *body, *param, *says; } REFUSALS[] = {
    { DIALECT_LLAMA, "{}", "prompt", "missing" }, { DIALECT_LLAMA, "{'prompt':['a','b']}", "prompt", "expected one" },
    { DIALECT_LLAMA, "{'prompt':[[1],[2]]}", "prompt", "expected one" },
    { DIALECT_LLAMA, "{'prompt':[1,'a',1000]}", "prompt", "element 2" },
    { DIALECT_LLAMA, "{'prompt':['a',1,{}]}", "prompt", "element 2" },
    { DIALECT_LLAMA, "{'prompt':[1.5]}", "prompt[0]", "neither" },
    { DIALECT_LLAMA, "{'prompt':[]}", "prompt", "0 elem" },
    { DIALECT_LLAMA, "{'prompt':{'prompt_string':'x'}}", "prompt", "an object" },
    { DIALECT_LLAMA, "{'prompt':'x','samplers':['temperature','top_k']}", "samplers[1]", "the order" },
    { DIALECT_LLAMA, "{'prompt':'x','samplers':['top_k','top_k']}", "samplers[1]", "the order" },
    { DIALECT_LLAMA, "{'prompt':'x','samplers':['infill']}", "samplers[0]", "not supported" },
    { DIALECT_LLAMA, "{'prompt':'x','samplers':[5]}", "samplers[0]", "not a string" },
    { DIALECT_LLAMA, "{'prompt':'x','response_fields':[5]}", "response_fields[0]", "not a string" },
    { DIALECT_LLAMA, "{'prompt':'x','repeat_last_n':-1,'repeat_penalty':1.1}", "repeat_last_n", "beside penalties" },
    { DIALECT_LLAMA, "{'prompt':'x','n_predict':1e300}", "n_predict", "whole number" },
    { DIALECT_LLAMA, "{'prompt':'x','image_data':[{'id':1}]}", "image_data", "only be []" },
    { DIALECT_INFILL, "{}", "input_prefix", "missing" },
    { DIALECT_INFILL, "{'input_prefix':'x','input_extra':[5]}", "input_extra[0]", "not an object" },
    { DIALECT_INFILL, "{'input_prefix':'x','input_extra':[{'filename':'a'}]}", "input_extra[0].text", "missing" },
    { DIALECT_INFILL, "{'input_prefix':'x','input_extra':[{'text':'a','filename':5}]}", "input_extra[0].filename",
      "not a string" },
    { DIALECT_INFILL, "{'input_prefix':['x']}", "input_prefix", "a list" },
    { DIALECT_COMPLETIONS, "{'prompt':['x'],'suffix':'y'}", "prompt", "which a suffix needs" },
    { DIALECT_OLLAMA_CHAT, "{'messages':[{'role':'user','content':'x','images':['aGk=']}]}", "messages[0].images",
      "text only" },
    { DIALECT_OLLAMA_CHAT, "{'messages':[{'role':'user','content':[1]}]}", "messages[0].content[0]", "not an object" },
    { DIALECT_OLLAMA_CHAT, "{'messages':{'role':'user'}}", "messages", "an object" },
    { DIALECT_OLLAMA_CHAT, "{'messages':[{'role':'user','content':'x'}],'format':'yaml'}", "format", "yaml" },
    { DIALECT_OLLAMA_CHAT, "{'messages':[{'role':'user','content':'x'}],'format':'json','grammar':'root ::= .'}",
      "grammar", "format and" },
    { DIALECT_OLLAMA_CHAT, "{'messages':[{'role':'user','content':'x'}],'options':{'temperature':'hot'}}",
      "options.temperature", "expected a number" },
    { DIALECT_OLLAMA_CHAT, "{'messages':[{'role':'user','content':'x'}],'options':{'stop':['']}}", "stop[0]",
      "0 bytes" },
    { DIALECT_OLLAMA_CHAT, "{'messages':[{'role':'user','content':'x'}],'options':{'mirostat':2}}",
      "options.mirostat", "not supported" },
    { DIALECT_OLLAMA_GENERATE, "{'prompt':'x','images':['aGk=']}", "images", "only be []" },
    { DIALECT_OLLAMA_GENERATE, "{'prompt':'x','template':'{{ .Prompt }}'}", "template", "not supported" },
    { DIALECT_OLLAMA_GENERATE, "{'prompt':'x','context':[1,2]}", "context", "not supported" },
    { DIALECT_CHAT, "{}", "messages", "missing" }, { DIALECT_CHAT, "{'messages':[]}", "messages", "empty" },
    { DIALECT_CHAT, "{'messages':[5]}", "messages[0]", "not an object" },
    { DIALECT_CHAT, "{'messages':[{'content':'x'}]}", "messages[0].role", "missing" },
    { DIALECT_CHAT, "{'messages':[{'role':'user'}]}", "messages[0].content", "missing" },
    { DIALECT_CHAT, "{'messages':[{'role':'user','content':null}]}", "messages[0].content", "missing" },
    { DIALECT_CHAT, "{'messages':[{'role':'bot','content':'x'}]}", "messages[0].role", "\"bot\"" },
    { DIALECT_CHAT, "{'messages':[{'role':'user','content':5}]}", "messages[0].content", "neither" },
    { DIALECT_CHAT, "{'messages':[{'role':'user','content':[{'type':'image_url','image_url':{'url':'x'}}]}]}",
      "messages[0].content[0].type", "image_url" },
    { DIALECT_CHAT, "{'messages':[{'role':'user','content':[{'type':'text','text':5}]}]}",
      "messages[0].content[0].text", "not a string" },
    { DIALECT_CHAT, "{'messages':[{'role':'assistant','tool_calls':5}]}", "messages[0].tool_calls", "not a list" },
    { DIALECT_CHAT, "{'messages':[{'role':'assistant','tool_calls':[{'id':'c'}]}]}",
      "messages[0].tool_calls[0].function", "not an object" },
    { DIALECT_CHAT, "{'messages':[{'role':'assistant','tool_calls':[{'id':'c','function':{'name':'f',"
      "'arguments':5}}]}]}", "messages[0].tool_calls[0].function", "arguments" },
    { DIALECT_CHAT, "{" ASK ",'tools':[5]}", "tools[0]", "not an object" },
    { DIALECT_CHAT, "{" ASK ",'tools':[{'type':'function'}]}", "tools[0].function",
      "not an object" },
    { DIALECT_CHAT, "{" ASK ",'tools':[{'type':'function','function':{'name':'a b'}}]}",
      "tools[0].function", "letters" },
    { DIALECT_CHAT, "{" ASK ",'tools':[{'type':'function','function':{'name':'a',"
      "'parameters':[]}}]}", "tools[0].function.parameters", "not an object" },
    { DIALECT_CHAT, "{" ASK ",'tools':[{'type':'function','function':{'name':'a'}},"
      "{'type':'function','function':{'name':'a'}}]}", "tools[1].function", "twice" },
    { DIALECT_CHAT, "{" ASK ",'tool_choice':'required'}", "tool_choice", "no tool" },
    { DIALECT_CHAT, "{" ASK ",'tool_choice':'maybe'}", "tool_choice", "maybe" },
    { DIALECT_CHAT, "{" ASK ",'tools':[{'type':'function','function':{'name':'a'}}],"
      "'tool_choice':{'type':'function','function':{'name':'b'}}}", "tool_choice", "\"b\"" },
    { DIALECT_CHAT, "{" ASK ",'top_logprobs':2}", "top_logprobs", "needs logprobs" },
    { DIALECT_CHAT, "{" ASK ",'n':5}", "n", "1 to 4" },
    { DIALECT_CHAT, "{" ASK ",'stop':['']}", "stop[0]", "0 bytes" },
    { DIALECT_CHAT, "{" ASK ",'stop':[5]}", "stop[0]", "not a string" },
    { DIALECT_CHAT, "{" ASK ",'logit_bias':{'1000':1}}", "logit_bias.1000", "vocabulary" },
    { DIALECT_CHAT, "{" ASK ",'logit_bias':{'1':101}}", "logit_bias.1", "101" },
    { DIALECT_CHAT, "{" ASK ",'logit_bias':[[1]]}", "logit_bias[0]", "pair" },
    { DIALECT_CHAT, "{" ASK ",'response_format':{'type':'json_schema'}}",
      "response_format.json_schema.schema", "missing" },
    { DIALECT_CHAT, "{" ASK ",'response_format':{}}", "response_format", "no type" },
    { DIALECT_CHAT, "{" ASK ",'response_format':{'type':'json_object'},'grammar':'root ::= .'}",
      "grammar", "both" },
    { DIALECT_CHAT, "{" ASK ",'guided_choice':[]}", "guided_choice", "empty" },
    { DIALECT_CHAT, "{" ASK ",'guided_choice':['a',5]}", "guided_choice[1]", "not a text" },
    { DIALECT_CHAT, "{" ASK ",'guided_choice':['']}", "guided_choice[0]", "at least one byte" },
    { DIALECT_CHAT, "{" ASK ",'guided_json':'{'}", "guided_json", "guided_json" },
    { DIALECT_CHAT, "{" ASK ",'structured_outputs':{'regex':'a','choice':['b']}}",
      "structured_outputs.choice", "structured_outputs.regex and" },
    { DIALECT_CHAT, "{" ASK ",'guided_regex':'a','structured_outputs':{'json_object':true}}",
      "structured_outputs.json_object", "both" },
    { DIALECT_CHAT, "{" ASK ",'structured_outputs':{'structural_tag':'x'}}",
      "structured_outputs.structural_tag", "not supported" },
    { DIALECT_CHAT, "{" ASK ",'chat_template_kwargs':{'messages':[]}}", "chat_template_kwargs",
      "messages cannot be set" },
    { DIALECT_CHAT, "{" ASK ",'prefix_cache':{'scope':'auto:0/1'}}", "prefix_cache.scope",
      "auto:0/1" },
    { DIALECT_CHAT, "{" ASK ",'continue_final_message':true}", "continue_final_message",
      "assistant" },
    { DIALECT_CHAT, "{'messages':[{'role':'assistant','content':'a'},{'role':'assistant','content':'b'}],"
      "'continue_final_message':true}", "messages", "both" },
    { DIALECT_CHAT, "{" ASK ",'temperature':'hot'}", "temperature", "expected a number" },
    { DIALECT_COMPLETIONS, "{}", "prompt", "missing" },
    { DIALECT_COMPLETIONS, "{'prompt':[]}", "prompt", "0 elements" },
    { DIALECT_COMPLETIONS, "{'prompt':[1,'x']}", "prompt", "element 1" },
    { DIALECT_COMPLETIONS, "{'prompt':[[1],[1000]]}", "prompt[1]", "vocabulary" },
    { DIALECT_COMPLETIONS, "{'prompt':[-1]}", "prompt", "-1" },
    { DIALECT_COMPLETIONS, "{'prompt':['x',5]}", "prompt[1]", "neither" },
    { DIALECT_COMPLETIONS, "{'prompt':'x','best_of':2}", "best_of", "best_of" },
    { DIALECT_COMPLETIONS, "{'prompt':['x',[]]}", "prompt[1]", "empty" },
    { DIALECT_RESPONSES, "{}", "input", "missing" }, { DIALECT_RESPONSES, "{'input':[]}", "input", "empty" },
    { DIALECT_RESPONSES, "{'input':[{'role':'user','content':[{'type':'input_image'}]}]}", "input[0].content[0].type",
      "input_image" },
    { DIALECT_RESPONSES, "{'input':[{'type':'function_call_output','call_id':'c','output':'x'}]}", "input[0].call_id",
      "whole history" },
    { DIALECT_RESPONSES, "{'input':[{'type':'function_call','name':'f'}]}", "input[0].call_id", "missing" },
    { DIALECT_RESPONSES, "{'input':'x','previous_response_id':'resp_new'}", "previous_response_id",
      "no such response" },
    { DIALECT_RESPONSES, "{'input':[{'type':'item_reference','id':'x'}]}", "input[0].id", "stored" },
    { DIALECT_RESPONSES, "{'input':[{'type':'web_search_call'}]}", "input", "nothing" },
    { DIALECT_RESPONSES, "{'input':'x','include':[5]}", "include[0]", "not a string" },
    { DIALECT_RESPONSES, "{'input':'x','truncation':'auto'}", "truncation", "disabled" },
    { DIALECT_MESSAGES, "{}", "messages", "missing" },
    { DIALECT_MESSAGES, "{'messages':[{'role':'tool','content':'x'}]}", "messages[0].role", "tool" },
    { DIALECT_MESSAGES, "{'messages':[{'role':'user','content':[{'type':'image','source':{}}]}]}",
      "messages[0].content[0].type", "image" },
    { DIALECT_MESSAGES, "{'messages':[{'role':'user','content':[{'type':'tool_result','content':'x'}]}]}",
      "messages[0].content[0].tool_use_id", "missing" },
    { DIALECT_MESSAGES, "{'messages':[{'role':'user','content':[{'type':'tool_result','tool_use_id':'x',"
      "'content':[{'type':'image'}]}]}]}", "messages[0].content[0].content[0].type", "image" },
    { DIALECT_MESSAGES, "{'messages':[{'role':'assistant','content':[{'type':'tool_use','id':'x','name':'f',"
      "'input':5}]}]}", "messages[0].content[0].input", "not an object" },
    { DIALECT_MESSAGES, "{'messages':[{'role':'user','content':'x'}],'system':[5]}", "system[0]", "text block" },
    { DIALECT_MESSAGES, "{'messages':[{'role':'user','content':'x'}],'tool_choice':{'type':'some'}}",
      "tool_choice.type", "some" },
    { DIALECT_MESSAGES, "{'messages':[{'role':'user','content':'x'}],'tools':[{'input_schema':{}}]}", "tools[0].name",
      "missing" },
};

#define USER "'messages':[{'role':'user','content':'x'}]"
static const struct { Dialect dialect; const char *body, *says; } MEANINGS[] = {
    { DIALECT_CHAT, "{" USER ",'temperature':'0.25','top_p':'0.5','max_tokens':'9'}", "T 0.25 0.5" },
    { DIALECT_CHAT, "{" USER ",'max_tokens':'9'}", "max 9 " },
    { DIALECT_CHAT, "{" USER ",'max_tokens':-1}", "max -1 " }, { DIALECT_CHAT, "{" USER ",'max_tokens':0}", "max 0 " },
    { DIALECT_RESPONSES, "{'input':'x'}", "max 32768 " },
    { DIALECT_CHAT, "{" USER ",'seed':0}", " 0 1 eos" }, { DIALECT_CHAT, "{" USER ",'seed':-1}", " 0 0 eos" },
    { DIALECT_CHAT, "{" USER ",'seed':9223372036854775807}", " 9223372036854775807 1 eos" },
    { DIALECT_CHAT, "{" USER ",'logit_bias':{'7':-100,'hello':2}}", "bias 7  -inf\nbias -1 hello 2\n" },
    { DIALECT_CHAT, "{" USER ",'logit_bias':[[7,false],['x',1]]}", "bias 7  -inf\nbias -1 x 1\n" },
    { DIALECT_CHAT, "{" USER ",'guided_choice':['a\\'b','\\\\c\\n']}", "form 2 root ::= 'a" },
    { DIALECT_CHAT, "{" USER ",'guided_regex':'[ab]+'}", "form 3 [ab]+ guided_regex" },
    { DIALECT_CHAT, "{" USER ",'guided_json':'{\\'type\\':\\'string\\'}'}", "form 1  guided_json" },
    { DIALECT_CHAT, "{" USER ",'structured_outputs':{'json':{'type':'string'}}}", "form 1  structured_outputs.json" },
    { DIALECT_CHAT, "{" USER ",'structured_outputs':{'json_object':false}}", "form 0" },
    { DIALECT_CHAT, "{" USER ",'rep_window':0,'repetition_penalty':1.5,'presence_penalty':1}", " 1 0 0 0 0 0 0 eos" },
    { DIALECT_CHAT, "{" USER ",'prefix_cache':{'scope':'auto:50/7'}}", "cache 1 " },
    { DIALECT_CHAT, "{" USER ",'speculative':{'verify_width':1}}", "spec 0" },
    { DIALECT_CHAT, "{" USER ",'speculative':{'mode':'off','budget':9}}", "spec 0" },
    { DIALECT_CHAT, "{" USER ",'model':'tiny:think'}", "'enable_thinking': true" },
    { DIALECT_CHAT, "{" USER "}", "'enable_thinking': false" },
    { DIALECT_CHAT, "{" USER ",'reasoning_effort':'none'}", "think 0 -1 0 none" },
    { DIALECT_CHAT, "{" USER ",'reasoning_effort':'low'}", "think 1 4000 4096 low" },
    { DIALECT_CHAT, "{" USER ",'reasoning_effort':'max'}", "think 1 -1 0 max" },
    { DIALECT_CHAT, "{" USER ",'reasoning_effort':'odd'}", "think 1 11904 4096 odd" },
    { DIALECT_CHAT, "{" USER ",'reasoning_effort':'high','max_tokens':1000}", "think 1 500 500 high" },
    { DIALECT_CHAT, "{" USER ",'reasoning_effort':'high','enable_thinking':false}", "think 0 " },
    { DIALECT_MESSAGES, "{" USER ",'thinking':{'type':'enabled','budget_tokens':2000},"
      "'output_config':{'effort':'max'}}", "think 1 2000 4096 max show 3" },
    { DIALECT_MESSAGES, "{" USER ",'thinking':{'type':'disabled'}}", "think 0 -1" },
    { DIALECT_CHAT, "{" USER ",'thinking_budget_tokens':0,'enable_thinking':true}", "think 0 0" },
    { DIALECT_CHAT, "{" USER ",'chat_template_kwargs':{'enable_thinking':true}}", "'enable_thinking': true" },
    { DIALECT_RESPONSES, "{'input':'x','reasoning':{'effort':'low','summary':'auto'},"
      "'include':['reasoning.encrypted_content']}", "show 2 0 1" },
    { DIALECT_RESPONSES, "{'input':'x','include':['reasoning.encrypted_content','message.output_text.logprobs']}",
      "show 1 0 1" }, { DIALECT_RESPONSES, "{'input':'x'}", "show 0 0 0" },
    { DIALECT_MESSAGES, "{" USER ",'tools':[{'name':'f','input_schema':{}}],'tool_choice':{'type':'any',"
      "'disable_parallel_tool_use':true}}", "choice 2  0 " },
    { DIALECT_MESSAGES, "{" USER ",'tools':[{'name':'f','input_schema':{}}],'tool_choice':{'type':'tool','name':'f'}}",
      "choice 3 f 1 " },
    { DIALECT_MESSAGES, "{'messages':[{'role':'user','content':'x'},{'role':'assistant','content':'pre'}]}",
      "choice 0  1 1" },
    { DIALECT_MESSAGES, "{" USER ",'tools':[{'type':'bash_20250124','name':'bash'},{'type':'text_editor_20250728',"
      "'name':'ed'},{'type':'web_search_20250305','name':'w'}]}", "'name': 'ed'" },
    { DIALECT_CHAT, "{" USER ",'tools':[{'type':'function','function':{'name':'f'}}],'functions':[{'name':'g'}],"
      "'function_call':{'name':'g'}}", "choice 3 g 1 " },
    { DIALECT_CHAT, "{" USER ",'functions':[{'name':'g'}],'function_call':{'name':'g'}}", "choice 3 g 0 " },
    { DIALECT_COMPLETIONS, "{'prompt':[[5,6],'x']}", "prompt  2 5\nprompt x 0 -1\n" },
    { DIALECT_COMPLETIONS, "{'prompt':[5,6]}", "prompt  2 5\n" },
    { DIALECT_COMPLETIONS, "{'prompt':''}", "prompt  0 -1\n" },
    { DIALECT_COMPLETIONS, "{'prompt':'a','suffix':'b'}", "infill a|b extra 0" },
    { DIALECT_LLAMA, "{'prompt':[5,6]}", "prompt  2 5\n" }, { DIALECT_LLAMA, "{'prompt':['x']}", "prompt x 0 -1\n" },
    { DIALECT_LLAMA, "{'prompt':[[5,6]]}", "prompt  2 5\n" },
    { DIALECT_LLAMA, "{'prompt':['x',5,'y']}", "prompt  0 -1\n" },
    { DIALECT_LLAMA, "{'prompt':'x','n_predict':-2}", "max -1 " },
    { DIALECT_LLAMA, "{'prompt':'x','seed':4294967295}", " 4294967295 0 eos" },
    { DIALECT_LLAMA, "{'prompt':'x','repeat_last_n':-1,'repeat_penalty':1}", "T 0 1 0 1 0 0 0 256" },
    { DIALECT_LLAMA, "{'prompt':'x','top_k':-1,'temperature':0.5,'top_p':0.25,'min_p':0.5,'repeat_penalty':1.5,"
      "'samplers':['penalties','dry','temperature','xtc']}", "T 0.5 1 0 1.5 0 0 0 256" },
    { DIALECT_LLAMA, "{'prompt':'x','temperature':0.5,'top_p':0.25,'samplers':['top-p']}", "T 1 0.25 0 1" },
    { DIALECT_LLAMA, "{'prompt':'x','n_probs':3}", "log 1 3 " },
    { DIALECT_LLAMA, "{'prompt':'x','n_probs':0}", "log 0 0" },
    { DIALECT_INFILL, "{'input_suffix':'s'}", "infill |s extra 0\n" },
    { DIALECT_INFILL, "{'prompt':'b'}", "prompt b 0 -1\n" },
    { DIALECT_INFILL, "{'input_prefix':'p','input_suffix':'s','prompt':'b','input_extra':[{'text':'t','time':1}]}",
      "infill p|s extra 1\nlines 0 0 fields 0 load 0\nprompt b 0" },
    { DIALECT_OLLAMA_CHAT, "{" USER "}", "tiny 1" }, { DIALECT_OLLAMA_CHAT, "{" USER ",'stream':false}", "tiny 0" },
    { DIALECT_OLLAMA_CHAT, "{" USER ",'temperature':0.5,'options':{'temperature':0.25,'num_predict':-2}}", "T 0.25" },
    { DIALECT_OLLAMA_CHAT, "{" USER ",'seed':4,'options':{'seed':5,'stop':'x'}}", " 5 1 eos" },
    { DIALECT_OLLAMA_CHAT, "{" USER ",'seed':4,'options':{'seed':null}}", " 4 1 eos" },
    { DIALECT_OLLAMA_CHAT, "{'messages':[{'role':'user','content':'x'},{'role':'assistant','content':'pre'}]}",
      "choice 0  1 1" },
    { DIALECT_OLLAMA_CHAT, "{" USER ",'format':''}", "form 0" }, { DIALECT_OLLAMA_CHAT, "{" USER ",'think':'high'}",
      "think 1" }, { DIALECT_OLLAMA_CHAT, "{'messages':[]}", "load 1" },
    { DIALECT_OLLAMA_GENERATE, "{'prompt':''}", "load 1" }, { DIALECT_OLLAMA_GENERATE, "{}", "load 1" },
    { DIALECT_OLLAMA_GENERATE, "{'prompt':'p','suffix':'s'}", "infill p|s" },
    { DIALECT_OLLAMA_GENERATE, "{'prompt':'p','raw':true}", "prompt p 0" },
};
