/* page.h - the page at `/`: a chat in one file of HTML, style and script (page.html), embedded in the program. Its
 * content security policy allows only what the file contains and requests to this server: style and script carry a
 * nonce that is drawn for each answer. */
#ifndef RATOON_PROGRAMS_SERVE_HTTP_PAGE_H
#define RATOON_PROGRAMS_SERVE_HTTP_PAGE_H

#include "programs/serve/server.h"

void page_answer(void *ud, Exchange *x);

#endif
