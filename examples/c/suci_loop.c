/*
 * The typical loop of the Suci paper, with flow control in the program's hands: compute; take a block if one is complete; else write one
 * where it can be written without waiting, and send again what was not acknowledged.
 *
 *     cc -o suci_loop examples/c/suci_loop.c $(pkg-config --cflags --libs tsumuji)
 *     tsumuji launch -n 4 --link shm -- ./suci_loop 1000
 *     ./suci_loop 1000 addresses.txt 0 & ./suci_loop 1000 addresses.txt 1
 *
 * The last form takes an address database, this process's id, and if wanted a link ("packet:eth1") for all. Every process writes so many
 * blocks to every other one, checks those that it gets, and prints "0: wrote and read 3000 blocks, all right (2)".
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <suci.h>

enum { SEC = 0, USEC = 100, SIZE = 3000, IDS_MAX = 1024 };

static struct peer { int id, written, read; } peers[IDS_MAX];

/* Ends the program if a call failed; the launcher prints why. */
static int check(int result, const char *what)
{
    if (result >= 0)
        return result;
    fprintf(stderr, "suci_loop: %s: %s\n", what, tsumuji_last_error());
    (void)tsumuji_report_error(tsumuji_last_error());
    exit(1);
}

/* Block number n of process id: both begin it, and letters follow that can be told from those of all others. */
static int make_block(char *block, int id, int n)
{
    int size = 16 + (id * 7919 + n * 104729) % (SIZE - 16);

    memset(block, 0, 16);
    snprintf(block, 16, "%d %d", id, n);
    memset(block + 16, 'a' + (id + n) % 26, (size_t)(size - 16));
    return size;
}

/* What this program is for; here it only takes a while. */
static double compute(double x)
{
    for (int i = 0; i < 1000; i++)
        x = x * 0.5 + 1.0;
    return x;
}

int main(int argc, char **argv)
{
    static char block[SIZE], wanted[SIZE];
    int ids[IDS_MAX], peer_count = 0, blocks = argc > 1 ? atoi(argv[1]) : 1000;
    datagram_addrdb *addrdb = argc > 2 ? datagram_addrdb_read(argv[2]) : NULL;

    check(argc > 2 && addrdb == NULL ? -1 : 0, "address database");
    datagram_socket *sock = datagram(addrdb, argc > 4 ? argv[4] : NULL, 0, argc > 3 ? atoi(argv[3]) : -1);
    check(sock == NULL ? -1 : 0, "open");
    datagram_addrdb_free(addrdb);
    int me = datagram_id(sock), count = check(datagram_ids(sock, ids, IDS_MAX), "ids");
    for (int i = 0; i < count && i < IDS_MAX; i++)
        if (ids[i] != me)
            peers[peer_count++].id = ids[i];

    long all = (long)peer_count * blocks, to_write = all, to_read = all, sent_again = 0;
    double x = 0.0;
    for (int turn = 0; to_write > 0 || to_read > 0; turn++) {
        x = compute(x);
        int size = check(datagram_ready(sock, SEC, USEC), "ready");
        if (size > 0) {
            check(datagram_read0(sock, block, sizeof block), "read0");
            struct peer *from = peers;
            while (from < &peers[peer_count - 1] && from->id != datagram_from(sock))
                from++;
            if (make_block(wanted, from->id, from->read++) != size || memcmp(block, wanted, (size_t)size) != 0) {
                fprintf(stderr, "suci_loop: a wrong block from %d\n", from->id);
                return 1;
            }
            to_read--;
            continue;
        }
        struct peer *to = &peers[turn % peer_count], *other = &peers[(turn + 1) % peer_count];
        int length = make_block(block, me, to->written);
        check(datagram_destination(sock, to->id), "destination");
        if (to->written < blocks && check(datagram_wait(sock, SEC, USEC, length, to->id), "wait") > 0) {
            check(datagram_write0(sock, block, length), "write0");
            to->written++;
            to_write--;
        }
        if (datagram_queue_length(sock, other->id) > 0) /* not acknowledged yet */
            sent_again += check(datagram_retransmission(sock, other->id), "retransmission");
    }
    printf("%d: wrote and read %ld blocks, all right (%g)\n", me, all, x);
    fprintf(stderr, "%d: %ld packets sent again on request\n", me, sent_again);
    check(datagram_close(sock), "close");
    return 0;
}
