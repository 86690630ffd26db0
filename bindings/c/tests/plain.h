/* What plain.c, suci.c and board.c check by: a step that is wrong names its line and ends the program. */
#pragma once

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <tsumuji.h>

#define WAIT_US (60 * INT64_C(1000000))

static void check(int right, const char *file, int line, const char *what)
{
    if (right)
        return;
    fprintf(stderr, "%s:%d: not so: %s (%s)\n", file, line, what, tsumuji_last_error());
    exit(1);
}
#define CHECK(right) check((right) ? 1 : 0, __FILE__, __LINE__, #right)
#define FAILS(call, code, number) CHECK((errno = 0, (call)) == (code) && errno == (number) && *tsumuji_last_error())

/* An address of this process's own in 127.0.0.0/8, and ports on it. */
static inline const char *at(int port)
{
    static char texts[4][40];
    static int next;
    char *text = texts[next++ % 4];
    long pid = (long)getpid();

    snprintf(text, sizeof texts[0], "127.%ld.%ld.%ld:%d", 1 + (pid >> 16) % 250, (pid >> 8) & 255, pid & 255, port);
    return text;
}
