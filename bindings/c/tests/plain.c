/*
 * The plain API in one process: two handles over shared memory, driven in turn, so that every run does the same. Each step prints
 * nothing when it is right; a wrong one names its line.
 */
#define _POSIX_C_SOURCE 200809L
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include <suci.h>
#include <tsumuji.h>

#include "plain.h"

static tsumuji *a, *b;

static void open_both(void)
{
    tsumuji_options *options = tsumuji_options_new();
    CHECK(tsumuji_options_set(options, "idle", "sleep") == 0);
    CHECK(tsumuji_options_set(options, "send-queue", "64K") == 0);
    CHECK(tsumuji_options_set(options, "metrics", "local") == 0);
    CHECK(tsumuji_options_set(options, "progress", "program") == 0); /* so that nothing moves but by the calls below */
    FAILS(tsumuji_options_set(options, "progress", "nobody"), TSUMUJI_EINVAL, EINVAL);
    FAILS(tsumuji_options_set(options, "idle", "never"), TSUMUJI_EINVAL, EINVAL);
    CHECK(strstr(tsumuji_last_error(), "adaptive, spin, yield and sleep"));
    FAILS(tsumuji_options_set(options, NULL, "x"), TSUMUJI_EINVAL, EINVAL);
    FAILS(tsumuji_options_set(NULL, "idle", "sleep"), TSUMUJI_EINVAL, EINVAL);

    int fd = tsumuji_shm_create(2);
    CHECK(fd >= 0);
    FAILS(tsumuji_shm_create(0), TSUMUJI_EOPEN, EINVAL);
    FAILS(tsumuji_shm_create(-5), TSUMUJI_EOPEN, EINVAL);
    CHECK(tsumuji_open_shm(fd, 2, 0, options, &a) == 0 && a);
    CHECK(tsumuji_open_shm(fd, 2, 1, options, &b) == 0 && b);
    tsumuji *none = a;
    CHECK(tsumuji_open_shm(fd, 2, 2, options, &none) == TSUMUJI_EOPEN && none == NULL);
    CHECK(tsumuji_open_shm(-1, 2, 0, options, &none) == TSUMUJI_EINVAL);
    CHECK(tsumuji_open_shm(fd, -1, 0, options, &none) == TSUMUJI_EINVAL);
    CHECK(tsumuji_open_shm(fd, 2, 0, options, NULL) == TSUMUJI_EINVAL);
    CHECK(tsumuji_open_env(options, &none) == TSUMUJI_EOPEN && strstr(tsumuji_last_error(), "tsumuji launch"));
    close(fd);
    tsumuji_options_free(options);
    tsumuji_options_free(NULL);
    char missing[64] = "";
    CHECK(tsumuji_absence(a, missing, sizeof missing) == 1 && missing[0] != 0 && strlen(missing) < sizeof missing);
    CHECK(tsumuji_absence(a, missing, 4) == 1 && strlen(missing) == 3);
    while (tsumuji_is_up(a, 1) == 0 || tsumuji_is_up(b, 0) == 0)
        CHECK(tsumuji_progress(a) >= 0 && tsumuji_progress(b) >= 0);
    CHECK(tsumuji_wait_up(a, WAIT_US) == 0);
    CHECK(tsumuji_absence(a, missing, sizeof missing) == 0 && missing[0] == 0);
    CHECK(tsumuji_absence(a, missing, 0) == TSUMUJI_EINVAL && tsumuji_absence(a, NULL, 4) == TSUMUJI_EINVAL);
}

/* Closes without waiting; what was not acknowledged is told of. */
static void end(tsumuji *handle)
{
    int closed = tsumuji_close(handle, 0);
    CHECK(closed == 0 || (closed == TSUMUJI_ELOST && errno == ECONNABORTED));
}

static void asks(void)
{
    CHECK(tsumuji_me(a) == 0 && tsumuji_me(b) == 1 && tsumuji_nodes(a) == 2);
    CHECK(strcmp(tsumuji_link_name(a), "shm") == 0);
    CHECK(strcmp(tsumuji_name(a, 1), "node 1") == 0 && tsumuji_name(a, 1) == tsumuji_name(a, 1));
    CHECK(tsumuji_name(a, 2) == NULL && errno == ENXIO);
    CHECK(tsumuji_broadcasts(a) == 1 && tsumuji_datagram_capacity(a) > 100);
    CHECK(strcmp(tsumuji_version(), TSUMUJI_VERSION) == 0);
    for (int code = 0; code >= TSUMUJI_ELOST; code--)
        CHECK(strcmp(tsumuji_strerror(code), "unknown error") != 0);
    CHECK(strcmp(tsumuji_strerror(7), "unknown error") == 0);
    FAILS(tsumuji_me(NULL), TSUMUJI_EINVAL, EINVAL);
    CHECK(tsumuji_link_name(NULL) == NULL && tsumuji_name(NULL, 0) == NULL);
}

