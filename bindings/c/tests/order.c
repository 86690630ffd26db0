/*
 * A thread sends numbered messages on an ordered channel; the other side calls progress, polls, and receives in between. Each message must
 * be the next, by whichever call it comes.
 */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <tsumuji.h>

#define MESSAGES 20000
#define WAIT_US (60 * INT64_C(1000000))

static int fd;
static uint32_t next;

static void fail(const char *what)
{
    fprintf(stderr, "order: %s (%s)\n", what, tsumuji_last_error());
    exit(1);
}

static void take(const void *data)
{
    uint32_t number;

    memcpy(&number, data, sizeof number);
    if (number != next) {
        fprintf(stderr, "order: message %u came where %u was due\n", number, next);
        exit(1);
    }
    next++;
}

static void on_message(void *context, const tsumuji_message *message)
{
    (void)context;
    take(message->data);
}

static void *send_all(void *unused)
{
    char message[100] = {0};
    tsumuji *node;

    (void)unused;
    if (tsumuji_open_shm(fd, 2, 1, NULL, &node) < 0)
        fail("the sender cannot open");
    for (uint32_t number = 0; number < MESSAGES; number++) {
        memcpy(message, &number, sizeof number);
        if (tsumuji_send(node, 0, TSUMUJI_DEFAULT_CHANNEL, message, sizeof message) < 0)
            fail("send");
    }
    if (tsumuji_flush(node, WAIT_US) != 1)
        fail("flush");
    tsumuji_close(node, WAIT_US);
    return NULL;
}

int main(void)
{
    tsumuji_handler handler = {.size = sizeof handler, .message = on_message};
    char buffer[100];
    pthread_t sender;
    tsumuji *node;

    fd = tsumuji_shm_create(2);
    if (fd < 0 || tsumuji_open_shm(fd, 2, 0, NULL, &node) < 0)
        fail("the receiver cannot open");
    if (pthread_create(&sender, NULL, send_all, NULL) != 0)
        fail("thread");
    for (unsigned step = 0; next < MESSAGES; step++) {
        for (unsigned turn = 0; turn < (step % 2 ? 500 : step % 7); turn++)
            if (tsumuji_progress(node) < 0)
                fail("progress");
        if (tsumuji_poll(node, &handler, 0) < 0 || tsumuji_poll(node, &handler, 100) < 0)
            fail("poll");
        if (tsumuji_try_recv(node, buffer, sizeof buffer, NULL) == (int)sizeof buffer)
            take(buffer);
    }
    tsumuji_close(node, 0);
    pthread_join(sender, NULL);
    puts("order: all right");
    return 0;
}
