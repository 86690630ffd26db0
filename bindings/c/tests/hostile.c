/*
 * What no program should do: NULL, handles and objects that were closed or freed, other threads, forked children, callbacks that call
 * back, numbers out of all bounds, pointers without alignment, texts without end, files that are none. Each must be a documented
 * error. Prints nothing when it is right; a wrong step names its line.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <suci.h>
#include <tsumuji.h>

static void check(int right, int line, const char *what)
{
    if (right)
        return;
    fprintf(stderr, "hostile.c:%d: not so: %s (%s)\n", line, what, tsumuji_last_error());
    _exit(1);
}
#define CHECK(right) check((right) ? 1 : 0, __LINE__, #right)
#define FAILS(call, code, number) CHECK((errno = 0, (call)) == (code) && errno == (number) && *tsumuji_last_error())

#define BOARD 9 /* its channel */

static tsumuji *a, *b;
static tsumuji_board *board; /* of a */
static char room[100]; /* posted for messages, and so never gone */
static uint64_t post;
static const char *progress = "assistant"; /* of handles beside a and b, whose callbacks must come from their own calls */

static void open_both(void)
{
    tsumuji_options *options = tsumuji_options_new();
    CHECK(tsumuji_options_set(options, "metrics", "off") == 0);
    CHECK(tsumuji_options_set(options, "idle", "sleep") == 0);
    CHECK(tsumuji_options_set(options, "progress", "program") == 0);
    int fd = tsumuji_shm_create(2);
    CHECK(tsumuji_open_shm(fd, 2, 0, options, &a) == 0 && tsumuji_open_shm(fd, 2, 1, options, &b) == 0);
    close(fd);
    tsumuji_options_free(options);
    while (tsumuji_is_up(a, 1) == 0 || tsumuji_is_up(b, 0) == 0)
        CHECK(tsumuji_progress(a) >= 0 && tsumuji_progress(b) >= 0);
    CHECK(tsumuji_metrics_address(a) == NULL);
    CHECK(tsumuji_board_open(a, BOARD, (size_t[]){0, 2, 4}, 2, &board) == 0);
}

static void on_message(void *context, const tsumuji_message *message)
{
    (void)context;
    (void)message;
}

static void add(void *context, const void *left, const void *right, void *result, size_t count)
{
    const char *x = left, *y = right;

    (void)context;
    for (size_t i = 0; i < count; i++)
        ((char *)result)[i] = (char)(x[i] + y[i]);
}

static void nothing(void *context)
{
    (void)context;
}

