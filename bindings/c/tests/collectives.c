/*
 * Collectives between the processes of a launch. Each step prints nothing when it is right; a wrong one names its line.
 */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tsumuji.h>

enum { NODES_MAX = 8, LONG = 100000, PART_MAX = 3000 };

static int me, nodes;
static tsumuji *node;

static void check(int right, int line, const char *what)
{
    if (right)
        return;
    fprintf(stderr, "collectives.c:%d: node %d: not so: %s (%s)\n", line, me, what, tsumuji_last_error());
    exit(1);
}
#define CHECK(right) check((right) ? 1 : 0, __LINE__, #right)
#define FAILS(call, code, number) CHECK((errno = 0, (call)) == (code) && errno == (number) && *tsumuji_last_error())

static void moving(void)
{
    static double data[LONG];
    int32_t all[NODES_MAX], own, parts[NODES_MAX];
    char text[NODES_MAX * NODES_MAX], mine[NODES_MAX];
    size_t counts[NODES_MAX], at;
    int root = nodes - 1;

    for (int i = 0; i < LONG; i++)
        data[i] = me == root ? i * 0.5 : -1.0;
    CHECK(tsumuji_broadcast(node, TSUMUJI_WORLD, root, data, sizeof data, NULL) == 0);
    for (int i = 0; i < LONG; i++)
        CHECK(data[i] == i * 0.5);

    for (int i = 0; i < nodes; i++)
        all[i] = 100 + i;
    CHECK(tsumuji_scatter(node, TSUMUJI_WORLD, root, me == root ? all : NULL, NULL, &own, sizeof own, NULL) == 0 && own == 100 + me);
    own = 7 * me;
    CHECK(tsumuji_gather(node, TSUMUJI_WORLD, 0, &own, sizeof own, me == 0 ? parts : NULL, NULL, NULL) == 0);
    for (int i = 0; me == 0 && i < nodes; i++)
        CHECK(parts[i] == 7 * i);
    memset(parts, 0, sizeof parts);
    CHECK(tsumuji_all_gather(node, TSUMUJI_WORLD, &own, sizeof own, parts, NULL, NULL) == 0);
    for (int i = 0; i < nodes; i++)
        CHECK(parts[i] == 7 * i);

    /* Parts of different lengths: rank i has i + 1 letters. */
    for (int i = 0; i < nodes; i++)
        counts[i] = (size_t)i + 1;
    memset(mine, 'a' + me, sizeof mine);
    CHECK(tsumuji_gather(node, TSUMUJI_WORLD, 0, mine, counts[me], text, me == 0 ? counts : NULL, NULL) == 0);
    at = 0;
    for (int i = 0; me == 0 && i < nodes; at += counts[i++])
        for (size_t j = 0; j < counts[i]; j++)
            CHECK(text[at + j] == 'a' + i);
    CHECK(tsumuji_broadcast(node, TSUMUJI_WORLD, 0, text, sizeof text, NULL) == 0);
    memset(mine, 0, sizeof mine);
    CHECK(tsumuji_scatter(node, TSUMUJI_WORLD, 0, text, counts, mine, counts[me], NULL) == 0);
    CHECK(mine[0] == 'a' + me && mine[me] == 'a' + me && (me + 1 == NODES_MAX || mine[me + 1] == 0));

    for (int i = 0; i < nodes; i++)
        all[i] = 10 * me + i;
    CHECK(tsumuji_all_to_all(node, TSUMUJI_WORLD, all, NULL, parts, NULL, sizeof own, NULL) == 0);
    for (int i = 0; i < nodes; i++)
        CHECK(parts[i] == 10 * i + me);
}

