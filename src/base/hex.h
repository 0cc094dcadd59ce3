/* hex.h - the value of a hexadecimal digit; -1 if it is not one. */
#ifndef RATOON_BASE_HEX_H
#define RATOON_BASE_HEX_H

static inline int hex_value(int c)
{
    if (c >= '0' && c <= '9') return c - '0';
    c |= 32;                                       /* lower case */
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

#endif
