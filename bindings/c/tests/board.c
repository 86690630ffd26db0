/*
 * Boards in one process: two handles over shared memory, driven in turn. Elements, laps and staleness are what was published, other channels
 * lose nothing, and what makes no sense is refused. Each step prints nothing when it is right; a wrong one names its line.
 */
#define _POSIX_C_SOURCE 200809L
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <string.h>

#include <tsumuji.h>

#include "plain.h"

#define CHANNEL 5
#define OTHER 6
#define REFUSED(call) FAILS(call, TSUMUJI_EINVAL, EINVAL)

static const size_t offsets[] = { 0, 3, 7 };
static tsumuji *a, *b;
static tsumuji_board *of_a, *of_b;
static tsumuji_options *options;
static int memory;

static tsumuji *opened(int node)
{
    tsumuji *handle = NULL;

    CHECK(tsumuji_open_shm(memory, 2, node, options, &handle) == 0);
    return handle;
}

static void meet(void)
{
    while (tsumuji_is_up(a, 1) == 0 || tsumuji_is_up(b, 0) == 0)
        CHECK(tsumuji_progress(a) >= 0 && tsumuji_progress(b) >= 0);
}

static void open_both(void)
{
    options = tsumuji_options_new();
    CHECK(tsumuji_options_set(options, "idle", "sleep") == 0);
    CHECK(tsumuji_options_set(options, "metrics", "off") == 0);
    CHECK(tsumuji_options_set(options, "progress", "program") == 0); /* so that nothing moves but by the calls below */
    memory = tsumuji_shm_create(2);
    a = opened(0);
    b = opened(1);
    meet();
}

static void opening(void)
{
    const size_t gap[] = { 1, 3, 7 }, back[] = { 0, 7, 3 }, vast[] = { 0, 3, SIZE_MAX }, long_[] = { 0, 3, (size_t)1 << 32 };
    tsumuji_board *none = (tsumuji_board *)&none;

    REFUSED(tsumuji_board_open(NULL, CHANNEL, offsets, 2, &none));
    REFUSED(tsumuji_board_open(a, CHANNEL, offsets, 2, NULL));
    REFUSED(tsumuji_board_open(a, CHANNEL, NULL, 2, &none));
    CHECK(none == NULL);
    REFUSED(tsumuji_board_open(a, CHANNEL, gap, 2, &none));
    REFUSED(tsumuji_board_open(a, CHANNEL, back, 2, &none));
    REFUSED(tsumuji_board_open(a, CHANNEL, vast, 2, &none));
    REFUSED(tsumuji_board_open(a, CHANNEL, long_, 2, &none));
    REFUSED(tsumuji_board_open(a, CHANNEL, offsets, 3, &none)); /* there are two nodes */
    REFUSED(tsumuji_board_open(a, CHANNEL, offsets, 0, &none));
    REFUSED(tsumuji_board_open(a, CHANNEL, offsets, INT_MIN, &none));
    REFUSED(tsumuji_board_open(b, CHANNEL, offsets, 1, &none)); /* node 1 is not among them */
    REFUSED(tsumuji_board_open(a, -1, offsets, 2, &none));
    REFUSED(tsumuji_board_open(a, TSUMUJI_CHANNEL_IDS, offsets, 2, &none));
    CHECK(tsumuji_open_channel(a, OTHER, 0, NULL) == 0);
    REFUSED(tsumuji_board_open(a, OTHER, offsets, 2, &none));
    CHECK(tsumuji_close_channel(a, OTHER) == 0);
    CHECK(none == NULL);
    CHECK(tsumuji_board_open(a, CHANNEL, offsets, 2, &of_a) == 0 && of_a);
    REFUSED(tsumuji_board_open(a, CHANNEL, offsets, 2, &none));
}