/* Parts of which some are empty, some short and some long; the root alone is told their lengths. */
static void moving_mixed(void)
{
    static char all[NODES_MAX * PART_MAX], mine[PART_MAX];
    const size_t lengths[] = {0, 5, PART_MAX};
    size_t counts[NODES_MAX], at = 0;
    int root = nodes / 2;

    for (int i = 0; i < nodes; i++)
        counts[i] = lengths[(i + 1) % 3];
    memset(mine, 'a' + me, sizeof mine);
    CHECK(tsumuji_gather(node, TSUMUJI_WORLD, root, mine, counts[me], me == root ? all : NULL, me == root ? counts : NULL, NULL) == 0);
    for (int i = 0; me == root && i < nodes; at += counts[i++])
        for (size_t j = 0; j < counts[i]; j++)
            CHECK(all[at + j] == 'a' + i);
    memset(mine, 0, sizeof mine);
    CHECK(tsumuji_scatter(node, TSUMUJI_WORLD, root, me == root ? all : NULL, me == root ? counts : NULL, mine, counts[me], NULL) == 0);
    for (size_t j = 0; j < sizeof mine; j++)
        CHECK(mine[j] == (j < counts[me] ? 'a' + me : 0));
}

#define REDUCE(ctype, type)                                                                                                  \
    do {                                                                                                                     \
        ctype values[3], sums[3];                                                                                            \
        for (int i = 0; i < 3; i++)                                                                                          \
            values[i] = (ctype)(me + i);                                                                                     \
        CHECK(tsumuji_reduce(node, TSUMUJI_WORLD, 0, values, me == 0 ? sums : NULL, 3, type, TSUMUJI_SUM, NULL) == 0);         \
        for (int i = 0; me == 0 && i < 3; i++)                                                                                \
            CHECK(sums[i] == (ctype)(nodes * (nodes - 1) / 2 + nodes * i));                                                  \
        CHECK(tsumuji_all_reduce(node, TSUMUJI_WORLD, values, 3, type, TSUMUJI_MAXIMUM, NULL) == 0);                           \
        for (int i = 0; i < 3; i++)                                                                                          \
            CHECK(values[i] == (ctype)(nodes - 1 + i));                                                                       \
    } while (0)

static void reducing(void)
{
    char raw[9 + 8 * NODES_MAX];
    double one = me + 1.0, product = 1.0, back;

    REDUCE(int8_t, TSUMUJI_INT8);
    REDUCE(uint8_t, TSUMUJI_UINT8);
    REDUCE(int16_t, TSUMUJI_INT16);
    REDUCE(uint16_t, TSUMUJI_UINT16);
    REDUCE(int32_t, TSUMUJI_INT32);
    REDUCE(uint32_t, TSUMUJI_UINT32);
    REDUCE(int64_t, TSUMUJI_INT64);
    REDUCE(uint64_t, TSUMUJI_UINT64);
    REDUCE(float, TSUMUJI_FLOAT);
    REDUCE(double, TSUMUJI_DOUBLE);
    for (int i = 1; i <= nodes; i++)
        product *= i;
    CHECK(tsumuji_all_reduce(node, TSUMUJI_WORLD, &one, 1, TSUMUJI_DOUBLE, TSUMUJI_PRODUCT, NULL) == 0 && one == product);
    /* Wherever it lies: buffers need no alignment. */
    one = me - 3.0;
    memcpy(raw + 1, &one, sizeof one);
    CHECK(tsumuji_all_reduce(node, TSUMUJI_WORLD, raw + 1, 1, TSUMUJI_DOUBLE, TSUMUJI_MINIMUM, NULL) == 0);
    memcpy(&back, raw + 1, sizeof back);
    CHECK(back == -3.0);
}

/* A function of the program's own: where the greatest value is, and which; counts its elements in the context. */
struct place {
    double value;
    int64_t rank;
};

static void greatest(void *context, const void *left, const void *right, void *result, size_t count)
{
    const struct place *x = left, *y = right;
    struct place *to = result;

    *(size_t *)context += count;
    CHECK((uintptr_t)left % sizeof(double) == 0 && (uintptr_t)right % sizeof(double) == 0);
    for (size_t i = 0; i < count; i++)
        to[i] = x[i].value >= y[i].value ? x[i] : y[i];
}

/* One whose operands may not be exchanged: affine maps v -> a v + b, one after the other; wraps. */
struct map {
    uint32_t a, b, unused;
};