static void messages(void)
{
    char buffer[64];
    tsumuji_message about;
    size_t bytes = 99;
    uint64_t id;

    CHECK(tsumuji_try_recv(b, buffer, sizeof buffer, NULL) == TSUMUJI_EAGAIN && errno == EAGAIN);
    CHECK(tsumuji_recv(b, buffer, sizeof buffer, NULL, 1000) == TSUMUJI_ETIMEDOUT && errno == ETIMEDOUT);
    CHECK(tsumuji_ready(b, &bytes, 0) == 0 && bytes == 0);

    CHECK(tsumuji_send_tracked(a, 1, TSUMUJI_DEFAULT_CHANNEL, "hello", 5, &id) == 0);
    CHECK(tsumuji_ready(b, &bytes, WAIT_US) == 1 && bytes == 5);
    FAILS(tsumuji_recv(b, buffer, 4, NULL, 0), TSUMUJI_EMSGSIZE, EMSGSIZE);
    CHECK(tsumuji_recv(b, buffer, sizeof buffer, &about, 0) == 5 && memcmp(buffer, "hello", 5) == 0);
    CHECK(about.from == 0 && about.channel == TSUMUJI_DEFAULT_CHANNEL && about.bytes == 5 && about.data == NULL);
    while (tsumuji_is_sent(a, 1, id) == 0)
        CHECK(tsumuji_progress(b) >= 0);
    CHECK(tsumuji_wait_sent(a, 1, id, 0) == 1 && tsumuji_flush(a, 0) == 1 && tsumuji_queue_length(a, 1) == 0);
    FAILS(tsumuji_is_sent(a, 1, 0), TSUMUJI_EINVAL, EINVAL);
    FAILS(tsumuji_is_sent(a, 1, id + 1000), TSUMUJI_EINVAL, EINVAL);
    FAILS(tsumuji_wait_sent(a, 1, UINT64_MAX, WAIT_US), TSUMUJI_EINVAL, EINVAL);

    int urgent = tsumuji_channel_of(TSUMUJI_UNORDERED, TSUMUJI_URGENT, TSUMUJI_CHANNEL_IDS - 1);
    CHECK(urgent >= 0 && urgent != TSUMUJI_DEFAULT_CHANNEL);
    CHECK(tsumuji_channel_of(TSUMUJI_ORDERED, TSUMUJI_NORMAL, 0) == TSUMUJI_DEFAULT_CHANNEL);
    FAILS(tsumuji_channel_of(3, 0, 0), TSUMUJI_EINVAL, EINVAL);
    FAILS(tsumuji_channel_of(0, 4, 0), TSUMUJI_EINVAL, EINVAL);
    FAILS(tsumuji_channel_of(0, 0, TSUMUJI_CHANNEL_IDS), TSUMUJI_EINVAL, EINVAL);
    CHECK(tsumuji_send(a, 1, urgent, NULL, 0) == 0);
    tsumuji_message borrowed, second;
    CHECK(tsumuji_recv_borrow(b, &borrowed, WAIT_US) == 0 && borrowed.bytes == 0 && borrowed.channel == urgent);
    CHECK(tsumuji_send(a, 1, urgent, "borrowed", 9) == 0);
    CHECK(tsumuji_recv_borrow(b, &second, WAIT_US) == 0 && strcmp(second.data, "borrowed") == 0 && second.borrow != borrowed.borrow);
    CHECK(tsumuji_release(b, &borrowed) == 0);
    FAILS(tsumuji_release(b, &borrowed), TSUMUJI_EINVAL, EINVAL);
    borrowed = second;
    CHECK(tsumuji_release(b, &second) == 0 && second.data == NULL);
    FAILS(tsumuji_release(b, &borrowed), TSUMUJI_EINVAL, EINVAL); /* a copy is not borrowed twice */

    FAILS(tsumuji_send(a, 1, TSUMUJI_DEFAULT_CHANNEL, NULL, 1), TSUMUJI_EINVAL, EINVAL);
    FAILS(tsumuji_send(a, 1, 0xc0000, "x", 1), TSUMUJI_EINVAL, EINVAL);
    FAILS(tsumuji_send(a, 1, -1, "x", 1), TSUMUJI_EINVAL, EINVAL);
    FAILS(tsumuji_send(a, 1, TSUMUJI_DEFAULT_CHANNEL, "x", SIZE_MAX), TSUMUJI_EINVAL, EINVAL);
    FAILS(tsumuji_send(a, 0, TSUMUJI_DEFAULT_CHANNEL, "x", 1), TSUMUJI_EUNKNOWN, ENXIO);
    FAILS(tsumuji_send(a, 2, TSUMUJI_DEFAULT_CHANNEL, "x", 1), TSUMUJI_EUNKNOWN, ENXIO);
    FAILS(tsumuji_send(a, -1, TSUMUJI_DEFAULT_CHANNEL, "x", 1), TSUMUJI_EUNKNOWN, ENXIO);
    FAILS(tsumuji_send(NULL, 1, TSUMUJI_DEFAULT_CHANNEL, "x", 1), TSUMUJI_EINVAL, EINVAL);
    FAILS(tsumuji_send_tracked(a, 1, TSUMUJI_DEFAULT_CHANNEL, "x", 1, NULL), TSUMUJI_EINVAL, EINVAL);
    FAILS(tsumuji_recv(b, NULL, 8, NULL, 0), TSUMUJI_EINVAL, EINVAL);
    FAILS(tsumuji_recv_borrow(b, NULL, 0), TSUMUJI_EINVAL, EINVAL);
    FAILS(tsumuji_release(b, NULL), TSUMUJI_EINVAL, EINVAL);
    FAILS(tsumuji_is_sent(a, 9, 0), TSUMUJI_EUNKNOWN, ENXIO);
}

