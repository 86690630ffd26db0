/*
 * Channels with owners: a mailbox of its own whose budget stops its sender and nobody else, a handler that answers while its program does
 * nothing, and threads that send.
 */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <tsumuji.h>

#define WAIT_US (60 * INT64_C(1000000))
#define MAILBOX 7
#define ECHO 8
#define THREADS 3
#define EACH 500

static tsumuji *a, *b;

static void failed(const char *what, int line)
{
    fprintf(stderr, "channels: line %d: %s (%s)\n", line, what, tsumuji_last_error());
    exit(1);
}

#define CHECK(it) ((it) ? (void)0 : failed(#it, __LINE__))

static void on_message(void *context, const tsumuji_message *message)
{
    int *count = context;

    CHECK(message->from == 0);
    /* The handle is busy with the call that led here, or belongs to another thread. */
    CHECK(tsumuji_send(b, 0, TSUMUJI_DEFAULT_CHANNEL, "no", 2) < 0);
    CHECK(tsumuji_reply(message, message->data, message->bytes) == 0);
    CHECK(tsumuji_send_from(message, 0, tsumuji_channel_of(TSUMUJI_ORDERED, TSUMUJI_NORMAL, 9), "also", 4) == 0);
    CHECK(tsumuji_send_from(message, 0, -1, "", 0) == TSUMUJI_EINVAL);
    ++*count;
}

static void on_writable(void *context, int peer, int channel)
{
    CHECK(peer == 1 && channel == MAILBOX);
    ++*(int *)context;
}

static void never(void *context, const tsumuji_message *message)
{
    (void)context;
    (void)message;
    failed("a message for nobody", __LINE__);
}

static void turns(void)
{
    CHECK(tsumuji_progress(a) >= 0 && tsumuji_progress(b) >= 0);
}

static void mailbox(void)
{
    int channel = tsumuji_channel_of(TSUMUJI_ORDERED, TSUMUJI_NORMAL, MAILBOX);
    tsumuji_channel state = {0};
    tsumuji_message borrowed;
    int writable = 0;
    tsumuji_handler handler = {.size = sizeof handler, .context = &writable, .message = never};
    char block[1000] = {0};
    int sent = 0, taken = 0, code;
    size_t bytes;

    handler.writable = on_writable;
    CHECK(tsumuji_open_channel(b, MAILBOX, 100000, NULL) == 0);
    CHECK(tsumuji_open_channel(b, MAILBOX, 0, NULL) == TSUMUJI_EINVAL);
    CHECK(tsumuji_recv_on(b, ECHO, -1, block, sizeof block, NULL, 0) == TSUMUJI_EINVAL);
    CHECK(tsumuji_recv_on(b, MAILBOX, 0, block, sizeof block, NULL, 0) == TSUMUJI_EAGAIN);
    while (state.stopped_peers == 0) {
        memcpy(block, &sent, sizeof sent);
        code = tsumuji_try_send(a, 1, channel, block, sizeof block);
        CHECK(code == 0 || code == TSUMUJI_EAGAIN);
        sent += code == 0;
        turns();
        CHECK(tsumuji_channel_state(b, MAILBOX, &state, sizeof state) == 0);
    }
    CHECK(state.budget_bytes == 100000 && state.used_bytes > 50000 && state.messages > 0);
    while (tsumuji_try_send(a, 1, channel, block, 0) == 0) /* until the word has come */
        sent++, turns();
    CHECK(errno == EAGAIN && tsumuji_wait_writable(a, 1, channel, 1, 0) == 0);
    CHECK(tsumuji_wait_writable(a, 1, TSUMUJI_DEFAULT_CHANNEL, 1, WAIT_US) == 1);
    CHECK(tsumuji_send(a, 1, TSUMUJI_DEFAULT_CHANNEL, "hello", 5) == 0);
    CHECK(tsumuji_recv(b, block, sizeof block, NULL, WAIT_US) == 5 && memcmp(block, "hello", 5) == 0);
    CHECK(tsumuji_ready_on(b, MAILBOX, 0, &bytes, WAIT_US) == 1 && bytes == 1000);
    CHECK(tsumuji_recv_borrow_on(b, MAILBOX, -1, &borrowed, WAIT_US) == 0 && borrowed.bytes == 1000);
    for (taken = 1; taken < sent; taken++) {
        int number;
        ptrdiff_t got = tsumuji_recv_on(b, MAILBOX, -1, block, sizeof block, NULL, WAIT_US);

        if (got == 1000) {
            memcpy(&number, block, sizeof number);
            CHECK(number == taken);
        } else {
            CHECK(got == 0);
        }
        CHECK(tsumuji_progress(a) >= 0);
    }
    CHECK(tsumuji_channel_state(b, MAILBOX, &state, sizeof state) == 0);
    CHECK(state.messages == 0 && state.used_bytes == 1064); /* the one that is borrowed */
    CHECK(tsumuji_release(b, &borrowed) == 0);
    CHECK(tsumuji_channel_state(b, MAILBOX, &state, sizeof state) == 0 && state.used_bytes == 0);
    while (writable == 0) {
        CHECK(tsumuji_poll(a, &handler, 100) >= 0);
        turns();
    }
    CHECK(tsumuji_send(a, 1, channel, "last", 4) == 0);
    while (tsumuji_ready_on(b, MAILBOX, -1, NULL, 100) == 0)
        turns();
    CHECK(tsumuji_close_channel(b, MAILBOX) == 1 && tsumuji_close_channel(b, MAILBOX) == TSUMUJI_EINVAL);
}