static void after(void *context, const void *left, const void *right, void *result, size_t count)
{
    const struct map *first = left, *then = right;
    struct map *to = result;

    (void)context;
    for (size_t i = 0; i < count; i++) {
        struct map x = first[i], y = then[i];
        to[i].a = y.a * x.a;
        to[i].b = y.a * x.b + y.b;
        to[i].unused = 0;
    }
}

static struct map map_of(int rank, size_t i)
{
    struct map made = {2 * (uint32_t)rank + 3, (uint32_t)i + 7 * (uint32_t)rank, 0};
    return made;
}

/* Long and short, in place and to a root, waiting or not, aligned or not. */
static void own_functions(void)
{
    static struct map maps[LONG], wanted[LONG], sums[LONG];
    static char raw[1 + sizeof(struct place) * 3];
    struct place places[3];
    size_t counted = 0, lengths[] = {1, 600, 700, LONG};
    uint64_t request, total;
    tsumuji_combine by = {.size = sizeof by, .element_bytes = sizeof *places, .function = greatest, .context = &counted};

    for (int i = 0; i < 3; i++) {
        places[i].value = (double)((me + i) % nodes);
        places[i].rank = me;
    }
    memcpy(raw + 1, places, sizeof places);
    CHECK(tsumuji_all_reduce_by(node, TSUMUJI_WORLD, raw + 1, 3, &by, NULL) == 0);
    memcpy(places, raw + 1, sizeof places);
    for (int i = 0; i < 3; i++)
        CHECK(places[i].value == nodes - 1 && (places[i].rank + i) % nodes == nodes - 1);
    total = counted; /* some have nothing to combine */
    CHECK(tsumuji_all_reduce(node, TSUMUJI_WORLD, &total, 1, TSUMUJI_UINT64, TSUMUJI_SUM, NULL) == 0);
    CHECK(total >= 3 * ((uint64_t)nodes - 1));

    by.element_bytes = sizeof *maps;
    by.function = after;
    by.context = NULL;
    by.ordered = 1;
    for (size_t i = 0; i < LONG; i++) {
        wanted[i] = map_of(0, i);
        for (int rank = 1; rank < nodes; rank++) {
            struct map next = map_of(rank, i);
            after(NULL, &wanted[i], &next, &wanted[i], 1);
        }
    }
    for (int l = 0; l < 4; l++) {
        for (size_t i = 0; i < lengths[l]; i++)
            maps[i] = map_of(me, i);
        memset(sums, 0, sizeof sums);
        CHECK(tsumuji_reduce_by(node, TSUMUJI_WORLD, nodes - 1, maps, sums, lengths[l], &by, &request) == 0);
        CHECK(tsumuji_wait(node, request) == 0);
        CHECK(me != nodes - 1 || memcmp(sums, wanted, lengths[l] * sizeof *sums) == 0);
        CHECK(tsumuji_all_reduce_by(node, TSUMUJI_WORLD, maps, lengths[l], &by, NULL) == 0);
        CHECK(memcmp(maps, wanted, lengths[l] * sizeof *maps) == 0);
    }
}

/* What is counted, and where the others are. */
static void seen(void)
{
    tsumuji_collective_counters counted;
    tsumuji_remote_flow flows[NODES_MAX];

    CHECK(tsumuji_get_collective_counters(node, &counted, sizeof counted) == 0 && counted.operations > 0 && counted.overrun == 0);
    for (int i = 0; i < nodes; i++)
        CHECK(tsumuji_address(node, i) && *tsumuji_address(node, i));
    CHECK(tsumuji_address(node, nodes) == NULL && errno == ENXIO);
    CHECK(nodes == 1 || tsumuji_congestion_differs(node, (me + 1) % nodes) == 0);
    if (me == 0 && nodes > 1) {
        CHECK(tsumuji_get_remote_flows(node, nodes - 1, flows, sizeof *flows, NODES_MAX, 60000000) == nodes - 1);
        CHECK(flows[0].peer == 0 && flows[0].flow.up == 1 && flows[nodes - 2].peer == (uint64_t)nodes - 2);
    }
    CHECK(tsumuji_forbid_direct_reads(node) == 0);
    CHECK(tsumuji_barrier(node, TSUMUJI_WORLD, NULL) == 0);
}

