/* page.h - the page at `/`: a chat in one file of HTML, style and script, embedded in the program; assemble.py makes it
 * of the sources in serve/page. Its content security policy allows only what the file contains and requests to this
 * server: style and script carry a nonce that is drawn for each answer, and no text can become markup. */
#ifndef RATOON_PROGRAMS_SERVE_HTTP_PAGE_H
#define RATOON_PROGRAMS_SERVE_HTTP_PAGE_H

#include "programs/serve/server.h"

void page_answer(void *ud, Exchange *x);

#endif
