/*
 * Flow control in the program's hands: bulk blocks go to node 0, which does not take them yet. The senders see that, ask when they may go
 * on, and an urgent message overtakes what waits.
 *
 *     cc -o flow examples/c/flow.c $(pkg-config --cflags --libs tsumuji)
 *     tsumuji launch -n 3 --link udp -- ./flow 1000
 *
 * The argument is how many blocks each sender has. A sender prints when it may not send, and what its flow shows then; node 0 prints who
 * was urgent, and in the end "2000 blocks of 2 senders".
 */
#include <stdio.h>
#include <stdlib.h>

#include <tsumuji.h>

#define PATIENCE_US (30 * INT64_C(1000000))
#define BULK 1
#define BLOCK_BYTES (16 << 10)
/* What may wait at the receiver; when half of it does, senders are told to stop. */
#define BUDGET_BYTES (1 << 20)
/* Frames that all senders together may have on the way. */
#define WINDOW_FRAMES 64

/* Ends the program if a call failed; the launcher prints why. */
static int64_t check(int64_t code, const char *what)
{
    if (code >= 0)
        return code;
    fprintf(stderr, "flow: %s: %s\n", what, tsumuji_last_error());
    (void)tsumuji_report_error(tsumuji_last_error());
    exit(1);
}

static void send_blocks(tsumuji *node, int blocks)
{
    static char block[BLOCK_BYTES];
    int bulk = (int)check(tsumuji_channel_of(TSUMUJI_ORDERED, TSUMUJI_BULK, BULK), "channel");
    int urgent = (int)check(tsumuji_channel_of(TSUMUJI_ORDERED, TSUMUJI_URGENT, 0), "channel");
    int stops = 0, code;

    for (int sent = 0; sent < blocks; sent++) {
        while ((code = tsumuji_try_send(node, 0, bulk, block, sizeof block)) == TSUMUJI_EAGAIN) {
            if (stops++ == 0) {
                tsumuji_flow flow;
                check(tsumuji_get_flow(node, 0, &flow, sizeof flow), "flow");
                printf("node %d: block %d waits; %llu queued, credit for %llu frames\n", tsumuji_me(node), sent,
                       (unsigned long long)flow.queued_messages, (unsigned long long)flow.credit_frames);
                check(tsumuji_send(node, 0, urgent, "hurry", 5), "send");
            }
            /* A program with something to compute would do that here. */
            if (check(tsumuji_wait_writable(node, 0, bulk, sizeof block, PATIENCE_US), "wait") == 0) {
                fprintf(stderr, "flow: the receiver takes nothing\n");
                exit(1);
            }
        }
        check(code, "send");
    }
}

static void receive_blocks(tsumuji *node, int blocks)
{
    int senders = tsumuji_nodes(node) - 1;
    tsumuji_message message;
    tsumuji_channel waits;

    check(tsumuji_open_channel(node, BULK, BUDGET_BYTES, NULL), "channel");
    check(tsumuji_set_window(node, WINDOW_FRAMES), "window");
    for (int urgent = 0; urgent < senders; urgent++) {
        check(tsumuji_recv_borrow(node, &message, PATIENCE_US), "receive");
        printf("node %d is in a hurry\n", message.from);
        check(tsumuji_release(node, &message), "release");
    }
    check(tsumuji_channel_state(node, BULK, &waits, sizeof waits), "channel");
    printf("%zu blocks wait here\n", waits.messages);
    for (int block = 0; block < senders * blocks; block++) {
        check(tsumuji_recv_borrow_on(node, BULK, -1, &message, PATIENCE_US), "receive"); /* no copy */
        check(tsumuji_release(node, &message), "release");
    }
    printf("%d blocks of %d senders\n", senders * blocks, senders);
}

int main(int argc, char **argv)
{
    int blocks = argc > 1 ? atoi(argv[1]) : 1000;
    tsumuji *node = NULL;

    check(tsumuji_open_env(NULL, &node), "open");
    if (tsumuji_me(node) == 0)
        receive_blocks(node, blocks);
    else
        send_blocks(node, blocks);
    check(tsumuji_close(node, PATIENCE_US), "close");
    return 0;
}
