/*
 * The typical loop of the Suci paper, with flow control in the program's hands: compute; take a block if one is complete; else write one
 * where it can be written without waiting, and send again what was not acknowledged.
 *
 * Every process writes BLOCKS blocks to every other one, and checks those that it gets.
 *
 *     tsumuji launch -n 4 --link shm -- ./suci_loop 1000
 *     ./suci_loop 1000 addresses.txt 0 & ./suci_loop 1000 addresses.txt 1
 *
 * The second form takes an address database, this process's id, and if wanted a link ("packet:eth1") for all.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <suci.h>

enum { SEC = 0, USEC = 100, SIZE = 3000, IDS_MAX = 1024 };

struct peer {
    int id;
    int written;
    int read;
};

static struct peer peers[IDS_MAX];
static int peer_count;

static int failed(const char *what)
{
    fprintf(stderr, "suci_loop: %s: %s\n", what, tsumuji_last_error());
    (void)tsumuji_report_error(tsumuji_last_error());
    return 1;
}

/* Block number n of process id: a number that begins it, and letters that can be told from those of all others. */
static int make_block(char *block, int id, int n)
{
    int size = 16 + (id * 7919 + n * 104729) % (SIZE - 16);
    int head = snprintf(block, 16, "%d %d", id, n);

    memset(block + head, 0, (size_t)(16 - head));
    memset(block + 16, 'a' + (id + n) % 26, (size_t)(size - 16));
    return size;
}

static struct peer *find(int id)
{
    for (int i = 0; i < peer_count; i++)
        if (peers[i].id == id)
            return &peers[i];
    return NULL;
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
    int ids[IDS_MAX];
    double x = 0.0;

    if (argc < 2 || argc == 3) {
        fprintf(stderr, "usage: suci_loop BLOCKS [DATABASE ID [LINK]]\n");
        return 2;
    }
    int blocks = atoi(argv[1]);
    datagram_addrdb *addrdb = NULL;
    if (argc > 2 && (addrdb = datagram_addrdb_read(argv[2])) == NULL)
        return failed("address database");
    datagram_socket *sock = datagram(addrdb, argc > 4 ? argv[4] : NULL, 0, argc > 3 ? atoi(argv[3]) : -1);
    datagram_addrdb_free(addrdb);
    if (sock == NULL)
        return failed("open");

    int me = datagram_id(sock);
    int count = datagram_ids(sock, ids, IDS_MAX);
    if (count < 0 || count > IDS_MAX)
        return failed("ids");
    for (int i = 0; i < count; i++)
        if (ids[i] != me)
            peers[peer_count++].id = ids[i];
    long to_write = (long)peer_count * blocks, to_read = to_write, sent_again = 0;
    int turn = 0;

    while (to_write > 0 || to_read > 0) {
        x = compute(x);

        int size = datagram_ready(sock, SEC, USEC);
        if (size < 0)
            return failed("ready");
        if (size > 0) {
            if (datagram_read0(sock, block, sizeof block) != size)
                return failed("read0");
            struct peer *from = find(datagram_from(sock));
            if (from == NULL || make_block(wanted, from->id, from->read) != size || memcmp(block, wanted, (size_t)size) != 0) {
                fprintf(stderr, "suci_loop: a wrong block from %d\n", datagram_from(sock));
                return 1;
            }
            from->read++;
            to_read--;
        } else {
            struct peer *to = &peers[turn++ % peer_count];
            if (to->written < blocks) {
                int length = make_block(block, me, to->written);
                if (datagram_destination(sock, to->id) < 0)
                    return failed("destination");
                int writable = datagram_wait(sock, SEC, USEC, length, to->id);
                if (writable < 0)
                    return failed("wait");
                if (writable) {
                    if (datagram_write0(sock, block, length) != length)
                        return failed("write0");
                    to->written++;
                    to_write--;
                }
            }
            struct peer *other = &peers[turn % peer_count];
            if (datagram_queue_length(sock, other->id) > 0) {
                int again = datagram_retransmission(sock, other->id);
                if (again < 0)
                    return failed("retransmission");
                sent_again += again;
            }
        }
    }
    printf("%d: wrote and read %ld blocks, all right (%g)\n", me, (long)peer_count * blocks, x);
    fprintf(stderr, "%d: %ld packets sent again on request\n", me, sent_again);
    return datagram_close(sock) < 0 ? failed("close") : 0;
}