static void full_queue(void)
{
    static char block[16 << 10], got[sizeof block];
    int sent = 0, received = 0;

    memset(block, 'q', sizeof block);
    while (tsumuji_flush(a, 0) == 0)
        CHECK(tsumuji_progress(b) >= 0);
    while (tsumuji_try_send(a, 1, TSUMUJI_DEFAULT_CHANNEL, block, sizeof block) == 0)
        CHECK(++sent < 100000);
    CHECK(errno == EAGAIN && tsumuji_wait_writable(a, 1, TSUMUJI_DEFAULT_CHANNEL, sizeof block, 0) == 0);
    CHECK(tsumuji_queue_length(a, 1) > 0 && tsumuji_flush(a, 0) == 0);
    while (received < sent) {
        CHECK(tsumuji_progress(a) >= 0);
        ptrdiff_t bytes = tsumuji_try_recv(b, got, sizeof got, NULL);
        CHECK(bytes == TSUMUJI_EAGAIN || (bytes == (ptrdiff_t)sizeof got && memcmp(block, got, sizeof got) == 0));
        received += bytes > 0;
    }
    CHECK(tsumuji_progress(b) >= 0 && tsumuji_wait_writable(a, 1, TSUMUJI_DEFAULT_CHANNEL, sizeof block, WAIT_US) == 1);
}

struct seen {
    int flows, messages, datagrams, sent, refused_calls;
    uint32_t lap, key;
    double value;
};

static void on_message(void *context, const tsumuji_message *message)
{
    struct seen *seen = context;

    CHECK(message->bytes == 3 && memcmp(message->data, "way", 3) == 0 && message->from == 0);
    seen->refused_calls += tsumuji_progress(b) == TSUMUJI_EBUSY && errno == EBUSY;
    seen->refused_calls += tsumuji_close(b, 0) == TSUMUJI_EBUSY && tsumuji_release_ownership(b) == TSUMUJI_EBUSY;
    seen->messages++;
}

static void on_datagram(void *context, const tsumuji_datagram *update)
{
    struct seen *seen = context;

    CHECK(update->from == 0 && update->channel_id == 7 && update->epoch == 3 && update->bytes == sizeof seen->value);
    seen->lap = update->lap;
    seen->key = update->key;
    memcpy(&seen->value, update->data, sizeof seen->value);
    seen->datagrams++;
}

static void on_sent(void *context, int peer, uint64_t id)
{
    struct seen *seen = context;

    CHECK(peer == 1);
    (void)id;
    seen->sent++;
}

static void on_flows(void *context, int node, const tsumuji_remote_flow *flows, size_t count, int next)
{
    struct seen *seen = context;

    CHECK(node == 1 && count == 1 && flows[0].peer == 0 && flows[0].flow.up == 1 && next == -1);
    seen->flows++;
}

/* Taken without a callback: the newest of each key, when the buffer is large enough. */
static void datagrams(void)
{
    double values[2] = {1.5, 0}, got = 0;
    tsumuji_datagram update = {.data = values, .bytes = sizeof values, .channel_id = 8, .key = 9};
    tsumuji_datagram about;

    FAILS(tsumuji_recv_datagram(b, -1, &got, sizeof got, NULL, 0), TSUMUJI_EAGAIN, EAGAIN);
    FAILS(tsumuji_recv_datagram(b, -1, &got, sizeof got, NULL, 1000), TSUMUJI_ETIMEDOUT, ETIMEDOUT);
    FAILS(tsumuji_recv_datagram(b, -1, NULL, 8, NULL, 0), TSUMUJI_EINVAL, EINVAL);
    FAILS(tsumuji_recv_datagram(b, 8, &got, sizeof got, NULL, 0), TSUMUJI_EINVAL, EINVAL);
    CHECK(tsumuji_send_datagram(a, 1, &update, -1) == 0 && tsumuji_progress(b) >= 0);
    FAILS(tsumuji_recv_datagram(b, -1, &got, sizeof got, NULL, WAIT_US), TSUMUJI_EMSGSIZE, EMSGSIZE);
    update.bytes = sizeof values[0];
    update.lap = 1;
    CHECK(tsumuji_send_datagram(a, 1, &update, -1) == 0 && tsumuji_progress(b) >= 0);
    CHECK(tsumuji_recv_datagram(b, -1, &got, sizeof got, &about, WAIT_US) == sizeof got && got == 1.5);
    CHECK(about.data == NULL && about.bytes == sizeof got && about.from == 0 && about.incarnation != 0 && about.channel_id == 8);
    CHECK(about.key == 9 && about.epoch == 0 && about.lap == 1 && about.reserved == 0);
    FAILS(tsumuji_recv_datagram(b, -1, &got, sizeof got, NULL, 0), TSUMUJI_EAGAIN, EAGAIN);
    CHECK(tsumuji_open_channel(b, 8, 0, NULL) == 0);
    update.bytes = 0;
    CHECK(tsumuji_send_datagram(a, 1, &update, -1) == 0);
    CHECK(tsumuji_recv_datagram(b, 8, NULL, 0, &about, WAIT_US) == 0 && about.key == 9);
    CHECK(tsumuji_close_channel(b, 8) == 0);
}