/* Values arrive also where the receiver opens its board later, and from memory without alignment. */
static void values(void)
{
    const double first[] = { 1.5, -2, 3 };
    double found[7] = { 9, 9, 9, 9, 9, 9, 9 };
    char bytes[1 + sizeof found];

    CHECK(tsumuji_board_lap(of_a, 0) == 0 && tsumuji_board_staleness(of_a, 0) == TSUMUJI_EAGAIN);
    memcpy(bytes + 1, first, sizeof first);
    CHECK(tsumuji_board_publish(of_a, 0, (const double *)(const void *)(bytes + 1), 3, 1) == 0);
    CHECK(tsumuji_progress(b) >= 0);
    CHECK(tsumuji_board_open(b, CHANNEL, offsets, 2, &of_b) == 0);
    CHECK(tsumuji_board_lap(of_b, 0) == 0);
    CHECK(tsumuji_board_wait(of_b, 0, 1, 0) == 1);
    CHECK(tsumuji_board_lap(of_b, 0) == 1 && tsumuji_board_staleness(of_b, 0) == 0 && tsumuji_board_lap(of_a, 0) == 1);
    CHECK(tsumuji_board_get(of_b, 0, found, 7) == 0);
    CHECK(memcmp(found, first, sizeof first) == 0 && found[3] == 0 && found[6] == 0);
    CHECK(tsumuji_board_get(of_b, 1, (double *)(void *)(bytes + 1), 2) == 0 && memcmp(bytes + 1, first + 1, 2 * sizeof *first) == 0);
    CHECK(tsumuji_board_get(of_b, 7, NULL, 0) == 0 && tsumuji_board_publish(of_a, 3, NULL, 0, 1) == 0);
}

/* A lap that is published in pieces is stale until all have come; what was only written comes by a repair. */
static void laps(void)
{
    double found[3];
    const double two[] = { 20, 21 }, four[] = { 4, 4, 4, 4 };

    CHECK(tsumuji_board_wait(of_b, TSUMUJI_ALL, 2, 1000) == 0);
    CHECK(tsumuji_board_publish(of_a, 0, two, 2, 5) == 0 && tsumuji_board_poll(of_b, WAIT_US) > 0);
    CHECK(tsumuji_board_lap(of_b, 0) == 5 && tsumuji_board_staleness(of_b, 0) == 4);
    CHECK(tsumuji_board_wait(of_b, 0, 1, 0) == 1 && tsumuji_board_wait(of_b, 0, 5, 1000) == 0);
    CHECK(tsumuji_board_publish(of_a, 2, NULL, 1, 5) == 0);
    CHECK(tsumuji_board_wait(of_b, TSUMUJI_ALL, 5, WAIT_US) == 1 && tsumuji_board_staleness(of_b, 0) == 0);
    CHECK(tsumuji_board_get(of_b, 0, found, 3) == 0 && found[0] == 20 && found[1] == 21 && found[2] == 3);

    CHECK(tsumuji_board_write(of_b, 3, four, 4, 7) == 0 && tsumuji_board_lap(of_b, 1) == 7);
    CHECK(tsumuji_board_wait(of_a, 1, 1, 1000) == 0);
    CHECK(tsumuji_board_repair(of_b) == 0 && tsumuji_board_wait(of_a, TSUMUJI_ALL, 7, WAIT_US) == 1);
    CHECK(tsumuji_board_get(of_a, 4, found, 3) == 0 && found[0] == 4 && found[2] == 4);
}

/* NaN is a value; no other node takes it. What is no newer is refused, too, and counted. */
static void drops(void)
{
    const double nan_[] = { NAN, 1, 2 }, next[] = { 0, 1, 2 };
    double found[1];
    tsumuji_board_drops counted;

    CHECK(tsumuji_board_get_drops(of_b, &counted, sizeof counted) == 0 && counted.not_finite == 0 && counted.not_newer == 0);
    CHECK(tsumuji_board_publish(of_a, 0, nan_, 3, 6) == 0 && tsumuji_board_poll(of_b, WAIT_US) > 0);
    CHECK(tsumuji_board_get(of_a, 0, found, 1) == 0 && isnan(found[0]) && tsumuji_board_lap(of_b, 0) == 5);
    CHECK(tsumuji_board_publish(of_a, 0, next, 3, 7) == 0 && tsumuji_board_wait(of_b, 0, 7, WAIT_US) == 1);
    CHECK(tsumuji_board_repair(of_a) == 0 && tsumuji_board_poll(of_b, WAIT_US) > 0);
    memset(&counted, 0xff, sizeof counted);
    CHECK(tsumuji_board_get_drops(of_b, &counted, sizeof counted) == 0);
    CHECK(counted.not_finite == 1 && counted.not_newer == 1 && counted.not_owner + counted.other_incarnation + counted.malformed == 0);
    REFUSED(tsumuji_board_get_drops(of_b, NULL, sizeof counted));
    REFUSED(tsumuji_board_get_drops(of_b, &counted, 0));
}

