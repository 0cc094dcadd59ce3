/* log.c - one line of the log for each request that does something, or fails. */
#include <stdio.h>
#include <time.h>

#include "programs/serve/server.h"

void server_log(const Server *s, const Exchange *x, int status, double seconds, const char *rest)
{
    const time_t now = time(NULL);
    struct tm t;
    char when[32] = "";
    if (s->o.quiet) return;
    if (localtime_r(&now, &t)) strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S", &t);
    log_line("%s %s %.1000s %d %.0f ms %s%s%s", when, exchange_verb(x), exchange_path(x), status, 1e3 * seconds,
             exchange_id(x), *rest ? ": " : "", rest);
}