static void polling(void)
{
    struct seen seen;
    double value = 2.5;
    uint64_t id;
    tsumuji_datagram update;
    tsumuji_handler handler;

    memset(&seen, 0, sizeof seen);
    memset(&update, 0, sizeof update);
    memset(&handler, 0, sizeof handler);
    handler.size = sizeof handler;
    handler.context = &seen;
    FAILS(tsumuji_poll(b, &handler, 0), TSUMUJI_EINVAL, EINVAL);
    FAILS(tsumuji_poll(b, NULL, 0), TSUMUJI_EINVAL, EINVAL);
    handler.message = on_message;
    handler.datagram = on_datagram;
    handler.size = 0;
    FAILS(tsumuji_poll(b, &handler, 0), TSUMUJI_EINVAL, EINVAL);
    handler.size = sizeof handler;

    update.data = &value;
    update.bytes = sizeof value;
    update.channel_id = 7;
    update.epoch = 3;
    update.lap = 11;
    update.key = 40;
    CHECK(tsumuji_send_datagram(a, TSUMUJI_ALL, &update, -1) == 0);
    update.key = 41;
    CHECK(tsumuji_cork(a) == 0 && tsumuji_send_datagram(a, 1, &update, 0) == 0 && tsumuji_uncork(a) == 0);
    while (seen.datagrams < 2)
        CHECK(tsumuji_poll(b, &handler, 0) >= 0);
    CHECK(seen.lap == 11 && (seen.key == 40 || seen.key == 41) && seen.value == 2.5);
    datagrams();
    update.data = NULL;
    FAILS(tsumuji_send_datagram(a, TSUMUJI_ALL, &update, -1), TSUMUJI_EINVAL, EINVAL);
    update.data = &value;
    update.bytes = 8;
    FAILS(tsumuji_send_datagram(a, 5, &update, -1), TSUMUJI_EUNKNOWN, ENXIO);
    FAILS(tsumuji_send_datagram(a, TSUMUJI_ALL, NULL, -1), TSUMUJI_EINVAL, EINVAL);

    CHECK(tsumuji_send_tracked(a, 1, TSUMUJI_DEFAULT_CHANNEL, "way", 3, &id) == 0);
    while (seen.messages < 1)
        CHECK(tsumuji_poll(b, &handler, WAIT_US) >= 0);
    CHECK(seen.refused_calls == 2);
    handler.flows = on_flows;
    CHECK(tsumuji_request_flows(a, 1, 0, 10) == 0);
    FAILS(tsumuji_request_flows(a, 1, 0, 0), TSUMUJI_EINVAL, EINVAL);
    while (seen.flows < 1)
        CHECK(tsumuji_progress(b) >= 0 && tsumuji_poll(a, &handler, 0) >= 0);
    /* A program built with an older header knows of `message` and nothing after it. */
    handler.sent = on_sent;
    handler.size = offsetof(tsumuji_handler, datagram);
    handler.datagram = NULL;
    while (tsumuji_flush(a, 0) == 0)
        CHECK(tsumuji_progress(b) >= 0);
    CHECK(tsumuji_poll(a, &handler, 0) >= 0 && seen.sent == 0);
}

static void descriptor(void)
{
    struct pollfd ready;
    char buffer[8];
    int64_t until;

    ready.fd = tsumuji_fd(b);
    ready.events = POLLIN;
    CHECK(ready.fd >= 0);
    while (tsumuji_arm_fd(b) == 0)
        CHECK(tsumuji_progress(b) >= 0);
    CHECK(tsumuji_send(a, 1, TSUMUJI_DEFAULT_CHANNEL, "bell", 4) == 0);
    CHECK(poll(&ready, 1, 60000) == 1);
    CHECK(tsumuji_recv(b, buffer, sizeof buffer, NULL, WAIT_US) == 4);
    until = tsumuji_until_timer(b);
    CHECK(until >= -1);
}

static uint64_t two_at_most(void *context, const tsumuji_sender *sender)
{
    int *asked = context;

    CHECK(sender->peer == 0 && sender->pool_frames > 0 && sender->repairs == 0);
    *asked += 1;
    return sender->usual_frames < 2 ? sender->usual_frames : 2;
}

struct pictures {
    int messages, datagrams;
};

static void on_any(void *context, const tsumuji_message *message)
{
    struct pictures *seen = context;

    CHECK(message->bytes == 20000);
    seen->messages++;
}

static void on_picture(void *context, const tsumuji_datagram *picture)
{
    struct pictures *seen = context;

    CHECK(picture->bytes == 40000 && picture->channel_id == 3 && picture->lap == 2 && picture->from == 0);
    seen->datagrams++;
}