/* Two operations under way, ended in the other order, and the program's own messages between them. */
static void without_waiting(void)
{
    static float sums[LONG];
    uint64_t first = 0, second = 0, third = 0, value = 5;
    char got[16];

    for (int i = 0; i < LONG; i++)
        sums[i] = (float)(me + 1);
    if (me == 0)
        value = 42;
    CHECK(tsumuji_all_reduce(node, TSUMUJI_WORLD, sums, LONG, TSUMUJI_FLOAT, TSUMUJI_SUM, &first) == 0 && first > 0);
    CHECK(tsumuji_broadcast(node, TSUMUJI_WORLD, 0, &value, sizeof value, &second) == 0 && second != first);
    CHECK(tsumuji_barrier(node, TSUMUJI_WORLD, &third) == 0);
    if (nodes > 1) {
        CHECK(tsumuji_send(node, (me + 1) % nodes, TSUMUJI_DEFAULT_CHANNEL, "between", 8) == 0);
        while (tsumuji_try_recv(node, got, sizeof got, NULL) != 8)
            CHECK(tsumuji_progress(node) >= 0);
        CHECK(strcmp(got, "between") == 0);
    }
    CHECK(tsumuji_wait(node, third) == 0);
    while (tsumuji_test(node, second) == 0)
        continue;
    CHECK(tsumuji_test(node, second) == 1 && tsumuji_wait(node, second) == 0 && value == 42);
    CHECK(tsumuji_wait(node, first) == 0);
    for (int i = 0; i < LONG; i++)
        CHECK(sums[i] == (float)(nodes * (nodes + 1) / 2));
    FAILS(tsumuji_wait(node, first), TSUMUJI_EINVAL, EINVAL);
    FAILS(tsumuji_test(node, 0), TSUMUJI_EINVAL, EINVAL);
}

static void groups(void)
{
    int mine[NODES_MAX], count = 0;
    int64_t sum = me;

    for (int i = nodes - 1; i >= 0; i--) /* ranks against the order of nodes */
        if (i % 2 == me % 2)
            mine[count++] = i;
    int group = tsumuji_group(node, mine, (size_t)count, 9);
    CHECK(group > 0 && tsumuji_group_size(node, group) == count && mine[tsumuji_group_rank(node, group)] == me);
    CHECK(tsumuji_all_reduce(node, group, &sum, 1, TSUMUJI_INT64, TSUMUJI_SUM, NULL) == 0);
    for (int i = 0; i < count; i++)
        sum -= mine[i];
    CHECK(sum == 0);
    FAILS(tsumuji_group(node, mine, (size_t)count, 9), TSUMUJI_EINVAL, EINVAL);
    FAILS(tsumuji_group(node, NULL, 1, 1), TSUMUJI_EINVAL, EINVAL);
    FAILS(tsumuji_group(node, mine, 1000000, 1), TSUMUJI_EINVAL, EINVAL);
    const int unknown[3] = {70000, -1, nodes};
    for (int i = 0; i < 3; i++)
        FAILS(tsumuji_group(node, &unknown[i], 1, 1), TSUMUJI_EUNKNOWN, ENXIO);
    CHECK(tsumuji_group_close(node, group) == 0);
    FAILS(tsumuji_group_rank(node, group), TSUMUJI_EINVAL, EINVAL);
    FAILS(tsumuji_group_size(node, -1), TSUMUJI_EINVAL, EINVAL);
    FAILS(tsumuji_barrier(node, 77, NULL), TSUMUJI_EINVAL, EINVAL);
}