/* Every function that takes a handle, once; each must say `code`. */
static void refused(tsumuji *h, int code)
{
    char data[64] = {0};
    size_t bytes;
    uint64_t number;
    tsumuji_message message;
    tsumuji_datagram datagram;
    tsumuji_flow flow;
    tsumuji_remote_flow remote;
    tsumuji_counters counters;
    tsumuji_collective_counters collective;
    tsumuji_window window;
    tsumuji_channel state;
    tsumuji_combine by = {.size = sizeof by, .element_bytes = 1, .function = add};
    tsumuji_handler handler = {.size = sizeof handler, .message = on_message};
    int nodes[2] = {0, 1};

    memset(&message, 0, sizeof message);
    memset(&datagram, 0, sizeof datagram);
    CHECK(tsumuji_send(h, 1, TSUMUJI_DEFAULT_CHANNEL, data, 1) == code);
    CHECK(tsumuji_try_send(h, 1, TSUMUJI_DEFAULT_CHANNEL, data, 1) == code);
    CHECK(tsumuji_send_tracked(h, 1, TSUMUJI_DEFAULT_CHANNEL, data, 1, &number) == code);
    CHECK(tsumuji_is_sent(h, 1, 1) == code);
    CHECK(tsumuji_wait_sent(h, 1, 1, 0) == code);
    CHECK(tsumuji_wait_writable(h, 1, TSUMUJI_DEFAULT_CHANNEL, 1, 0) == code);
    CHECK(tsumuji_flush(h, 0) == code);
    CHECK(tsumuji_queue_length(h, 1) == code);
    CHECK(tsumuji_ready(h, &bytes, 0) == code);
    CHECK(tsumuji_recv(h, data, sizeof data, &message, 0) == code);
    CHECK(tsumuji_try_recv(h, data, sizeof data, &message) == code);
    CHECK(tsumuji_recv_borrow(h, &message, 0) == code);
    CHECK(tsumuji_release(h, &message) == code);
    CHECK(tsumuji_send_shared(h, 1, TSUMUJI_DEFAULT_CHANNEL, data, 1, nothing, NULL, NULL) == code);
    CHECK(tsumuji_open_channel(h, 7, 0, NULL) == code);
    CHECK(tsumuji_close_channel(h, 7) == code);
    CHECK(tsumuji_channel_state(h, 7, &state, sizeof state) == code);
    CHECK(tsumuji_ready_on(h, -1, -1, &bytes, 0) == code);
    CHECK(tsumuji_recv_on(h, -1, -1, data, sizeof data, &message, 0) == code);
    CHECK(tsumuji_recv_borrow_on(h, -1, -1, &message, 0) == code);
    CHECK(tsumuji_poll_on(h, 7, &handler, 0) == code);
    CHECK(tsumuji_post(h, 7, -1, room, sizeof room, &post) == code);
    CHECK(tsumuji_wait_posted(h, 1, 0) == code);
    CHECK(tsumuji_unpost(h, 1, &message) == code);
    CHECK(tsumuji_thread_sender_new(h) == NULL);
    CHECK(tsumuji_send_datagram(h, TSUMUJI_ALL, &datagram, -1) == code);
    CHECK(tsumuji_recv_datagram(h, -1, data, sizeof data, &datagram, 0) == code);
    CHECK(tsumuji_datagram_capacity(h) == code);
    CHECK(tsumuji_broadcasts(h) == code);
    CHECK(tsumuji_poll(h, &handler, 0) == code);
    CHECK(tsumuji_progress(h) == code);
    CHECK(tsumuji_fd(h) == code);
    CHECK(tsumuji_arm_fd(h) == code);
    CHECK(tsumuji_until_timer(h) == code);
    CHECK(tsumuji_me(h) == code);
    CHECK(tsumuji_nodes(h) == code);
    CHECK(tsumuji_name(h, 0) == NULL);
    CHECK(tsumuji_address(h, 0) == NULL);
    CHECK(tsumuji_metrics_address(h) == NULL);
    CHECK(tsumuji_link_name(h) == NULL);
    CHECK(tsumuji_is_up(h, 1) == code);
    CHECK(tsumuji_is_dead(h, 1) == code);
    CHECK(tsumuji_congestion_differs(h, 1) == code);
    CHECK(tsumuji_wait_up(h, 0) == code);
    CHECK(tsumuji_reconnect(h, 1) == code);
    CHECK(tsumuji_get_flow(h, 1, &flow, sizeof flow) == code);
    CHECK(tsumuji_get_remote_flow(h, 1, 0, &flow, sizeof flow, 0) == code);
    CHECK(tsumuji_get_remote_flows(h, 1, &remote, sizeof remote, 1, 0) == code);
    CHECK(tsumuji_request_flows(h, 1, 0, 1) == code);
    CHECK(tsumuji_get_counters(h, &counters, sizeof counters) == code);
    CHECK(tsumuji_publish_metrics(h) == code);
    CHECK(tsumuji_get_window(h, &window, sizeof window) == code);
    CHECK(tsumuji_set_window(h, 10) == code);
    CHECK(tsumuji_set_peer_window(h, 1, 10) == code);
    CHECK(tsumuji_set_budget(h, 1 << 20) == code);
    CHECK(tsumuji_set_policy(h, NULL, NULL) == code);
    CHECK(tsumuji_set_memory_rank(h, NULL, NULL) == code);
    CHECK(tsumuji_regrant(h) == code);
    CHECK(tsumuji_set_pace(h, 1, 0) == code);
    CHECK(tsumuji_group(h, nodes, 2, 1) == code);
    CHECK(tsumuji_group_close(h, 0) == code);
    CHECK(tsumuji_group_rank(h, 0) == code);
    CHECK(tsumuji_group_size(h, 0) == code);
    CHECK(tsumuji_barrier(h, 0, &number) == code);
    CHECK(tsumuji_broadcast(h, 0, 0, data, 1, &number) == code);
    CHECK(tsumuji_scatter(h, 0, 0, data, NULL, data + 32, 1, &number) == code);
    CHECK(tsumuji_gather(h, 0, 0, data, 1, data + 32, NULL, &number) == code);
    CHECK(tsumuji_all_gather(h, 0, data, 1, data + 32, NULL, &number) == code);
    CHECK(tsumuji_all_to_all(h, 0, data, NULL, data + 32, NULL, 1, &number) == code);
    CHECK(tsumuji_reduce(h, 0, 0, data, data + 32, 1, TSUMUJI_INT8, TSUMUJI_SUM, &number) == code);
    CHECK(tsumuji_reduce_by(h, 0, 0, data, data + 32, 1, &by, &number) == code);
    CHECK(tsumuji_all_reduce(h, 0, data, 1, TSUMUJI_INT8, TSUMUJI_SUM, &number) == code);
    CHECK(tsumuji_all_reduce_by(h, 0, data, 1, &by, &number) == code);
    CHECK(tsumuji_test(h, 1) == code);
    CHECK(tsumuji_wait(h, 1) == code);
    CHECK(tsumuji_forbid_direct_reads(h) == code);
    CHECK(tsumuji_get_collective_counters(h, &collective, sizeof collective) == code);
    tsumuji_board *its_board = h ? board : NULL, *none;
    tsumuji_board_drops drops;
    double values[2] = {0};
    size_t offsets[3] = {0, 2, 4};
    CHECK(tsumuji_board_open(h, 10, offsets, 2, &none) == code);
    CHECK(tsumuji_board_write(its_board, 0, values, 2, 1) == code);
    CHECK(tsumuji_board_publish(its_board, 0, values, 2, 1) == code);
    CHECK(tsumuji_board_repair(its_board) == code);
    CHECK(tsumuji_board_poll(its_board, 0) == code);
    CHECK(tsumuji_board_wait(its_board, 1, 1, 0) == code);
    CHECK(tsumuji_board_get(its_board, 0, values, 2) == code);
    CHECK(tsumuji_board_lap(its_board, 0) == code);
    CHECK(tsumuji_board_staleness(its_board, 0) == code);
    CHECK(tsumuji_board_get_drops(its_board, &drops, sizeof drops) == code);
    CHECK(code == TSUMUJI_EINVAL || tsumuji_board_close(its_board) == code); /* that of a closed handle can be closed */
    CHECK(tsumuji_release_ownership(h) == code);
    CHECK(h == NULL || tsumuji_close(h, 0) == code);

    datagram_socket *sock = (datagram_socket *)h;
    datagram_flow its;
    CHECK(datagram_handle(sock) == h);
    CHECK(datagram_destination(sock, 1) == -1 && datagram_write(sock, data, 1) == -1 && datagram_write0(sock, data, 1) == -1);
    CHECK(datagram_read(sock, data, 8) == -1 && datagram_read0(sock, data, 8) == -1 && datagram_from(sock) == -1);
    CHECK(datagram_ready(sock, 0, 0) == -1 && datagram_wait(sock, 0, 0, 1, 1) == -1 && datagram_queue_length(sock, 1) == -1);
    CHECK(datagram_retransmission(sock, 1) == -1 && datagram_set_window(sock, 9) == -1 && datagram_slow_write(sock, 1, 0) == -1);
    CHECK(datagram_get_flow(sock, 1, &its, sizeof its) == -1 && datagram_get_remote_flow(sock, 1, 0, &its, sizeof its, 0, 0) == -1);
    CHECK(datagram_id(sock) == -1 && datagram_ids(sock, NULL, 0) == -1);
    CHECK(h == NULL || datagram_close(sock) == -1);
}