static void windows(void)
{
    tsumuji_window window;
    char got[8];
    int asked = 0;

    CHECK(tsumuji_get_window(b, &window, sizeof window) == 0 && window.frames > 0 && window.frames <= window.frames_limit);
    CHECK(tsumuji_set_window(b, 8) == 0 && tsumuji_set_budget(b, 1 << 20) == 0 && tsumuji_set_peer_window(b, 0, 4) == 0);
    CHECK(tsumuji_get_window(b, &window, sizeof window) == 0 && window.frames == 8 && window.budget_bytes == 1 << 20);
    FAILS(tsumuji_set_window(b, 0), TSUMUJI_EINVAL, EINVAL);
    FAILS(tsumuji_set_budget(b, 0), TSUMUJI_EINVAL, EINVAL);
    FAILS(tsumuji_set_peer_window(b, 1, 4), TSUMUJI_EUNKNOWN, ENXIO);
    CHECK(tsumuji_set_peer_window(b, 0, 0) == 0 && tsumuji_set_policy(b, two_at_most, &asked) == 0 && tsumuji_regrant(b) == 0);
    for (int i = 0; i < 20; i++) {
        CHECK(tsumuji_send(a, 1, TSUMUJI_DEFAULT_CHANNEL, "granted", 8) == 0);
        while (tsumuji_try_recv(b, got, sizeof got, NULL) != 8)
            CHECK(tsumuji_progress(a) >= 0);
    }
    CHECK(asked > 0 && tsumuji_set_policy(b, NULL, NULL) == 0);
    CHECK(tsumuji_set_window(b, (size_t)window.frames_limit) == 0 && tsumuji_set_budget(b, 64 << 20) == 0);

    CHECK(tsumuji_set_pace(a, 1, 100 << 20) == 0 && tsumuji_set_pace(a, 1, TSUMUJI_PACE_DRAIN) == 0);
    FAILS(tsumuji_set_pace(a, 1, -2), TSUMUJI_EINVAL, EINVAL);
    FAILS(tsumuji_set_pace(a, 0, 0), TSUMUJI_EUNKNOWN, ENXIO);
    CHECK(tsumuji_set_pace(a, 1, TSUMUJI_PACE_FREE) == 0);

    /* Behind a message that leaves at 1000 bytes a second: what is late is dropped at the sender, of two that wait the newer one stays. */
    static char block[40000];
    tsumuji_flow before, flow;
    tsumuji_datagram picture;
    tsumuji_handler handler;
    struct pictures seen = {0, 0};

    memset(&picture, 0, sizeof picture);
    memset(&handler, 0, sizeof handler);
    handler.size = sizeof handler;
    handler.context = &seen;
    handler.message = on_any;
    handler.datagram = on_picture;
    picture.data = block;
    picture.bytes = sizeof block;
    picture.channel_id = 3;
    CHECK(tsumuji_datagram_capacity(a) < (ptrdiff_t)sizeof block);
    CHECK(tsumuji_get_flow(a, 1, &before, sizeof before) == 0 && tsumuji_set_pace(a, 1, 1000) == 0);
    CHECK(tsumuji_send(a, 1, TSUMUJI_DEFAULT_CHANNEL, block, 20000) == 0);
    CHECK(tsumuji_send_datagram(a, 1, &picture, 1000) == 0);
    do {
        CHECK(tsumuji_progress(a) >= 0 && tsumuji_progress(b) >= 0);
        CHECK(tsumuji_get_flow(a, 1, &flow, sizeof flow) == 0);
    } while (flow.late_datagrams == before.late_datagrams);
    for (picture.lap = 1; picture.lap <= 2; picture.lap++)
        CHECK(tsumuji_send_datagram(a, 1, &picture, -1) == 0);
    CHECK(tsumuji_get_flow(a, 1, &flow, sizeof flow) == 0 && flow.superseded_datagrams == before.superseded_datagrams + 1);
    CHECK(tsumuji_set_pace(a, 1, TSUMUJI_PACE_FREE) == 0);
    while (seen.messages < 1 || seen.datagrams < 1)
        CHECK(tsumuji_progress(a) >= 0 && tsumuji_poll(b, &handler, 0) >= 0);
}

static void numbers(void)
{
    tsumuji_flow flow;
    tsumuji_counters counters;
    unsigned char small[8];

    CHECK(tsumuji_get_flow(a, 1, &flow, sizeof flow) == 0 && flow.rtt_ns > 0 && flow.window_bytes > 0);
    CHECK(flow.up == 1 && tsumuji_get_remote_flow(a, 0, 1, &flow, sizeof flow, 0) == 1 && flow.up == 1);
    CHECK(tsumuji_get_remote_flow(a, 1, 0, &flow, sizeof flow, 1000) == 0); /* nobody polls there */
    FAILS(tsumuji_get_remote_flow(a, 2, 0, &flow, sizeof flow, 0), TSUMUJI_EUNKNOWN, ENXIO);
    FAILS(tsumuji_get_flow(a, 0, &flow, sizeof flow), TSUMUJI_EUNKNOWN, ENXIO);
    FAILS(tsumuji_get_flow(a, 1, NULL, sizeof flow), TSUMUJI_EINVAL, EINVAL);
    CHECK(tsumuji_get_counters(a, &counters, sizeof counters) == 0 && counters.sent_frames > 3);
    /* Only as much is written as the program knows of. */
    memset(small, 0xee, sizeof small);
    CHECK(tsumuji_get_counters(b, (tsumuji_counters *)(void *)small, 4) == 0 && small[4] == 0xee);
    FAILS(tsumuji_get_counters(a, &counters, 0), TSUMUJI_EINVAL, EINVAL);
    CHECK(tsumuji_publish_metrics(a) == 0);
}

