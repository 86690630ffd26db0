/*
 * Suci's calls between two sockets of one process, over UDP: a peer that ends and comes back, and a reader that stops. Each step prints nothing when it
 * is right; a wrong one names its line.
 */
#define _POSIX_C_SOURCE 200809L
#include <string.h>

#include <suci.h>
#include <tsumuji.h>

#include "plain.h"

/* A peer that ended fails one call, and is found again by the next when it is back. */
static void restart(void)
{
    datagram_addrdb *addrdb = datagram_addrdb_new();
    char got[8];
    int sent;

    CHECK(datagram_addrdb_add(addrdb, 1, at(7011)) == 0 && datagram_addrdb_add(addrdb, 2, at(7012)) == 0);
    datagram_socket *one = datagram(addrdb, NULL, 0, 1), *two = datagram(addrdb, NULL, 0, 2);
    CHECK(one && two && datagram_destination(one, 2) == 0 && datagram_write0(one, "first", 6) == 6);
    while (datagram_read0(two, got, sizeof got) != 6)
        CHECK(datagram_ready(one, 0, 0) == 0);
    CHECK(strcmp(got, "first") == 0 && datagram_from(two) == 1);
    CHECK(datagram_close(two) == 0);
    while ((sent = datagram_write0(one, "lost", 5)) == 5)
        CHECK(datagram_ready(one, 0, 100) == 0);
    CHECK(sent == -1 && (errno == ECONNRESET || errno == ECONNABORTED)); /* the latter if one was on its way when the peer left */
    two = datagram(addrdb, NULL, 0, 2);
    CHECK(two && datagram_write0(one, "again", 6) == 6 && datagram_queue_length(one, 2) == 1);
    while (datagram_read0(two, got, sizeof got) != 6)
        CHECK(datagram_retransmission(one, 2) >= 0);
    CHECK(strcmp(got, "again") == 0);
    while (datagram_queue_length(one, 2) > 0)
        CHECK(datagram_ready(one, 0, 0) == 0 && datagram_ready(two, 0, 0) == 0);
    datagram_addrdb_free(addrdb);
    CHECK(datagram_close(one) == 0 && datagram_close(two) == 0);
}

/* A reader that stops lets a writer write what its window takes, and one block more; a block larger than the window goes when nothing else is under
 * way. What datagram_retransmission brings forward is the library's affair (see the tests of the endpoint): here it must do no harm. */
static void stopped_reader(const char *congestion)
{
    enum { BLOCK = 1000, WINDOW = 16 << 10 };
    static char block[4 * WINDOW];
    datagram_addrdb *addrdb = datagram_addrdb_new();
    datagram_flow flow;
    int written = 0, may;

    CHECK(setenv("TSUMUJI_CONGESTION", congestion, 1) == 0);
    CHECK(datagram_addrdb_add(addrdb, 1, at(7021)) == 0 && datagram_addrdb_add(addrdb, 2, at(7022)) == 0);
    datagram_socket *one = datagram(addrdb, NULL, 0, 1), *two = datagram(addrdb, NULL, 0, 2);
    CHECK(one && two && datagram_destination(one, 2) == 0 && datagram_set_window(two, WINDOW) == 0);
    do { /* until the first has heard of that window */
        CHECK(datagram_write(one, block, BLOCK) == BLOCK && datagram_read(two, block, sizeof block) == BLOCK);
        CHECK(datagram_ready(one, 0, 1000) == 0 && datagram_get_flow(one, 2, &flow, sizeof flow) == 0);
    } while (flow.window == 0 || flow.window > WINDOW || flow.queue_length > 0);
    while ((may = datagram_wait(one, 0, 50000, BLOCK, 2)) == 1) {
        CHECK(datagram_write0(one, block, BLOCK) == BLOCK && datagram_ready(two, 0, 0) >= 0);
        written++;
        CHECK(written * BLOCK <= WINDOW + BLOCK);
    }
    CHECK(may == 0);
    CHECK(datagram_retransmission(one, 2) >= 0);
    for (int i = 0; i < written; i++)
        CHECK(datagram_read(two, block, sizeof block) == BLOCK);
    CHECK(datagram_wait(one, WAIT_US / 1000000, 0, BLOCK, 2) == 1);
    while (datagram_queue_length(one, 2) > 0)
        CHECK(datagram_ready(one, 0, 1000) == 0);
    CHECK(datagram_get_flow(one, 2, &flow, sizeof flow) == 0 && flow.window <= WINDOW);
    CHECK(datagram_wait(one, 0, 0, sizeof block, 2) == 1 && datagram_write0(one, block, sizeof block) == sizeof block);
    CHECK(datagram_wait(one, 0, 0, sizeof block, 2) == 0 || datagram_queue_length(one, 2) == 0);
    CHECK(datagram_read(two, block, sizeof block) == sizeof block);
    datagram_addrdb_free(addrdb);
    CHECK(datagram_close(one) == 0 && datagram_close(two) == 0);
    CHECK(unsetenv("TSUMUJI_CONGESTION") == 0);
}

int main(void)
{
    restart();
    stopped_reader("credit");
    stopped_reader("suci");
    stopped_reader("suci:0");
    puts("suci: all right");
    return 0;
}
