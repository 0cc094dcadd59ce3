#include "programs/constraint.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "programs/advice.h"

bool constraint_read(rt_grammar **out, const Options *o)
{
    const char *from = o->grammar ? o->grammar : o->json_schema;
    bool in_line = from && (o->grammar ? strstr(from, "::=") != NULL : from[0] == '{');
    char *s = NULL, hint[ADVICE_TEXT];
    size_t n;
    rt_error e;
    *out = NULL;
    if (!from) return true;
    if (!in_line && access(from, F_OK) != 0 && errno == ENOENT && !*advice(hint, from, AS_TEXT))
        return complain(o, "'%.200s' is neither a file nor a %s", from,
                        o->grammar ? "grammar, which has ::= in it" : "schema, which begins with {") == 0;
    if (!in_line && !text_read(o, &s, &n, from)) return false;
    const char *name = !in_line ? base_name(from) : o->grammar ? "--grammar" : "--json-schema";
    rt_status st = rt_grammar_new(out, o->grammar ? RT_GBNF : RT_JSON_SCHEMA, in_line ? from : s,
                                  in_line ? strlen(from) : n, name, &e);
    free(s);
    return st == RT_OK || complain(o, "%s", e.text) == 0;
}