static void *in_other_thread(void *handle)
{
    for (int i = 0; i < 200; i++)
        refused(handle, TSUMUJI_ETHREAD);
    CHECK(tsumuji_acquire_ownership(handle) == TSUMUJI_ETHREAD);
    return NULL;
}

/* Threads that use the handle of another are refused while that one works on. */
static void threads(void)
{
    pthread_t other[2];

    for (int i = 0; i < 2; i++)
        CHECK(pthread_create(&other[i], NULL, in_other_thread, a) == 0);
    for (int i = 0; i < 500; i++)
        CHECK(tsumuji_progress(a) >= 0 && tsumuji_progress(b) >= 0);
    for (int i = 0; i < 2; i++)
        CHECK(pthread_join(other[i], NULL) == 0);
}

static void *in_thread_with_options(void *options)
{
    for (int i = 0; i < 2000; i++) {
        int set = tsumuji_options_set(options, "key", i % 2 ? "one" : "another one");
        CHECK(set == 0 || set == TSUMUJI_EINVAL);
    }
    return NULL;
}

/* Objects that several threads use, that are freed meanwhile, freed again, or are of another kind. */
static void objects(void)
{
    pthread_t other;
    tsumuji_options *options = tsumuji_options_new();
    tsumuji_members *members = tsumuji_members_new();
    datagram_addrdb *addrdb = datagram_addrdb_new();
    tsumuji *none = NULL;

    CHECK(pthread_create(&other, NULL, in_thread_with_options, options) == 0);
    for (int i = 0; i < 1000; i++)
        CHECK(tsumuji_options_set(options, "key", "a third") == 0);
    tsumuji_options_free(options);
    tsumuji_options_free(options);
    CHECK(pthread_join(other, NULL) == 0);
    FAILS(tsumuji_options_set(options, "idle", "sleep"), TSUMUJI_EINVAL, EINVAL);
    FAILS(tsumuji_open_env(options, &none), TSUMUJI_EINVAL, EINVAL);
    FAILS(tsumuji_members_add((tsumuji_members *)addrdb, 0, "127.0.0.1:1"), TSUMUJI_EINVAL, EINVAL);
    tsumuji_members_free((tsumuji_members *)addrdb);
    CHECK(datagram_addrdb_add(addrdb, 0, "127.0.0.1:1") == 0);
    datagram_addrdb_free(addrdb);
    datagram_addrdb_free(addrdb);
    FAILS(datagram_addrdb_add(addrdb, 1, "127.0.0.1:2"), -1, EINVAL);
    CHECK(datagram(addrdb, NULL, 0, 0) == NULL && errno == EINVAL);
    tsumuji_members_free(members);
    FAILS(tsumuji_open_members(members, NULL, 0, NULL, &none), TSUMUJI_EINVAL, EINVAL);
    CHECK(none == NULL);
}

