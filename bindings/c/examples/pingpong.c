/*
 * A ping-pong between nodes 0 and 1, 4 bytes to 1 MiB, by the plain API: half of the round-trip time for each size.
 *
 *     tsumuji launch -n 2 --link shm -- ./pingpong 1000
 */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <tsumuji.h>

#define BYTES_MAX (1 << 20)
#define PATIENCE_US (60 * INT64_C(1000000))

static void check(int64_t code, const char *what)
{
    if (code >= 0)
        return;
    fprintf(stderr, "pingpong: %s: %s\n", what, tsumuji_last_error());
    (void)tsumuji_report_error(tsumuji_last_error());
    exit(1);
}

static double seconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

int main(int argc, char **argv)
{
    static unsigned char buffer[BYTES_MAX];
    int rounds = argc > 1 ? atoi(argv[1]) : 1000;
    tsumuji *node = NULL;

    check(tsumuji_open_env(NULL, &node), "open");
    int me = tsumuji_me(node), other = 1 - me;
    if (tsumuji_nodes(node) != 2) {
        fprintf(stderr, "pingpong: start it with 2 nodes\n");
        return 2;
    }
    for (size_t bytes = 4; bytes <= BYTES_MAX; bytes *= 4) {
        double start = seconds();
        for (int round = 0; round < rounds; round++) {
            if (me == 0) {
                memset(buffer, round, bytes);
                check(tsumuji_send(node, other, TSUMUJI_DEFAULT_CHANNEL, buffer, bytes), "send");
            }
            ptrdiff_t got = tsumuji_recv(node, buffer, sizeof buffer, NULL, PATIENCE_US);
            check(got, "receive");
            if ((size_t)got != bytes || buffer[0] != (unsigned char)round || buffer[bytes - 1] != (unsigned char)round) {
                fprintf(stderr, "pingpong: a wrong message of %td bytes\n", got);
                return 1;
            }
            if (me == 1)
                check(tsumuji_send(node, other, TSUMUJI_DEFAULT_CHANNEL, buffer, bytes), "send");
        }
        if (me == 0)
            printf("%8zu bytes  %10.3f us over %s\n", bytes, (seconds() - start) * 1e6 / rounds / 2, tsumuji_link_name(node));
    }
    check(tsumuji_close(node, PATIENCE_US), "close");
    return 0;
}