static int called;

static void on_message(void *context, const tsumuji_message *message)
{
    (void)message;
    called++;
    FAILS(tsumuji_board_poll(context, 0), TSUMUJI_EBUSY, EBUSY);
    FAILS(tsumuji_board_close(context), TSUMUJI_EBUSY, EBUSY);
}

static void on_datagram(void *context, const tsumuji_datagram *datagram)
{
    (void)context;
    CHECK(datagram->channel_id == OTHER);
    called++;
}

/* A board takes nothing from other receivers, and they nothing from it. */
static void others(void)
{
    char text[8] = "";
    const double next[] = { 8, 8, 8 };
    tsumuji_datagram datagram = { .data = "data", .bytes = 5, .channel_id = OTHER };
    tsumuji_handler handler = { .size = sizeof handler, .context = of_b, .message = on_message, .datagram = on_datagram };
    uint64_t post;

    CHECK(tsumuji_send(a, 1, TSUMUJI_DEFAULT_CHANNEL, "hello", 6) == 0 && tsumuji_send_datagram(a, 1, &datagram, -1) == 0);
    CHECK(tsumuji_send(a, 1, tsumuji_channel_of(TSUMUJI_ORDERED, TSUMUJI_NORMAL, CHANNEL), "dropped", 8) == 0);
    CHECK(tsumuji_board_publish(of_a, 0, next, 3, 8) == 0 && tsumuji_board_wait(of_b, 0, 8, WAIT_US) == 1);
    CHECK(tsumuji_recv(b, text, sizeof text, NULL, WAIT_US) == 6 && strcmp(text, "hello") == 0);
    CHECK(tsumuji_recv_datagram(b, -1, text, sizeof text, NULL, WAIT_US) == 5 && strcmp(text, "data") == 0);
    CHECK(tsumuji_try_recv(b, text, sizeof text, NULL) == TSUMUJI_EAGAIN);

    /* Updates of three laps come while others receive: the newest waits. */
    CHECK(tsumuji_send(a, 1, TSUMUJI_DEFAULT_CHANNEL, "hello", 6) == 0 && tsumuji_send_datagram(a, 1, &datagram, -1) == 0);
    for (uint32_t lap = 9; lap <= 11; lap++)
        CHECK(tsumuji_board_publish(of_a, 0, next, 3, lap) == 0);
    while (called < 2)
        CHECK(tsumuji_poll(b, &handler, WAIT_US) >= 0);
    CHECK(tsumuji_recv_datagram(b, -1, text, sizeof text, NULL, 1000) == TSUMUJI_ETIMEDOUT);
    CHECK(tsumuji_board_lap(of_b, 0) == 8);
    CHECK(tsumuji_board_wait(of_b, 0, 11, 0) == 1 && tsumuji_board_lap(of_b, 0) == 11);

    REFUSED(tsumuji_recv_datagram(b, CHANNEL, text, sizeof text, NULL, 0));
    REFUSED(tsumuji_recv_on(b, CHANNEL, -1, text, sizeof text, NULL, 0));
    REFUSED(tsumuji_ready_on(b, CHANNEL, -1, NULL, 0));
    REFUSED(tsumuji_poll_on(b, CHANNEL, &handler, 0));
    REFUSED(tsumuji_post(b, CHANNEL, -1, text, sizeof text, &post));
    REFUSED(tsumuji_open_channel(b, CHANNEL, 0, NULL));
    REFUSED(tsumuji_close_channel(b, CHANNEL));
}