static int ended(pid_t child)
{
    int status = -1;

    CHECK(waitpid(child, &status, 0) == child);
    return status;
}

/* A child's handles are its parent's, also where the parent gave them up; what it does with them reaches nobody. */
static void forks(int threads)
{
    tsumuji_options *options = tsumuji_options_new();

    /* With metrics or an assistant the handle has a thread, which the child has not: its memory is lost there. */
    CHECK(tsumuji_options_set(options, "metrics", threads ? "local" : "off") == 0);
    CHECK(tsumuji_options_set(options, "progress", progress) == 0);
    pid_t child = fork();
    if (child == 0) {
        refused(a, TSUMUJI_ETHREAD);
        CHECK(tsumuji_acquire_ownership(a) == TSUMUJI_ETHREAD);
        _exit(0);
    }
    CHECK(ended(child) == 0);
    CHECK(tsumuji_me(a) == 0);

    tsumuji *own = NULL;
    int fd = tsumuji_shm_create(1);
    CHECK(tsumuji_open_shm(fd, 1, 0, options, &own) == 0);
    close(fd);
    tsumuji_options_free(options);
    CHECK(tsumuji_release_ownership(own) == 0);
    child = fork();
    if (child == 0) {
        CHECK(tsumuji_acquire_ownership(own) == TSUMUJI_ETHREAD && tsumuji_close(own, 0) == TSUMUJI_ETHREAD);
        _exit(0);
    }
    CHECK(ended(child) == 0);
    CHECK(tsumuji_me(own) == TSUMUJI_ETHREAD);
    CHECK(tsumuji_acquire_ownership(own) == 0 && tsumuji_close(own, 0) == 0);
}

static int called;

static void calls_back(void *context, const tsumuji_message *message)
{
    (void)message;
    called++;
    refused(context, TSUMUJI_EBUSY);
    CHECK(tsumuji_me(b) == 1); /* another handle of the thread may be used */
}

static void combine_calls_back(void *context, const void *left, const void *right, void *result, size_t count)
{
    called++;
    refused(context, TSUMUJI_EBUSY);
    add(NULL, left, right, result, count);
}

static uint64_t policy_calls_back(void *context, const tsumuji_sender *sender)
{
    (void)sender;
    called++;
    refused(context, TSUMUJI_EBUSY);
    return UINT64_MAX;
}

