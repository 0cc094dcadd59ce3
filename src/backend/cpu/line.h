/* line.h - a cache line, the unit in which memory is read. */
#ifndef RATOON_BACKEND_CPU_LINE_H
#define RATOON_BACKEND_CPU_LINE_H

enum { LINE = 64 };                                /* bytes */

#endif
