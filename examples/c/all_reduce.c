/*
 * All-reduce: every node adds its part of an integral, and all get the sum, to the last bit the same. A second reduction is under way while
 * the nodes compute.
 *
 *     cc -o all_reduce examples/c/all_reduce.c $(pkg-config --cflags --libs tsumuji)
 *     tsumuji launch -n 4 -- ./all_reduce 1000000
 *
 * The argument is how many rectangles approximate the area under 4 / (1 + x * x), which is pi. Every node prints a line such as
 * "node 2: pi is 3.141592653590, fewest rectangles 250000, most 250000".
 */
#include <stdio.h>
#include <stdlib.h>

#include <tsumuji.h>

#define PATIENCE_US (30 * INT64_C(1000000))
/* A node looks after the reduction under way so often while it computes. */
#define RECTANGLES_BETWEEN 10000

/* Ends the program if a call failed; the launcher prints why. */
static int64_t check(int64_t code, const char *what)
{
    if (code >= 0)
        return code;
    fprintf(stderr, "all_reduce: %s: %s\n", what, tsumuji_last_error());
    (void)tsumuji_report_error(tsumuji_last_error());
    exit(1);
}

int main(int argc, char **argv)
{
    int64_t rectangles = argc > 1 ? atoll(argv[1]) : 1000000;
    tsumuji *node = NULL;

    check(tsumuji_open_env(NULL, &node), "open");
    int me = tsumuji_me(node), nodes = tsumuji_nodes(node);

    /* The most, and by the minus the fewest, in one reduction. The array stays in use until tsumuji_wait has returned. */
    int64_t mine = (rectangles - me + nodes - 1) / nodes, extremes[2] = { mine, -mine };
    uint64_t request;
    check(tsumuji_all_reduce(node, TSUMUJI_WORLD, extremes, 2, TSUMUJI_INT64, TSUMUJI_MAXIMUM, &request), "start");

    double width = 1.0 / (double)rectangles, sum = 0;
    for (int64_t done = 0; done < mine; done++) {
        double x = ((double)(me + done * nodes) + 0.5) * width;
        sum += width * 4 / (1 + x * x);
        if (done % RECTANGLES_BETWEEN == 0)
            check(tsumuji_progress(node), "progress"); /* carries on what is under way, and never waits */
    }

    check(tsumuji_wait(node, request), "wait");
    check(tsumuji_all_reduce(node, TSUMUJI_WORLD, &sum, 1, TSUMUJI_DOUBLE, TSUMUJI_SUM, NULL), "reduce");
    printf("node %d: pi is %.12f, fewest rectangles %lld, most %lld\n", me, sum, (long long)-extremes[1], (long long)extremes[0]);
    check(tsumuji_close(node, PATIENCE_US), "close");
    return 0;
}