/* Callbacks that use the handle that called them. */
static void callbacks(void)
{
    tsumuji_handler handler = {.size = sizeof handler, .context = a, .message = calls_back};
    tsumuji_combine by = {.size = sizeof by, .element_bytes = 1, .function = combine_calls_back, .context = a};
    char sum[3] = {1, 2, 3}, others[3] = {1, 1, 1};
    uint64_t mine, its;

    CHECK(tsumuji_set_policy(a, policy_calls_back, a) == 0);
    CHECK(tsumuji_send(b, 0, TSUMUJI_DEFAULT_CHANNEL, "x", 1) == 0);
    while (called == 0)
        CHECK(tsumuji_progress(b) >= 0 && tsumuji_poll(a, &handler, 0) >= 0);
    while (tsumuji_queue_length(b, 0) > 0)
        CHECK(tsumuji_progress(b) >= 0 && tsumuji_poll(a, &handler, 0) >= 0);
    CHECK(tsumuji_set_policy(a, NULL, NULL) == 0);

    called = 0;
    CHECK(tsumuji_all_reduce_by(a, TSUMUJI_WORLD, sum, 3, &by, &mine) == 0);
    by.function = add;
    CHECK(tsumuji_all_reduce_by(b, TSUMUJI_WORLD, others, 3, &by, &its) == 0);
    while (tsumuji_test(a, mine) == 0 || tsumuji_test(b, its) == 0)
        continue;
    CHECK(tsumuji_wait(a, mine) == 0 && tsumuji_wait(b, its) == 0);
    CHECK(called > 0 && sum[0] == 2 && sum[2] == 4 && memcmp(sum, others, 3) == 0);
}

/* Descriptions of functions that are none. */
static void functions(void)
{
    tsumuji_combine by = {.size = sizeof by, .element_bytes = 8, .function = add};
    double data[2] = {0.0};

    FAILS(tsumuji_all_reduce_by(a, TSUMUJI_WORLD, data, 1, NULL, NULL), TSUMUJI_EINVAL, EINVAL);
    by.function = NULL;
    FAILS(tsumuji_all_reduce_by(a, TSUMUJI_WORLD, data, 1, &by, NULL), TSUMUJI_EINVAL, EINVAL);
    by.function = add;
    by.element_bytes = 0;
    FAILS(tsumuji_all_reduce_by(a, TSUMUJI_WORLD, data, 1, &by, NULL), TSUMUJI_EINVAL, EINVAL);
    by.element_bytes = (1 << 20) + 1;
    FAILS(tsumuji_reduce_by(a, TSUMUJI_WORLD, 0, data, data + 1, 1, &by, NULL), TSUMUJI_EINVAL, EINVAL);
    by.element_bytes = 8;
    FAILS(tsumuji_all_reduce_by(a, TSUMUJI_WORLD, data, SIZE_MAX / 4, &by, NULL), TSUMUJI_EINVAL, EINVAL);
    FAILS(tsumuji_reduce_by(a, TSUMUJI_WORLD, 0, data, data, 1, &by, NULL), TSUMUJI_EINVAL, EINVAL); /* overlap */
    by.ordered = 2;
    FAILS(tsumuji_all_reduce_by(a, TSUMUJI_WORLD, data, 1, &by, NULL), TSUMUJI_EINVAL, EINVAL);
    by.ordered = 0;
    by.size = SIZE_MAX;
    FAILS(tsumuji_all_reduce_by(a, TSUMUJI_WORLD, data, 1, &by, NULL), TSUMUJI_EINVAL, EINVAL);
    by.size = 8;
    FAILS(tsumuji_all_reduce_by(a, TSUMUJI_WORLD, data, 1, &by, NULL), TSUMUJI_EINVAL, EINVAL);
}

