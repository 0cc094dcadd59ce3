#include "base/error.h"

#include <stdio.h>

Status fail(Error *err, Status code, const char *format, ...)
{
    if (err) {
        va_list args;
        va_start(args, format);
        vsnprintf(err->text, sizeof err->text, format, args);
        va_end(args);
        for (unsigned char *c = (unsigned char *) err->text; *c; c++)
            if (*c < 0x20 || *c == 0x7f) *c = '?';
        err->code = code;
    }
    return code;
}