static void *other_thread(void *context)
{
    char buffer[8];

    (void)context;
    CHECK(*tsumuji_last_error() == 0); /* texts are each thread's own */
    FAILS(tsumuji_progress(b), TSUMUJI_ETHREAD, EPERM);
    FAILS(tsumuji_acquire_ownership(b), TSUMUJI_ETHREAD, EPERM);
    FAILS(tsumuji_release_ownership(b), TSUMUJI_ETHREAD, EPERM);
    FAILS(tsumuji_close(b, 0), TSUMUJI_ETHREAD, EPERM);
    CHECK(tsumuji_acquire_ownership(a) == 0 && tsumuji_try_recv(a, buffer, sizeof buffer, NULL) == TSUMUJI_EAGAIN);
    CHECK(tsumuji_release_ownership(a) == 0);
    return NULL;
}

static void threads(void)
{
    pthread_t thread;

    CHECK(tsumuji_release_ownership(a) == 0);
    FAILS(tsumuji_me(a), TSUMUJI_ETHREAD, EPERM);
    CHECK(pthread_create(&thread, NULL, other_thread, NULL) == 0 && pthread_join(thread, NULL) == 0);
    CHECK(tsumuji_acquire_ownership(a) == 0 && tsumuji_me(a) == 0);
    FAILS(tsumuji_acquire_ownership(a), TSUMUJI_ETHREAD, EPERM);
    FAILS(tsumuji_acquire_ownership(NULL), TSUMUJI_EINVAL, EINVAL);
}

static void death(void)
{
    uint64_t id;

    end(b); /* it may have sent what a has not acknowledged */
    while (tsumuji_is_up(a, 1) == 1)
        CHECK(tsumuji_progress(a) >= 0);
    CHECK(tsumuji_is_dead(a, 1) == 1);
    FAILS(tsumuji_send(a, 1, TSUMUJI_DEFAULT_CHANNEL, "x", 1), TSUMUJI_EPEER, ECONNRESET);
    FAILS(tsumuji_wait_writable(a, 1, TSUMUJI_DEFAULT_CHANNEL, 1, WAIT_US), TSUMUJI_EPEER, ECONNRESET);
    CHECK(tsumuji_reconnect(a, 1) == 0 && tsumuji_send_tracked(a, 1, TSUMUJI_DEFAULT_CHANNEL, "x", 1, &id) == 0);
    CHECK(tsumuji_wait_sent(a, 1, id, 1000) == 0);
    FAILS(tsumuji_close(a, 0), TSUMUJI_ELOST, ECONNABORTED); /* that message, to a peer that is not there */
    CHECK(strstr(tsumuji_last_error(), "1 messages to node 1") && tsumuji_close(NULL, 0) == 0);
}