static void echo(void)
{
    int channel = tsumuji_channel_of(TSUMUJI_ORDERED, TSUMUJI_NORMAL, ECHO), count = 0;
    tsumuji_handler handler = {.size = sizeof handler, .context = &count, .message = on_message};
    tsumuji_message stale = {0};
    char got[100];

    CHECK(tsumuji_reply(&stale, "", 0) == TSUMUJI_EINVAL && tsumuji_reply(NULL, "", 0) == TSUMUJI_EINVAL);
    CHECK(tsumuji_open_channel(b, ECHO, 0, &handler) == 0);
    for (int number = 0; number < 100; number++) { /* and no call on b */
        CHECK(tsumuji_send(a, 1, channel, &number, sizeof number) == 0);
        CHECK(tsumuji_recv_on(a, -1, 1, got, sizeof got, NULL, WAIT_US) == sizeof number);
        CHECK(memcmp(got, &number, sizeof number) == 0);
        CHECK(tsumuji_recv(a, got, sizeof got, NULL, WAIT_US) == 4 && memcmp(got, "also", 4) == 0);
    }
    CHECK(tsumuji_close_channel(b, ECHO) == 0 && count == 100);
}

static void posted(void)
{
    enum { ROW = 200000, ROWS = 3 };
    int channel = tsumuji_channel_of(TSUMUJI_ORDERED, TSUMUJI_NORMAL, MAILBOX);
    unsigned char *matrix = calloc(ROWS, ROW), *row = malloc(ROW);
    tsumuji_message about;
    uint64_t posts[ROWS];

    CHECK(matrix && row);
    CHECK(tsumuji_post(b, MAILBOX, 0, matrix, ROW, posts) == TSUMUJI_EINVAL); /* not open */
    CHECK(tsumuji_open_channel(b, MAILBOX, 0, NULL) == 0);
    CHECK(tsumuji_post(b, MAILBOX, 9, matrix, ROW, posts) == TSUMUJI_EUNKNOWN);
    CHECK(tsumuji_post(b, MAILBOX, 0, NULL, ROW, posts) == TSUMUJI_EINVAL);
    CHECK(tsumuji_post(b, MAILBOX, 0, matrix, ROW, NULL) == TSUMUJI_EINVAL);
    CHECK(tsumuji_post(b, -1, 0, matrix, ROW, posts) == TSUMUJI_EINVAL);
    for (int i = 0; i < ROWS; i++)
        CHECK(tsumuji_post(b, MAILBOX, i == 1 ? -1 : 0, matrix + i * ROW, ROW - i, &posts[i]) == 0);
    CHECK(tsumuji_wait_posted(b, posts[0], 0) == 0);
    memset(row, 7, ROW);
    CHECK(tsumuji_send(a, 1, channel, row, ROW) == 0);
    memset(row, 8, ROW);
    CHECK(tsumuji_send(a, 1, channel, row, 100) == 0);
    CHECK(tsumuji_send(a, 1, channel, row, ROW) == 0);
    for (int i = 0; i < ROWS; i++)
        CHECK(tsumuji_wait_posted(b, posts[i], WAIT_US) == 1);
    CHECK(tsumuji_unpost(b, posts[0], &about) == ROW);
    CHECK(about.from == 0 && about.channel == channel && about.bytes == ROW && about.data == NULL);
    CHECK(tsumuji_unpost(b, posts[1], NULL) == 100);
    CHECK(tsumuji_unpost(b, posts[2], &about) == TSUMUJI_EMSGSIZE);
    CHECK(tsumuji_unpost(b, posts[2], &about) == TSUMUJI_EINVAL);
    CHECK(tsumuji_wait_posted(b, posts[2], 0) == TSUMUJI_EINVAL);
    CHECK(tsumuji_recv_on(b, MAILBOX, 0, row, ROW, &about, WAIT_US) == ROW); /* the one that was too long */
    for (int i = 0; i < ROW; i++)
        CHECK(matrix[i] == 7 && matrix[ROW + i] == (i < 100 ? 8 : 0) && matrix[2 * ROW + i] == 0 && row[i] == 8);
    CHECK(tsumuji_post(b, MAILBOX, -1, matrix, ROW, posts) == 0);
    CHECK(tsumuji_close_channel(b, MAILBOX) == 0 && tsumuji_wait_posted(b, posts[0], 0) == 1);
    CHECK(tsumuji_unpost(b, posts[0], NULL) == TSUMUJI_EAGAIN);
    free(matrix);
    free(row);
}