/* A frame that no board would send changes nothing. */
static void forged(void)
{
    double value = 1;
    tsumuji_datagram datagram = { .data = &value, .bytes = sizeof value, .channel_id = CHANNEL, .lap = 99 };
    tsumuji_board_drops counted;

    datagram.key = 3; /* b's own */
    CHECK(tsumuji_send_datagram(a, 1, &datagram, -1) == 0);
    datagram.key = 0;
    datagram.epoch = 1;
    CHECK(tsumuji_send_datagram(a, 1, &datagram, -1) == 0 && tsumuji_board_poll(of_b, WAIT_US) > 0);
    datagram.epoch = 0;
    datagram.bytes = 7;
    CHECK(tsumuji_send_datagram(a, 1, &datagram, -1) == 0);
    do {
        CHECK(tsumuji_board_poll(of_b, WAIT_US) > 0);
        CHECK(tsumuji_board_get_drops(of_b, &counted, sizeof counted) == 0);
    } while (counted.not_owner + counted.malformed < 3);
    CHECK(counted.not_owner == 1 && counted.malformed == 2 && tsumuji_board_lap(of_b, 0) == 11 && tsumuji_board_lap(of_b, 1) == 7);
}

static void *other_thread(void *board)
{
    FAILS(tsumuji_board_poll(board, 0), TSUMUJI_ETHREAD, EPERM);
    FAILS(tsumuji_board_close(board), TSUMUJI_ETHREAD, EPERM);
    return NULL;
}

static void refusals(void)
{
    double data[8] = { 0 };
    pthread_t thread;

    REFUSED(tsumuji_board_publish(of_a, 0, data, 3, 0));            /* laps count from 1 */
    REFUSED(tsumuji_board_publish(of_a, 0, data, 3, 10));           /* laps do not go back */
    REFUSED(tsumuji_board_publish(of_a, 0, data, 4, 12));           /* one of b's */
    REFUSED(tsumuji_board_publish(of_b, 2, data, 2, 12));           /* one of a's */
    REFUSED(tsumuji_board_publish(of_b, 3, data, 5, 12));           /* beyond the end */
    REFUSED(tsumuji_board_publish(of_b, SIZE_MAX, data, 2, 12));
    REFUSED(tsumuji_board_publish(of_b, 3, data, SIZE_MAX, 12));
    REFUSED(tsumuji_board_publish(of_b, 3, NULL, SIZE_MAX / 8 + 2, 12));
    REFUSED(tsumuji_board_write(of_a, 0, NULL, 3, 12));
    REFUSED(tsumuji_board_write(of_a, 3, data, 1, 12));
    REFUSED(tsumuji_board_write(of_a, 0, data, 1, 0));
    CHECK(tsumuji_board_lap(of_a, 0) == 11 && tsumuji_board_lap(of_b, 1) == 7);
    REFUSED(tsumuji_board_get(of_a, 0, NULL, 1));
    REFUSED(tsumuji_board_get(of_a, 0, data, 8));
    REFUSED(tsumuji_board_get(of_a, 8, data, 0));
    REFUSED(tsumuji_board_get(of_a, 1, data, SIZE_MAX));
    REFUSED(tsumuji_board_wait(of_a, 1, 0, 0));
    FAILS(tsumuji_board_wait(of_a, 0, 1, WAIT_US), TSUMUJI_EUNKNOWN, ENXIO); /* itself */
    FAILS(tsumuji_board_wait(of_a, 2, 1, WAIT_US), TSUMUJI_EUNKNOWN, ENXIO);
    FAILS(tsumuji_board_lap(of_a, 2), TSUMUJI_EUNKNOWN, ENXIO);
    FAILS(tsumuji_board_lap(of_a, -1), TSUMUJI_EUNKNOWN, ENXIO);
    FAILS(tsumuji_board_staleness(of_a, INT_MAX), TSUMUJI_EUNKNOWN, ENXIO);

    tsumuji_board *wrong[] = { NULL, (tsumuji_board *)(void *)options, (tsumuji_board *)(void *)a };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        REFUSED(tsumuji_board_publish(wrong[i], 0, data, 1, 1));
        REFUSED(tsumuji_board_write(wrong[i], 0, data, 1, 1));
        REFUSED(tsumuji_board_repair(wrong[i]));
        REFUSED(tsumuji_board_poll(wrong[i], 0));
        REFUSED(tsumuji_board_wait(wrong[i], 1, 1, 0));
        REFUSED(tsumuji_board_get(wrong[i], 0, data, 1));
        REFUSED(tsumuji_board_lap(wrong[i], 0));
        REFUSED(tsumuji_board_staleness(wrong[i], 0));
        REFUSED(tsumuji_board_get_drops(wrong[i], NULL, 8));
        CHECK(tsumuji_board_close(wrong[i]) == (wrong[i] ? TSUMUJI_EINVAL : 0));
    }
    CHECK(pthread_create(&thread, NULL, other_thread, of_a) == 0 && pthread_join(thread, NULL) == 0);
}