/* Suci's calls refuse what makes no sense, too. */
static void suci(void)
{
    datagram_addrdb *addrdb = datagram_addrdb_new();
    char buffer[8];
    int ids[4];

    CHECK(datagram_addrdb_add(addrdb, 70, "127.0.0.1:7000") == 0);
    FAILS(datagram_addrdb_add(addrdb, 70, "127.0.0.1:7001"), -1, EINVAL);
    FAILS(datagram_addrdb_add(addrdb, -1, "127.0.0.1:7001"), -1, EINVAL);
    FAILS(datagram_addrdb_add(addrdb, 3, NULL), -1, EINVAL);
    FAILS(datagram_addrdb_add(NULL, 3, "127.0.0.1:7001"), -1, EINVAL);
    CHECK(datagram_addrdb_read("/nowhere/db") == NULL && errno == ENOENT);
    CHECK(datagram_addrdb_read(NULL) == NULL && errno == EINVAL);
    CHECK(datagram(NULL, NULL, 0, 0) == NULL && errno == EINVAL);
    CHECK(datagram(addrdb, NULL, 0, 1) == NULL && strstr(tsumuji_last_error(), "id 1 is not in"));
    CHECK(datagram(addrdb, NULL, 0, -1) == NULL && datagram(addrdb, NULL, 99999, 70) == NULL);
    CHECK(datagram(addrdb, "shm", 0, 70) == NULL && strstr(tsumuji_last_error(), "tsumuji launch"));
    CHECK(datagram(addrdb, "packet:no-such-if", 0, 70) == NULL);

    CHECK(datagram_addrdb_add(addrdb, 9, at(7001)) == 0);
    datagram_socket *sock = datagram(addrdb, "127.0.0.1", 0, 70);
    CHECK(sock == NULL); /* no port: others could not reach it */
    char host[40];
    snprintf(host, sizeof host, "%s", at(0));
    *strchr(host, ':') = 0;
    sock = datagram(addrdb, host, 7002, 70);
    CHECK(sock != NULL);
    datagram_addrdb_free(addrdb);
    datagram_addrdb_free(NULL);
    CHECK(datagram_id(sock) == 70 && datagram_ids(sock, NULL, 0) == 2);
    ids[1] = ids[2] = -7;
    CHECK(datagram_ids(sock, ids, 1) == 2 && ids[0] == 9 && ids[1] == -7);
    CHECK(datagram_ids(sock, ids, 4) == 2 && ids[1] == 70 && ids[2] == -7);
    FAILS(datagram_ids(sock, NULL, 1), -1, EINVAL);
    FAILS(datagram_write(sock, "x", 1), -1, EINVAL); /* no destination yet */
    FAILS(datagram_destination(sock, 70), -1, ENXIO);
    FAILS(datagram_destination(sock, 1), -1, ENXIO);
    CHECK(datagram_destination(sock, 9) == 0);
    FAILS(datagram_write0(sock, "", 0), -1, EINVAL);
    FAILS(datagram_write0(sock, "x", -1), -1, EINVAL);
    FAILS(datagram_write0(sock, NULL, 1), -1, EINVAL);
    FAILS(datagram_read0(sock, buffer, sizeof buffer), -1, EAGAIN);
    FAILS(datagram_read0(sock, NULL, 8), -1, EINVAL);
    FAILS(datagram_from(sock), -1, EINVAL);
    FAILS(datagram_ready(sock, -1, 0), -1, EINVAL);
    CHECK(datagram_ready(sock, 0, 0) == 0 && datagram_wait(sock, 0, 0, 100, 9) == 1);
    FAILS(datagram_wait(sock, 0, 0, 1, 1), -1, ENXIO);
    FAILS(datagram_queue_length(sock, 1), -1, ENXIO);
    FAILS(datagram_retransmission(sock, 1), -1, ENXIO);
    FAILS(datagram_queue_length(NULL, 9), -1, EINVAL);
    CHECK(datagram_queue_length(sock, 9) == 0);
    CHECK(datagram_write0(sock, "wait for me", 11) == 11 && datagram_queue_length(sock, 9) == 1);
    CHECK(datagram_retransmission(sock, 9) >= 0);
    CHECK(datagram_set_window(sock, 1 << 20) == 0 && datagram_slow_write(sock, 9, -1) == 0);
    FAILS(datagram_slow_write(sock, 9, -2), -1, EINVAL);
    FAILS(datagram_slow_write(sock, 1, 0), -1, ENXIO);
    FAILS(datagram_set_window(sock, 0), -1, EINVAL);
    datagram_flow flow;
    CHECK(datagram_get_flow(sock, 9, &flow, sizeof flow) == 0 && flow.queue_length == 1 && flow.queue_bytes == 11);
    CHECK(datagram_get_remote_flow(sock, 9, 70, &flow, sizeof flow, 0, 10) == 0);
    FAILS(datagram_get_remote_flow(sock, 9, 1, &flow, sizeof flow, 0, 0), -1, ENXIO);
    CHECK(tsumuji_nodes(datagram_handle(sock)) == 2 && strcmp(tsumuji_link_name(datagram_handle(sock)), "udp") == 0);
    end(datagram_handle(sock)); /* as datagram_close, without waiting for a peer that never comes */
    CHECK(datagram_close(NULL) == 0);
}

static uint64_t what_for(void *context, const tsumuji_sender *sender)
{
    int *asked = context;

    CHECK(sender->peer == 0 && sender->repairs <= 1);
    asked[sender->repairs] += 1;
    return sender->usual_frames;
}

/* Under suci a policy is told whether it decides on what is sent again, or on what is sent first: here memory refuses most. */
static void policy_under_suci(void)
{
    tsumuji_options *options = tsumuji_options_new();
    tsumuji *one = NULL, *two = NULL;
    char buffer[1000] = "refused";
    int asked[2] = {0, 0}, got = 0, fd = tsumuji_shm_create(2);

    CHECK(tsumuji_options_set(options, "congestion", "suci") == 0 && tsumuji_options_set(options, "idle", "sleep") == 0);
    CHECK(tsumuji_options_set(options, "progress", "program") == 0); /* or two's assistant may take in one after the other */
    CHECK(tsumuji_open_shm(fd, 2, 0, options, &one) == 0 && tsumuji_open_shm(fd, 2, 1, options, &two) == 0);
    close(fd);
    tsumuji_options_free(options);
    while (tsumuji_is_up(one, 1) == 0 || tsumuji_is_up(two, 0) == 0)
        CHECK(tsumuji_progress(one) >= 0 && tsumuji_progress(two) >= 0);
    CHECK(tsumuji_set_policy(two, what_for, asked) == 0 && tsumuji_set_budget(two, 1) == 0);
    for (int i = 0; i < 20; i++)
        CHECK(tsumuji_send(one, 1, TSUMUJI_DEFAULT_CHANNEL, buffer, sizeof buffer) == 0);
    while (got < 20) {
        CHECK(tsumuji_progress(one) >= 0);
        if (tsumuji_try_recv(two, buffer, sizeof buffer, NULL) == sizeof buffer)
            got++;
    }
    CHECK(asked[0] > 0 && asked[1] > 0);
    end(one);
    end(two);
}

/* Whom a rank puts first, and whether it was shown whom it ranks. */
struct preference {
    uint64_t first;
    int asked;
};

static uint64_t first_goes_first(void *context, const tsumuji_sender *sender)
{
    struct preference *preference = context;

    CHECK(sender->peer < 2 && (sender->peers == 1 || sender->peers == 2) && sender->window_frames > 0 && sender->now_ns > 0);
    preference->asked += 1;
    return sender->peer == preference->first ? 0 : 1;
}

