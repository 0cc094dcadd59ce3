/* page.h - the page at `/`: a chat in one file of HTML, style and script (page.html), which the program carries in itself. Its policy lets
 * nothing run or load but what the file holds and requests to this server: style and script carry a number that is drawn for each answer. */
#ifndef RATOON_SERVE_PAGE_H
#define RATOON_SERVE_PAGE_H

#include "programs/serve/server.h"

void page_answer(void *ud, Exchange *x);

#endif