/* Refused before anything is sent, so that the group stays sound. */
static void senseless(void)
{
    double values[4] = {0.0};
    size_t huge[NODES_MAX];

    for (int i = 0; i < NODES_MAX; i++)
        huge[i] = SIZE_MAX / 2 + 1;
    FAILS(tsumuji_broadcast(NULL, TSUMUJI_WORLD, 0, values, 8, NULL), TSUMUJI_EINVAL, EINVAL);
    FAILS(tsumuji_broadcast(node, TSUMUJI_WORLD, 0, NULL, 8, NULL), TSUMUJI_EINVAL, EINVAL);
    FAILS(tsumuji_broadcast(node, TSUMUJI_WORLD, nodes, values, 8, NULL), TSUMUJI_EINVAL, EINVAL);
    FAILS(tsumuji_broadcast(node, TSUMUJI_WORLD, -1, values, 8, NULL), TSUMUJI_EINVAL, EINVAL);
    FAILS(tsumuji_broadcast(node, TSUMUJI_WORLD, 0, values, SIZE_MAX, NULL), TSUMUJI_EINVAL, EINVAL);
    FAILS(tsumuji_all_reduce(node, TSUMUJI_WORLD, values, 1, 0, TSUMUJI_SUM, NULL), TSUMUJI_EINVAL, EINVAL);
    FAILS(tsumuji_all_reduce(node, TSUMUJI_WORLD, values, 1, TSUMUJI_DOUBLE, 9, NULL), TSUMUJI_EINVAL, EINVAL);
    FAILS(tsumuji_all_reduce(node, TSUMUJI_WORLD, values, SIZE_MAX / 4, TSUMUJI_DOUBLE, TSUMUJI_SUM, NULL), TSUMUJI_EINVAL, EINVAL);
    FAILS(tsumuji_all_gather(node, TSUMUJI_WORLD, values, 8, values, NULL, NULL), TSUMUJI_EINVAL, EINVAL); /* overlap */
    FAILS(tsumuji_all_gather(node, TSUMUJI_WORLD, values, 8, values, huge, NULL), TSUMUJI_EINVAL, EINVAL);
    CHECK(tsumuji_barrier(node, TSUMUJI_WORLD, NULL) == 0);
}

/* The library of a node that waits in a barrier answers for it. */
static void flows_of_others(void)
{
    tsumuji_flow flow;

    if (me == 0) {
        CHECK(tsumuji_get_remote_flow(node, nodes - 1, 0, &flow, sizeof flow, 60000000) == 1 && flow.up == 1 && flow.rtt_ns > 0);
        FAILS(tsumuji_get_remote_flow(node, nodes - 1, nodes, &flow, sizeof flow, 0), TSUMUJI_EUNKNOWN, ENXIO);
    }
    CHECK(tsumuji_barrier(node, TSUMUJI_WORLD, NULL) == 0);
}

/* The last node leaves; the others are told who it was. */
static void death(void)
{
    uint64_t request;
    double value = 1.0;

    CHECK(tsumuji_barrier(node, TSUMUJI_WORLD, NULL) == 0);
    if (me == nodes - 1)
        return;
    int begun = tsumuji_all_reduce(node, TSUMUJI_WORLD, &value, 1, TSUMUJI_DOUBLE, TSUMUJI_SUM, &request);
    if (begun < 0) /* its death was known already */
        CHECK(begun == TSUMUJI_EPEER && errno == ECONNRESET);
    else
        FAILS(tsumuji_wait(node, request), TSUMUJI_EPEER, ECONNRESET);
    FAILS(tsumuji_barrier(node, TSUMUJI_WORLD, NULL), TSUMUJI_EPEER, ECONNRESET);
}

int main(void)
{
    if (tsumuji_open_env(NULL, &node) < 0) {
        fprintf(stderr, "collectives: %s\n", tsumuji_last_error());
        return 1;
    }
    me = tsumuji_me(node);
    nodes = tsumuji_nodes(node);
    CHECK(nodes <= NODES_MAX);
    moving();
    moving_mixed();
    reducing();
    own_functions();
    seen();
    own_functions();
    without_waiting();
    groups();
    senseless();
    if (nodes > 1) {
        flows_of_others();
        death();
    }
    return tsumuji_close(node, 1000000) < 0;
}