enum { RANKED_MESSAGES = 12 };

/* Two send more than a third has memory for, and the first one of them is preferred. How many of the other's came before all of the first. */
static int memory_rank(const char *congestion, uint64_t first)
{
    enum { NODES = 3, MESSAGES = RANKED_MESSAGES, BYTES = 40000 };
    static char buffer[BYTES];
    tsumuji_options *options = tsumuji_options_new();
    struct preference preference = {first, 0};
    tsumuji *node[NODES];
    tsumuji_message about;
    int got[2] = {0, 0}, before, fd = tsumuji_shm_create(NODES);

    CHECK(tsumuji_options_set(options, "congestion", congestion) == 0 && tsumuji_options_set(options, "idle", "sleep") == 0);
    CHECK(tsumuji_options_set(options, "send-queue", "1M") == 0 && tsumuji_options_set(options, "progress", "program") == 0);
    for (int i = 0; i < NODES; i++)
        CHECK(tsumuji_open_shm(fd, NODES, i, options, &node[i]) == 0);
    close(fd);
    tsumuji_options_free(options);
    /* Before they meet: so the others know from the start that the program decides. */
    CHECK(tsumuji_set_memory_rank(node[2], first_goes_first, &preference) == 0 && tsumuji_set_budget(node[2], BYTES) == 0);
    for (int up = 0; up < NODES * (NODES - 1);) {
        up = 0;
        for (int i = 0; i < NODES; i++) {
            CHECK(tsumuji_progress(node[i]) >= 0);
            for (int j = 0; j < NODES; j++)
                up += i != j && tsumuji_is_up(node[i], j) == 1;
        }
    }
    for (int i = 0; i < 2 * MESSAGES; i++)
        CHECK(tsumuji_send(node[i % 2], 2, TSUMUJI_DEFAULT_CHANNEL, buffer, sizeof buffer) == 0);
    while (got[first] < MESSAGES) {
        CHECK(tsumuji_progress(node[0]) >= 0 && tsumuji_progress(node[1]) >= 0);
        if (tsumuji_try_recv(node[2], buffer, sizeof buffer, &about) == sizeof buffer)
            got[about.from]++;
    }
    CHECK(preference.asked > 0);
    before = got[1 - first];
    CHECK(tsumuji_set_memory_rank(node[2], NULL, NULL) == 0);
    while (got[1 - first] < MESSAGES) {
        CHECK(tsumuji_progress(node[0]) >= 0 && tsumuji_progress(node[1]) >= 0);
        if (tsumuji_try_recv(node[2], buffer, sizeof buffer, &about) == sizeof buffer)
            got[about.from]++;
    }
    for (int i = 0; i < NODES; i++)
        end(node[i]);
    return before;
}

/* The one that a program prefers is done first, whichever that is. In turns it would be all but one of the other's; half of it, but for what comes by
   probes, where the machine is busy. Under suci the program decides who is told first, and frames of both are on their way by then. */
static void memory_ranks(uint64_t first)
{
    int tries = 1;

    while (memory_rank("credit", first) >= RANKED_MESSAGES - 3)
        CHECK(tries++ < 5);
    memory_rank("suci", first);
}

static void tables(void)
{
    tsumuji_members *members = tsumuji_members_new();
    tsumuji *node = NULL;

    CHECK(tsumuji_members_add(members, 1, at(7003)) == 0);
    CHECK(tsumuji_open_members(members, NULL, 1, NULL, &node) == TSUMUJI_EINVAL && strstr(tsumuji_last_error(), "no member 0"));
    CHECK(tsumuji_members_add(members, 0, "packet:eth1 02:00:00:00:00:01") == 0);
    CHECK(tsumuji_open_members(members, "udp", 1, NULL, &node) == TSUMUJI_EOPEN && node == NULL);
    CHECK(tsumuji_open_members(NULL, NULL, 1, NULL, &node) == TSUMUJI_EINVAL);
    CHECK(tsumuji_members_add(members, 2, "nonsense here too") == TSUMUJI_EINVAL);
    CHECK(tsumuji_open_cluster("/nowhere/lab.toml", 0, NULL, &node) == TSUMUJI_EOPEN && errno == ENOENT);
    CHECK(tsumuji_open_cluster(NULL, 0, NULL, &node) == TSUMUJI_EINVAL);
    tsumuji_members_free(members);

    members = tsumuji_members_new();
    CHECK(tsumuji_members_add(members, 0, at(7004)) == 0 && tsumuji_members_add(members, 1, at(7005)) == 0);
    CHECK(tsumuji_open_members(members, NULL, 1, NULL, &node) == 0 && tsumuji_me(node) == 1);
    end(node);
    tsumuji_members_free(members);
    CHECK(tsumuji_report_error("nobody is told") == 0 && tsumuji_report_error(NULL) == TSUMUJI_EINVAL);
}

int main(void)
{
    CHECK(*tsumuji_last_error() == 0);
    open_both();
    asks();
    messages();
    full_queue();
    polling();
    descriptor();
    windows();
    numbers();
    threads();
    death();
    suci();
    policy_under_suci();
    for (uint64_t first = 0; first < 2; first++) {
        memory_ranks(first);
    }
    tables();
    puts("plain: all right");
    return 0;
}
