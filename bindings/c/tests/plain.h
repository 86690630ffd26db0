/* What plain.c checks by: a step that is wrong names its line and ends the program. */
#pragma once

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include <tsumuji.h>

static void check(int right, int line, const char *what)
{
    if (right)
        return;
    fprintf(stderr, "plain.c:%d: not so: %s (%s)\n", line, what, tsumuji_last_error());
    exit(1);
}
#define CHECK(right) check((right) ? 1 : 0, __LINE__, #right)
#define FAILS(call, code, number) CHECK((errno = 0, (call)) == (code) && errno == (number) && *tsumuji_last_error())