/* Structures of any stated size, and places without alignment. */
static void structures(void)
{
    static unsigned char raw[5000];
    tsumuji_flow flow;
    tsumuji_handler handler = {.size = sizeof handler, .message = on_message};
    size_t sizes[] = {1, 7, 8, sizeof flow, 4096};

    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        memset(raw, 0xee, sizeof raw);
        CHECK(tsumuji_get_flow(a, 1, (tsumuji_flow *)(void *)(raw + 1), sizes[i]) == 0);
        CHECK(raw[0] == 0xee && raw[1 + sizes[i]] == 0xee);
    }
    FAILS(tsumuji_get_flow(a, 1, &flow, 0), TSUMUJI_EINVAL, EINVAL);
    FAILS(tsumuji_get_flow(a, 1, &flow, 4097), TSUMUJI_EINVAL, EINVAL);
    FAILS(tsumuji_get_flow(a, 1, &flow, SIZE_MAX), TSUMUJI_EINVAL, EINVAL);
    FAILS(tsumuji_get_flow(a, 1, NULL, sizeof flow), TSUMUJI_EINVAL, EINVAL);
    handler.size = SIZE_MAX;
    FAILS(tsumuji_poll(a, &handler, 0), TSUMUJI_EINVAL, EINVAL);
    handler.size = 0;
    FAILS(tsumuji_poll(a, &handler, 0), TSUMUJI_EINVAL, EINVAL);
    FAILS(tsumuji_get_remote_flows(a, 0, NULL, sizeof(tsumuji_remote_flow), 5, 0), TSUMUJI_EINVAL, EINVAL);
    FAILS(tsumuji_get_remote_flows(a, 0, (void *)raw, SIZE_MAX, 5, 0), TSUMUJI_EINVAL, EINVAL);
    CHECK(tsumuji_get_remote_flows(a, 0, NULL, 0, 0, 0) == 1);
    CHECK(tsumuji_get_remote_flows(a, 0, (void *)(raw + 3), sizeof(tsumuji_remote_flow), 9, 0) == 1);

    memset(raw, 0, sizeof raw);
    handler.size = sizeof handler;
    memcpy(raw + 1, &handler, sizeof handler);
    CHECK(tsumuji_poll(a, (tsumuji_handler *)(void *)(raw + 1), 0) >= 0);
    CHECK(tsumuji_send_tracked(a, 1, TSUMUJI_DEFAULT_CHANNEL, raw + 3, 5, (uint64_t *)(void *)(raw + 1)) == 0);
    while (tsumuji_recv_borrow(b, (tsumuji_message *)(void *)(raw + 1), 0) == TSUMUJI_EAGAIN)
        CHECK(tsumuji_progress(a) >= 0);
    CHECK(tsumuji_release(b, (tsumuji_message *)(void *)(raw + 1)) == 0);
    FAILS(tsumuji_release(b, (tsumuji_message *)(void *)(raw + 1)), TSUMUJI_EINVAL, EINVAL);
    for (int i = 0; i < 1000; i++) { /* forged ones */
        tsumuji_message borrowed = {.data = raw, .borrow = (uint64_t)i << 32 | (uint64_t)(i % 3)};
        FAILS(tsumuji_release(b, &borrowed), TSUMUJI_EINVAL, EINVAL);
    }
}

/* Texts without end, and such that are not UTF-8. */
static void texts(void)
{
    long page = sysconf(_SC_PAGESIZE);
    size_t bytes = 128 << 10;
    char *endless = mmap(NULL, bytes + (size_t)page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    tsumuji_options *options = tsumuji_options_new();
    tsumuji_members *members = tsumuji_members_new();
    tsumuji *none = NULL;

    CHECK(endless != MAP_FAILED && mprotect(endless + bytes, (size_t)page, PROT_NONE) == 0);
    memset(endless, 'x', bytes);
    FAILS(tsumuji_options_set(options, endless, "1"), TSUMUJI_EINVAL, EINVAL);
    FAILS(tsumuji_options_set(options, "idle", endless), TSUMUJI_EINVAL, EINVAL);
    FAILS(tsumuji_members_add(members, 0, endless), TSUMUJI_EINVAL, EINVAL);
    FAILS(tsumuji_open_cluster(endless, 0, NULL, &none), TSUMUJI_EINVAL, EINVAL);
    FAILS(tsumuji_report_error(endless), TSUMUJI_EINVAL, EINVAL);
    CHECK(datagram_addrdb_read(endless) == NULL && errno == EINVAL);
    FAILS(tsumuji_options_set(options, "idle", "\xff"), TSUMUJI_EINVAL, EINVAL);
    FAILS(tsumuji_options_set(options, "\xff", "sleep"), TSUMUJI_EINVAL, EINVAL);
    FAILS(tsumuji_members_add(members, 0, "127.0.0.1\xff:1"), TSUMUJI_EINVAL, EINVAL);
    /* Names of files are any bytes. */
    CHECK(tsumuji_options_set(options, "key", "/tmp/\xff\xfe") == 0);
    CHECK(tsumuji_open_cluster("/no\xff/where", 0, NULL, &none) == TSUMUJI_EOPEN && errno == ENOENT);
    CHECK(datagram_addrdb_read("/no\xff/where") == NULL && errno == ENOENT);
    /* Files that never end, and such that are none. */
    CHECK(tsumuji_open_cluster("/dev/zero", 0, NULL, &none) == TSUMUJI_EOPEN);
    CHECK(datagram_addrdb_read("/dev/zero") == NULL && errno == EFBIG);
    CHECK(datagram_addrdb_read("/tmp") == NULL && errno == EISDIR);
    tsumuji_options_free(options);
    tsumuji_members_free(members);
    CHECK(munmap(endless, bytes + (size_t)page) == 0);
}

/* Descriptors of anything but a launch's memory. */
static void descriptors(void)
{
    int ends[2], nothing = open("/dev/null", O_RDWR), folder = open("/tmp", O_RDONLY);
    int memory = memfd_create("hostile", 0);
    tsumuji *none = NULL;

    CHECK(pipe(ends) == 0 && nothing >= 0 && folder >= 0 && memory >= 0);
    int all[] = {ends[0], nothing, folder, memory, 9999, -1, INT_MIN};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        int opened = tsumuji_open_shm(all[i], 2, 0, NULL, &none);
        CHECK((opened == TSUMUJI_EOPEN || opened == TSUMUJI_EINVAL) && none == NULL);
    }
    for (off_t size = 1; size <= 64 << 20; size *= 16) {
        CHECK(ftruncate(memory, size) == 0);
        CHECK(tsumuji_open_shm(memory, 2, 0, NULL, &none) == TSUMUJI_EOPEN && none == NULL);
    }
    close(ends[0]);
    close(ends[1]);
    close(nothing);
    close(folder);
    close(memory);
    int counts[] = {INT_MIN, -1, 0, 1 << 20, INT_MAX};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        FAILS(tsumuji_shm_create(counts[i]), TSUMUJI_EOPEN, EINVAL);
        CHECK(tsumuji_open_shm(0, counts[i], 0, NULL, &none) < 0 && none == NULL);
    }
}

