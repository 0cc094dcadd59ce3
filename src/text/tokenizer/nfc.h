/* nfc.h - Unicode normalisation form C of text that may hold bad bytes.
 * utf8proc composes; here the text is cut where nothing can combine across the cut (before ASCII, and around bad bytes,
 * which are kept), so that ASCII text costs only a copy. A run of more than 256 combining marks is normalised
 * 256 at a time: sorting them takes quadratic time. */
#ifndef RATOON_TEXT_TOKENIZER_NFC_H
#define RATOON_TEXT_TOKENIZER_NFC_H

#include <stddef.h>

#include "base/error.h"

typedef struct { char *s; size_t n, cap; } NfcText;            /* zero-initialised; free s */

/* Replaces out's text by the normalised s. ST_MEMORY. */
Status nfc_text(NfcText *out, const char *s, size_t n);

#endif