static void *send_some(void *sender)
{
    for (int number = 0; number < EACH; number++)
        CHECK(tsumuji_thread_send(sender, 1, TSUMUJI_DEFAULT_CHANNEL, &number, sizeof number, WAIT_US) == 0);
    return NULL;
}

static void *wake(void *sender)
{
    struct timespec pause = {.tv_nsec = 5000000};

    nanosleep(&pause, NULL);
    CHECK(tsumuji_thread_wake(sender) == 0);
    return NULL;
}

static void threads(void)
{
    tsumuji_thread_sender *sender = tsumuji_thread_sender_new(a);
    pthread_t running[THREADS];
    int number, sum = 0;

    CHECK(sender != NULL);
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_create(&running[i], NULL, send_some, sender) == 0);
    for (int i = 0; i < THREADS * EACH; i++) { /* and no call on a */
        CHECK(tsumuji_recv(b, &number, sizeof number, NULL, WAIT_US) == sizeof number);
        sum += number;
    }
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_join(running[i], NULL) == 0);
    CHECK(sum == THREADS * EACH * (EACH - 1) / 2);
    CHECK(pthread_create(&running[0], NULL, wake, sender) == 0);
    CHECK(tsumuji_ready(a, NULL, WAIT_US) == 0); /* long before its time has passed */
    CHECK(pthread_join(running[0], NULL) == 0);
    CHECK(tsumuji_thread_send(sender, 0, TSUMUJI_DEFAULT_CHANNEL, "", 0, 0) == TSUMUJI_EUNKNOWN);
    CHECK(tsumuji_thread_send(sender, 1, -1, "", 0, 0) == TSUMUJI_EINVAL);
    tsumuji_close(a, WAIT_US);
    CHECK(tsumuji_thread_send(sender, 1, TSUMUJI_DEFAULT_CHANNEL, "", 0, 0) == TSUMUJI_EINVAL && errno == EBADF);
    tsumuji_thread_sender_free(sender);
    tsumuji_thread_sender_free(sender);
    CHECK(tsumuji_thread_wake(sender) == TSUMUJI_EINVAL);
}

static int released;

static void release(void *context)
{
    CHECK(context == &released);
    ++released;
}

static void shared(void)
{
    static char block[300000];
    uint64_t id;
    char *got = malloc(sizeof block);

    for (size_t i = 0; i < sizeof block; i++)
        block[i] = (char)(i * 7 % 251);
    CHECK(tsumuji_send_shared(a, 1, TSUMUJI_DEFAULT_CHANNEL, block, 100, release, &released, NULL) == 0 && released == 1);
    CHECK(tsumuji_send_shared(a, 1, TSUMUJI_DEFAULT_CHANNEL, block, sizeof block, release, &released, &id) == 0);
    CHECK(tsumuji_recv(b, got, sizeof block, NULL, WAIT_US) == 100);
    CHECK(tsumuji_recv(b, got, sizeof block, NULL, WAIT_US) == sizeof block);
    CHECK(memcmp(got, block, sizeof block) == 0);
    CHECK(tsumuji_wait_sent(a, 1, id, WAIT_US) == 1 && released == 2);
    CHECK(tsumuji_send_shared(a, 7, TSUMUJI_DEFAULT_CHANNEL, block, 100, release, &released, &id) == TSUMUJI_EUNKNOWN);
    CHECK(tsumuji_send_shared(a, 1, -1, block, sizeof block, release, &released, &id) == TSUMUJI_EINVAL);
    CHECK(tsumuji_send_shared(a, 1, TSUMUJI_DEFAULT_CHANNEL, NULL, 1, release, &released, &id) == TSUMUJI_EINVAL);
    CHECK(released == 5); /* what could not be sent, too */
    CHECK(tsumuji_send_shared(a, 1, TSUMUJI_DEFAULT_CHANNEL, block, 1, NULL, &released, &id) == TSUMUJI_EINVAL);
    free(got);
}

int main(void)
{
    int fd = tsumuji_shm_create(2);

    CHECK(fd >= 0);
    CHECK(tsumuji_open_shm(fd, 2, 0, NULL, &a) == 0 && tsumuji_open_shm(fd, 2, 1, NULL, &b) == 0);
    mailbox();
    posted();
    echo();
    shared();
    threads();
    tsumuji_close(b, 0);
    puts("channels: all right");
    return 0;
}
