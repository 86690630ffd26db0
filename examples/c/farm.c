/*
 * Master and workers: node 0 hands out tasks, whoever has done one gets the next. Fast workers do more, and none waits for another.
 *
 *     cc -o farm examples/c/farm.c $(pkg-config --cflags --libs tsumuji)
 *     tsumuji launch -n 4 -- ./farm 1000000
 *
 * The workers count primes below the argument. Node 0 prints "78498 primes below 1000000, by 3 workers".
 */
#include <stdio.h>
#include <stdlib.h>

#include <tsumuji.h>

#define PATIENCE_US (30 * INT64_C(1000000))
/* Numbers that a task looks at: milliseconds of work, so that the message costs nothing beside it. */
#define TASK_NUMBERS 10000
/* Tasks that a worker has at a time: the next one is there when one is done. */
#define AHEAD 2

/* Ends the program if a call failed; the launcher prints why. */
static int64_t check(int64_t code, const char *what)
{
    if (code >= 0)
        return code;
    fprintf(stderr, "farm: %s: %s\n", what, tsumuji_last_error());
    (void)tsumuji_report_error(tsumuji_last_error());
    exit(1);
}

static void give(tsumuji *node, int worker, uint64_t start)
{
    check(tsumuji_send(node, worker, TSUMUJI_DEFAULT_CHANNEL, &start, sizeof start), "send");
}

static void master(tsumuji *node, uint64_t end)
{
    int workers = tsumuji_nodes(node) - 1, open = 0;
    uint64_t start = 0, primes = 0, count;
    tsumuji_message about;

    check(tsumuji_cork(node), "batch");
    for (; start < end && open < AHEAD * workers; start += TASK_NUMBERS, open++)
        give(node, 1 + open % workers, start);
    check(tsumuji_uncork(node), "batch");
    while (open > 0) {
        check(tsumuji_recv(node, &count, sizeof count, &about, PATIENCE_US), "receive");
        primes += count;
        if (start < end) {
            give(node, about.from, start);
            start += TASK_NUMBERS;
        } else
            open--;
    }
    for (int worker = 1; worker <= workers; worker++) /* an empty task is the last */
        check(tsumuji_send(node, worker, TSUMUJI_DEFAULT_CHANNEL, "", 0), "send");
    printf("%llu primes below %llu, by %d workers\n", (unsigned long long)primes, (unsigned long long)end, workers);
}

static int is_prime(uint64_t n)
{
    for (uint64_t d = 2; d * d <= n; d++)
        if (n % d == 0)
            return 0;
    return n > 1;
}

static void work(tsumuji *node, uint64_t end)
{
    uint64_t start;

    while (check(tsumuji_recv(node, &start, sizeof start, NULL, PATIENCE_US), "receive") > 0) {
        uint64_t count = 0;
        for (uint64_t n = start; n < start + TASK_NUMBERS && n < end; n++)
            count += (uint64_t)is_prime(n);
        check(tsumuji_send(node, 0, TSUMUJI_DEFAULT_CHANNEL, &count, sizeof count), "send");
    }
}

int main(int argc, char **argv)
{
    uint64_t end = argc > 1 ? strtoull(argv[1], NULL, 10) : 1000000;
    tsumuji *node = NULL;

    check(tsumuji_open_env(NULL, &node), "open");
    if (tsumuji_nodes(node) < 2) {
        fprintf(stderr, "farm: a farm needs two nodes or more\n");
        return 2;
    }
    if (tsumuji_me(node) == 0)
        master(node, end);
    else
        work(node, end);
    check(tsumuji_close(node, PATIENCE_US), "close");
    return 0;
}
