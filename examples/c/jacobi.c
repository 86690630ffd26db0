/*
 * An iteration of one's own on the board: Jacobi's method without steps in common. Each node relaxes its rows of a linear system with whatever
 * values of the others have come, and tells its own. From time to time all gather, and judge the answer by the data.
 *
 *     cc -o jacobi examples/c/jacobi.c $(pkg-config --cflags --libs tsumuji) -lm
 *     tsumuji launch -n 4 -- ./jacobi 1e-10
 *
 * The argument is the residual to reach. Node 0 prints, for example, "400 rows: residual 9.1e-11, error 2.6e-11, after 220 laps". With
 * --loss 0.2 it takes more laps, and ends all the same.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <tsumuji.h>

#define PATIENCE_US (30 * INT64_C(1000000))
/* Of the board; 0 is the id of the channel for messages. */
#define CHANNEL 1
/* Of each node. */
#define ROWS 100
/* Laps between two judgements: enough that these cost little. */
#define LAPS 20
/* A residual that is not reached by then never will be. */
#define LAPS_MAX (500 * LAPS)
/* On the diagonal; both neighbours have -1. Above 2 every order of relaxations converges. */
#define DIAGONAL 4.0

/* Ends the program if a call failed; the launcher prints why. */
static int64_t check(int64_t code, const char *what)
{
    if (code >= 0)
        return code;
    fprintf(stderr, "jacobi: %s: %s\n", what, tsumuji_last_error());
    (void)tsumuji_report_error(tsumuji_last_error());
    exit(1);
}

/* What a row lacks, b - Ax. b is such that the answer is 1 everywhere: A times ones. */
static double residual(const double *x, size_t row, size_t rows)
{
    double left = row > 0 ? x[row - 1] - 1 : 0, right = row + 1 < rows ? x[row + 1] - 1 : 0;

    return DIAGONAL * (1 - x[row]) + left + right;
}

int main(int argc, char **argv)
{
    double wanted = argc > 1 ? atof(argv[1]) : 1e-10, worst = INFINITY, error = 0, mine[ROWS] = { 0 };
    tsumuji *node = NULL;
    tsumuji_board *board = NULL;
    uint32_t lap = 0;

    check(tsumuji_open_env(NULL, &node), "open");
    int me = tsumuji_me(node), nodes = tsumuji_nodes(node);
    size_t rows = (size_t)nodes * ROWS, first = (size_t)me * ROWS;
    size_t *offsets = malloc(((size_t)nodes + 1) * sizeof *offsets);
    double *x = malloc(rows * sizeof *x);
    if (!offsets || !x)
        return 1;
    for (int rank = 0; rank <= nodes; rank++)
        offsets[rank] = (size_t)rank * ROWS;
    check(tsumuji_board_open(node, CHANNEL, offsets, nodes, &board), "open a board");

    while (worst > wanted && lap < LAPS_MAX) {
        for (int i = 0; i < LAPS; i++) {
            check(tsumuji_board_poll(board, 0), "poll"); /* what has come; it never waits */
            check(tsumuji_board_get(board, 0, x, rows), "get");
            for (size_t row = 0; row < ROWS; row++)
                mine[row] = x[first + row] + residual(x, first + row, rows) / DIAGONAL;
            check(tsumuji_board_publish(board, first, mine, ROWS, ++lap), "publish");
        }
        /* Copies may be behind and prove nothing: what each node has itself travels reliably, and all judge alike. */
        check(tsumuji_all_gather(node, TSUMUJI_WORLD, mine, sizeof mine, x, NULL, NULL), "gather");
        worst = error = 0;
        for (size_t row = 0; row < rows; row++) {
            worst = fmax(worst, fabs(residual(x, row, rows)));
            error = fmax(error, fabs(x[row] - 1));
        }
    }
    if (me == 0)
        printf("%zu rows: residual %.1e, error %.1e, after %u laps\n", rows, worst, error, (unsigned)lap);
    check(tsumuji_board_close(board), "close the board");
    check(tsumuji_close(node, PATIENCE_US), "close");
    free(offsets);
    free(x);
    return worst > wanted;
}
