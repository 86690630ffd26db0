/*
 * Shared vector: every node owns some elements of a board, writes them again and again, and reads those of the others as they are, without
 * waiting. Copies may be behind; in the end each node waits for the last values of all.
 *
 *     cc -o board examples/c/board.c $(pkg-config --cflags --libs tsumuji)
 *     tsumuji launch -n 3 -- ./board 200
 *
 * The argument is how often each node writes. A node prints, for example, "node 1: 300 elements of lap 200; at most 4 laps behind before".
 */
#include <stdio.h>
#include <stdlib.h>

#include <tsumuji.h>

#define PATIENCE_US (30 * INT64_C(1000000))
/* After so long without what was waited for, own values are sent again: an update is best effort, and may be lost. */
#define REPAIR_AFTER_US 2000
/* Of the board; 0 is the id of the channel for messages. */
#define CHANNEL 1
/* Of each node. */
#define ELEMENTS 100

/* Ends the program if a call failed; the launcher prints why. */
static int64_t check(int64_t code, const char *what)
{
    if (code >= 0)
        return code;
    fprintf(stderr, "board: %s: %s\n", what, tsumuji_last_error());
    (void)tsumuji_report_error(tsumuji_last_error());
    exit(1);
}

int main(int argc, char **argv)
{
    uint32_t laps = argc > 1 ? (uint32_t)atoi(argv[1]) : 200;
    int64_t behind_max = 0;
    double mine[ELEMENTS], found[ELEMENTS];
    tsumuji *node = NULL;
    tsumuji_board *board = NULL;

    check(tsumuji_open_env(NULL, &node), "open");
    int me = tsumuji_me(node), nodes = tsumuji_nodes(node);
    size_t *offsets = malloc(((size_t)nodes + 1) * sizeof *offsets);
    if (!offsets)
        return 1;
    for (int rank = 0; rank <= nodes; rank++)
        offsets[rank] = (size_t)rank * ELEMENTS;
    check(tsumuji_board_open(node, CHANNEL, offsets, nodes, &board), "open a board");
    check(tsumuji_wait_up(node, PATIENCE_US), "meet");

    /* Write, take what has come, read; nothing here waits. */
    for (uint32_t lap = 1; lap <= laps; lap++) {
        for (int i = 0; i < ELEMENTS; i++)
            mine[i] = lap;
        check(tsumuji_board_publish(board, offsets[me], mine, ELEMENTS, lap), "publish");
        check(tsumuji_board_poll(board, 0), "poll");
        for (int rank = 0; rank < nodes; rank++) {
            int64_t behind = lap - check(tsumuji_board_lap(board, rank), "lap");
            if (behind > behind_max)
                behind_max = behind;
        }
    }

    /* Until every copy here is of the last lap, and everybody says the same. A node that waits repairs what others may miss. */
    uint64_t all_are_fresh;
    while (check(tsumuji_board_wait(board, TSUMUJI_ALL, laps, REPAIR_AFTER_US), "wait") == 0)
        check(tsumuji_board_repair(board), "repair");
    check(tsumuji_barrier(node, TSUMUJI_WORLD, &all_are_fresh), "barrier");
    while (check(tsumuji_test(node, all_are_fresh), "test") == 0) {
        check(tsumuji_board_repair(board), "repair");
        check(tsumuji_board_poll(board, REPAIR_AFTER_US), "poll");
    }
    check(tsumuji_wait(node, all_are_fresh), "wait");

    int fresh = 0;
    for (int rank = 0; rank < nodes; rank++) {
        check(tsumuji_board_get(board, offsets[rank], found, ELEMENTS), "get");
        for (int i = 0; i < ELEMENTS; i++)
            fresh += found[i] == laps;
    }
    printf("node %d: %d elements of lap %u; at most %lld laps behind before\n", me, fresh, (unsigned)laps, (long long)behind_max);
    check(tsumuji_board_close(board), "close the board");
    check(tsumuji_close(node, PATIENCE_US), "close");
    free(offsets);
    return 0;
}
