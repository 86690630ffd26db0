/*
 * Halo exchange: the heat equation on a rod, whose cells are divided among the nodes. Each step needs one value of each neighbour.
 *
 *     cc -o heat examples/c/heat.c $(pkg-config --cflags --libs tsumuji) -lm
 *     tsumuji launch -n 4 -- ./heat 500
 *
 * The argument is the number of steps. A sine stays a sine in the explicit scheme, and shrinks by the same factor in each step: so the
 * nodes know what must come out. Node 0 prints "400 cells, 500 steps: error 1.1e-14".
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tsumuji.h>

#define PATIENCE_US (30 * INT64_C(1000000))
/* Of each node. */
#define CELLS 100
/* Time step over the square of a cell's width; the scheme is stable up to 1/2. */
#define RATIO 0.4
/* Rounding errors of some thousand steps are far below this. */
#define ERROR_MAX 1e-10

/* Ends the program if a call failed; the launcher prints why. */
static int64_t check(int64_t code, const char *what)
{
    if (code >= 0)
        return code;
    fprintf(stderr, "heat: %s: %s\n", what, tsumuji_last_error());
    (void)tsumuji_report_error(tsumuji_last_error());
    exit(1);
}

static double step(const double *heat, int cell)
{
    return heat[cell] + RATIO * (heat[cell - 1] - 2 * heat[cell] + heat[cell + 1]);
}

int main(int argc, char **argv)
{
    /* Cells 0 and CELLS + 1 are the neighbours', or the cold ends of the rod. */
    static double heat[CELLS + 2], next[CELLS + 2];
    int steps = argc > 1 ? atoi(argv[1]) : 500;
    tsumuji *node = NULL;

    check(tsumuji_open_env(NULL, &node), "open");
    int me = tsumuji_me(node), nodes = tsumuji_nodes(node);
    int neighbours[2] = { me - 1, me + 1 < nodes ? me + 1 : -1 };
    const int edge[2] = { 1, CELLS }, halo[2] = { 0, CELLS + 1 };
    double width = acos(-1.0) / (nodes * CELLS + 1);
    for (int cell = 1; cell <= CELLS; cell++)
        heat[cell] = sin(width * (me * CELLS + cell));

    for (int done = 0; done < steps; done++) {
        check(tsumuji_cork(node), "batch");
        for (int side = 0; side < 2; side++)
            if (neighbours[side] >= 0)
                check(tsumuji_send(node, neighbours[side], TSUMUJI_DEFAULT_CHANNEL, &heat[edge[side]], sizeof(double)), "send");
        check(tsumuji_uncork(node), "batch"); /* both leave */
        /* Values travel while the cells that do not need them are computed. */
        for (int cell = 2; cell < CELLS; cell++)
            next[cell] = step(heat, cell);
        for (int side = 0; side < 2; side++)
            if (neighbours[side] >= 0)
                check(tsumuji_recv_on(node, -1, neighbours[side], &heat[halo[side]], sizeof(double), NULL, PATIENCE_US), "receive");
        next[1] = step(heat, 1);
        next[CELLS] = step(heat, CELLS);
        memcpy(&heat[1], &next[1], CELLS * sizeof(double));
    }

    double factor = pow(1 - 4 * RATIO * pow(sin(width / 2), 2), steps), worst = 0;
    for (int cell = 1; cell <= CELLS; cell++)
        worst = fmax(worst, fabs(heat[cell] - factor * sin(width * (me * CELLS + cell))));
    check(tsumuji_all_reduce(node, TSUMUJI_WORLD, &worst, 1, TSUMUJI_DOUBLE, TSUMUJI_MAXIMUM, NULL), "reduce");
    if (me == 0)
        printf("%d cells, %d steps: error %.1e\n", nodes * CELLS, steps, worst);
    check(tsumuji_close(node, PATIENCE_US), "close");
    return worst > ERROR_MAX;
}
