/* ratoon tokenize, ratoon detokenize: text to token ids and back, without loading weights. */
#include <stdlib.h>
#include <string.h>

#include "format/gguf.h"
#include "programs/advice.h"
#include "programs/program.h"
#include "text/tokenizer/tokenizer.h"

typedef struct { Options o; Files files; Gguf *gguf; Tokenizer *t; } Text;

static bool open_tokenizer(Text *x)
{
    Error err = { 0 };
    if (!files_find(&x->files, &x->o, false)) return false;
    Status st = gguf_open(&x->gguf, x->files.model, &err);
    if (st == ST_OK) st = tokenizer_open(&x->t, x->gguf, &err);
    if (st == ST_END) return complain(&x->o, "%s: it carries no tokenizer", x->files.model) == 0;
    return st == ST_OK || complain_file(&x->o, err.text, x->files.model, AS_MODEL) == 0;
}

static void close_tokenizer(Text *x)
{
    tokenizer_close(x->t);
    gguf_close(x->gguf);
}

static int print_ids(const Text *x, const char *text, size_t n)
{
    const Options *o = &x->o;
    Status st = ST_OK;
    TokenizeOptions to = { .add_special = o->special, .parse_special = o->special, .nfc = o->nfc };
    size_t count = tokenizer_encode(x->t, NULL, 0, text, n, to, &st);
    int32_t *ids = st == ST_OK ? malloc(sizeof *ids * (count + 1)) : NULL;
    if (!ids) return complain(o, "the text of %zu bytes could not be tokenized", n);
    tokenizer_encode(x->t, ids, count, text, n, to, NULL);
    int status = EXIT_FINE;
    if (o->json) {
        json_t *list = json_array();
        for (size_t i = 0; i < count; i++) json_array_append_new(list, json_integer(ids[i]));
        status = json_print(o, json_pack("{s:o}", "tokens", list)) ? EXIT_FINE : EXIT_FAILED;
    } else {
        for (size_t i = 0; i < count; i++) printf("%s%d", i ? "," : "", ids[i]);
        putchar('\n');
        status = output_done(o);
    }
    free(ids);
    return status;
}

int cmd_tokenize(int argc, char **argv)
{
    Text x = { 0 };
    int status;
    char *text = NULL;
    size_t n = 0;
    if (!options_read(&x.o, argc, argv, &status)) return status;
    if (x.o.prompt && x.o.file) {
        complain(&x.o, "there can be only one of -p and -f");
        return EXIT_USAGE;
    }
    status = EXIT_FAILED;
    if (open_tokenizer(&x)) {
        if (x.o.prompt) status = print_ids(&x, x.o.prompt, strlen(x.o.prompt));
        else if (text_read(&x.o, &text, &n, x.o.file)) status = print_ids(&x, text, n);
    }
    free(text);
    close_tokenizer(&x);
    return status;
}

int cmd_detokenize(int argc, char **argv)
{
    Text x = { 0 };
    int status;
    int32_t *ids = NULL, n = 0;
    char *list = NULL, *out = NULL;
    size_t n_list = 0;
    if (!options_read(&x.o, argc, argv, &status)) return status;
    status = EXIT_FAILED;
    if (open_tokenizer(&x) && (x.o.tokens || text_read(&x.o, &list, &n_list, NULL)) &&
        ids_read(&x.o, &ids, &n, x.o.tokens ? x.o.tokens : list, "token ids", 0, tokenizer_size(x.t) - 1)) {
        size_t len = tokenizer_decode(x.t, NULL, 0, ids, (size_t) n, true);
        out = malloc(len + 1);
        if (out) {
            tokenizer_decode(x.t, out, len, ids, (size_t) n, true);
            text_show(stdout, out, len);
            status = output_done(&x.o);
        } else {
            complain(&x.o, "out of memory for %zu bytes", len);
        }
    }
    free(list);
    free(ids);
    free(out);
    close_tokenizer(&x);
    return status;
}