/* A second board of a handle, one without elements for a node, and one that is closed and opened again. */
static void several(void)
{
    const size_t all_of_a[] = { 0, 2, 2 };
    const double both[] = { 1, 2 };
    tsumuji_board *x, *y;
    double found[2];

    CHECK(tsumuji_board_open(a, OTHER, all_of_a, 2, &x) == 0 && tsumuji_board_open(b, OTHER, all_of_a, 2, &y) == 0);
    CHECK(tsumuji_board_publish(x, 0, both, 2, 1) == 0 && tsumuji_board_wait(y, TSUMUJI_ALL, 1, WAIT_US) == 1);
    CHECK(tsumuji_board_get(y, 0, found, 2) == 0 && memcmp(found, both, sizeof both) == 0);
    CHECK(tsumuji_board_wait(x, TSUMUJI_ALL, 1, 0) == 1 && tsumuji_board_staleness(x, 1) == 0 && tsumuji_board_lap(x, 1) == 0);
    REFUSED(tsumuji_board_publish(y, 2, both, 1, 1));
    CHECK(tsumuji_board_close(y) == 0);
    REFUSED(tsumuji_board_close(y));
    REFUSED(tsumuji_board_poll(y, 0));
    CHECK(tsumuji_board_open(b, OTHER, all_of_a, 2, &y) == 0);
    CHECK(tsumuji_board_repair(x) == 0 && tsumuji_board_wait(y, 0, 1, WAIT_US) == 1);
    CHECK(tsumuji_board_close(x) == 0 && tsumuji_board_close(y) == 0);
    CHECK(tsumuji_board_lap(of_b, 0) == 11);
}

/* What a node published last stays when it ends; its successor begins with lap 1. */
static void death(void)
{
    const double last[] = { 5, 5, 5 }, first[] = { 6, 6, 6 };
    double found[3];

    CHECK(tsumuji_board_publish(of_a, 0, last, 3, 12) == 0);
    (void)tsumuji_close(a, 0); /* it may have sent what b has not acknowledged */
    FAILS(tsumuji_board_poll(of_a, 0), TSUMUJI_EINVAL, EBADF);
    FAILS(tsumuji_board_lap(of_a, 0), TSUMUJI_EINVAL, EBADF);
    CHECK(tsumuji_board_close(of_a) == 0);
    REFUSED(tsumuji_board_close(of_a));
    CHECK(tsumuji_board_wait(of_b, 0, 12, WAIT_US) == 1);
    FAILS(tsumuji_board_wait(of_b, 0, 13, WAIT_US), TSUMUJI_EPEER, ECONNRESET);
    FAILS(tsumuji_board_wait(of_b, TSUMUJI_ALL, 13, -1), TSUMUJI_EPEER, ECONNRESET);
    CHECK(tsumuji_is_dead(b, 0) == 1 && tsumuji_board_lap(of_b, 0) == 12);
    CHECK(tsumuji_board_publish(of_b, 3, NULL, 4, 8) >= 0); /* nobody is there */

    a = opened(0);
    CHECK(tsumuji_reconnect(b, 0) == 0);
    meet();
    CHECK(tsumuji_board_open(a, CHANNEL, offsets, 2, &of_a) == 0);
    CHECK(tsumuji_board_publish(of_a, 0, first, 3, 1) == 0);
    while (tsumuji_board_lap(of_b, 0) != 1)
        CHECK(tsumuji_board_poll(of_b, WAIT_US) > 0);
    CHECK(tsumuji_board_get(of_b, 0, found, 3) == 0 && memcmp(found, first, sizeof first) == 0);
    CHECK(tsumuji_board_close(of_a) == 0);
    CHECK(tsumuji_close(b, 0) <= 0 && tsumuji_board_close(of_b) == 0 && tsumuji_close(a, 0) <= 0);
}

int main(void)
{
    open_both();
    opening();
    values();
    laps();
    drops();
    others();
    forged();
    refusals();
    several();
    death();
    tsumuji_options_free(options);
    close(memory);
    puts("board: all right");
    return 0;
}
