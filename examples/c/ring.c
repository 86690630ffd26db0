/*
 * Ring: a token goes round all nodes, and each of them passes it on. The smallest program that sends and receives.
 *
 *     cc -o ring examples/c/ring.c $(pkg-config --cflags --libs tsumuji)
 *     tsumuji launch -n 4 -- ./ring 1000
 *
 * The argument is how often the token goes round. Node 0 prints "1000 laps of 4 nodes over shm".
 */
#include <stdio.h>
#include <stdlib.h>

#include <tsumuji.h>

/* A neighbour that is silent for longer than this is an error. */
#define PATIENCE_US (30 * INT64_C(1000000))

/* Ends the program if a call failed; the launcher prints why. */
static int64_t check(int64_t code, const char *what)
{
    if (code >= 0)
        return code;
    fprintf(stderr, "ring: %s: %s\n", what, tsumuji_last_error());
    (void)tsumuji_report_error(tsumuji_last_error());
    exit(1);
}

int main(int argc, char **argv)
{
    uint32_t laps = argc > 1 ? (uint32_t)atoi(argv[1]) : 1000;
    tsumuji *node = NULL;

    check(tsumuji_open_env(NULL, &node), "open");
    int me = tsumuji_me(node), nodes = tsumuji_nodes(node), next = (me + 1) % nodes;
    if (nodes < 2) {
        fprintf(stderr, "ring: a ring needs two nodes or more\n");
        return 2;
    }
    for (uint32_t lap = 0; lap < laps; lap++) {
        uint32_t token = lap;
        if (me == 0)
            check(tsumuji_send(node, next, TSUMUJI_DEFAULT_CHANNEL, &token, sizeof token), "send");
        check(tsumuji_recv(node, &token, sizeof token, NULL, PATIENCE_US), "receive");
        if (token != lap) {
            fprintf(stderr, "ring: lap %u: a wrong token\n", (unsigned)lap);
            return 1;
        }
        if (me != 0)
            check(tsumuji_send(node, next, TSUMUJI_DEFAULT_CHANNEL, &token, sizeof token), "send");
    }
    if (me == 0)
        printf("%u laps of %d nodes over %s\n", (unsigned)laps, nodes, tsumuji_link_name(node));
    check(tsumuji_close(node, PATIENCE_US), "close");
    return 0;
}