static uint64_t dice = 88172645463325252u;

static uint64_t any(void)
{
    dice ^= dice << 13;
    dice ^= dice >> 7;
    dice ^= dice << 17;
    return dice;
}

/* Numbers out of all bounds, in every place where one goes: a documented answer, and never a bug's. */
static void numbers(void)
{
    static const int ints[] = {0, 1, -1, 2, 3, 31, 64, 255, 256, 65535, 65536, INT_MAX, INT_MIN};
    static const size_t sizes[] = {0, 1, 7, 100, SIZE_MAX, SIZE_MAX / 2 + 1};
    static const int64_t longs[] = {0, 1, 7, -2, 1000000, INT64_MAX, INT64_MIN};
    static const uint64_t words[] = {0, 1, 2, UINT64_MAX, UINT64_C(1) << 32};
    static unsigned char data[4096];
    static double values[100];
    tsumuji_board *other;
    tsumuji_datagram datagram;
    uint64_t request;

#define PICK(all) ((all)[any() % (sizeof(all) / sizeof *(all))])
#define I PICK(ints)
#define S PICK(sizes)
#define L PICK(longs)
#define W PICK(words)
#define KNOWN(call) \
    do { \
        int64_t code = (int64_t)(call); \
        CHECK(code >= TSUMUJI_EMISMATCH && code != TSUMUJI_EPANIC && code != TSUMUJI_ETHREAD && code != TSUMUJI_EBUSY); \
    } while (0)
    for (int i = 0; i < 3000; i++) {
        KNOWN(tsumuji_channel_of(I, I, I));
        KNOWN(tsumuji_try_send(a, I, I, data, S));
        KNOWN(tsumuji_try_send(a, I, I, NULL, S));
        KNOWN(tsumuji_is_sent(a, I, W));
        KNOWN(tsumuji_wait_sent(a, I, W, 0));
        KNOWN(tsumuji_wait_writable(a, I, I, S, 0));
        KNOWN(tsumuji_queue_length(a, I));
        KNOWN(tsumuji_open_channel(a, I, S, NULL));
        KNOWN(tsumuji_close_channel(a, I));
        KNOWN(tsumuji_channel_state(a, I, (void *)data, S % 64));
        KNOWN(tsumuji_ready_on(a, I, I, NULL, 0));
        KNOWN(tsumuji_recv_on(a, I, I, data, sizeof data, NULL, 0));
        KNOWN(tsumuji_post(a, I, I, room, sizeof room, &post));
        KNOWN(tsumuji_post(a, I, I, NULL, S, &post));
        KNOWN(tsumuji_wait_posted(a, W, 0));
        KNOWN(tsumuji_unpost(a, W % 100, NULL));
        KNOWN(tsumuji_is_up(a, I));
        KNOWN(tsumuji_is_dead(a, I));
        KNOWN(tsumuji_congestion_differs(a, I));
        KNOWN(tsumuji_reconnect(a, I));
        KNOWN(tsumuji_request_flows(a, I, I, I));
        KNOWN(tsumuji_get_remote_flow(a, I, I, (void *)data, sizeof(tsumuji_flow), 0));
        KNOWN(tsumuji_set_window(a, S));
        KNOWN(tsumuji_set_peer_window(a, I, S));
        KNOWN(tsumuji_set_budget(a, S));
        KNOWN(tsumuji_set_pace(a, I, L));
        (void)tsumuji_name(a, I);
        (void)tsumuji_address(a, I);
        KNOWN(tsumuji_group_rank(a, I));
        KNOWN(tsumuji_group_size(a, I));
        KNOWN(tsumuji_group((void *)a, ints, S, 1));
        KNOWN(tsumuji_test(a, W));
        KNOWN(tsumuji_board_open(a, I, sizes, I, &other));
        KNOWN(tsumuji_board_close(other));
        KNOWN(tsumuji_board_write(board, S, values, S, (uint32_t)W));
        KNOWN(tsumuji_board_publish(board, S, any() % 2 ? values : NULL, S, (uint32_t)W));
        KNOWN(tsumuji_board_repair(board));
        KNOWN(tsumuji_board_wait(board, I, (uint32_t)W, 0));
        KNOWN(tsumuji_board_get(board, S, any() % 2 ? values : NULL, S));
        KNOWN(tsumuji_board_lap(board, I));
        KNOWN(tsumuji_board_staleness(board, I));
        KNOWN(tsumuji_board_get_drops(board, (void *)data, S % 64));
        memset(&datagram, (int)any(), sizeof datagram);
        datagram.data = any() % 2 ? data : NULL;
        datagram.bytes = S;
        KNOWN(tsumuji_send_datagram(a, I, &datagram, L));
        KNOWN(tsumuji_recv_datagram(a, I, data, sizeof data, &datagram, 0));
        KNOWN(tsumuji_broadcast(a, I, I, NULL, S | 1, &request));
        KNOWN(tsumuji_broadcast(a, TSUMUJI_WORLD, 0, data, SIZE_MAX - (any() % 4096), &request));
        KNOWN(tsumuji_gather(a, TSUMUJI_WORLD, 0, data, SIZE_MAX / 2, data + 1, NULL, &request));
        KNOWN(tsumuji_all_reduce(a, TSUMUJI_WORLD, data, SIZE_MAX / 8 + 1, I, I, &request));
        KNOWN(tsumuji_strerror(I) ? 0 : TSUMUJI_EPANIC);
        KNOWN(datagram_destination((void *)a, I));
        KNOWN(datagram_wait((void *)a, 0, 0, I, I));
        KNOWN(datagram_read0((void *)a, NULL, I));
        KNOWN(datagram_set_window((void *)a, S));
        KNOWN(datagram_slow_write((void *)a, I, L));
        if (i % 16 == 0) {
            KNOWN(tsumuji_progress(a));
            KNOWN(tsumuji_progress(b));
            while (tsumuji_try_recv(b, data, sizeof data, NULL) >= 0)
                continue;
        }
    }
    CHECK(tsumuji_me(a) == 0 && tsumuji_me(b) == 1);
    /* A message larger than any. */
    void *huge = mmap(NULL, (size_t)5 << 30, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (huge != MAP_FAILED) {
        CHECK(tsumuji_try_send(a, 1, TSUMUJI_DEFAULT_CHANNEL, huge, (size_t)5 << 30) == TSUMUJI_EMSGSIZE);
        CHECK(munmap(huge, (size_t)5 << 30) == 0);
    }
}

/* With any argument: under a checker of memory. */
int main(int argc, char **argv)
{
    (void)argv;
    if (argc > 1)
        progress = "program";
    refused(NULL, TSUMUJI_EINVAL);
    CHECK(tsumuji_acquire_ownership(NULL) == TSUMUJI_EINVAL && tsumuji_close(NULL, 0) == 0 && datagram_close(NULL) == 0);
    objects();
    texts();
    descriptors();
    open_both();
    threads();
    forks(argc == 1);
    callbacks();
    functions();
    structures();
    numbers();
    /* What was sent above and not waited for is given up, and told of. */
    int closed = tsumuji_close(a, 0);
    CHECK(closed == 0 || (closed == TSUMUJI_ELOST && strstr(tsumuji_last_error(), "messages to node")));
    closed = tsumuji_close(b, 0);
    CHECK(closed == 0 || closed == TSUMUJI_ELOST);
    refused(a, TSUMUJI_EINVAL);
    FAILS(tsumuji_close(a, 0), TSUMUJI_EINVAL, EBADF);
    CHECK(tsumuji_board_close(board) == 0);
    FAILS(tsumuji_acquire_ownership(a), TSUMUJI_EINVAL, EBADF);
    puts("hostile: all right");
    return 0;
}
