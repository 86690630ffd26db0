/*
 * Several hosts: each process says where it runs, and whom it has met by which address.
 *
 *     cc -o hosts examples/c/hosts.c $(pkg-config --cflags --libs tsumuji)
 *     tsumuji launch --hosts examples/hosts.toml -- ./hosts      # two nodes of this host, over UDP
 *     tsumuji launch --hosts lab.toml --key lab.key -- ./hosts   # yours: each has its host, address, and way there
 *
 * Without a launcher `TSUMUJI_CLUSTER=examples/hosts.toml TSUMUJI_NODE=0 ./hosts` starts one of them, and so on each host. Each node
 * prints, for example, "node 0 on pc0: met node 1 on pc1 at 127.0.0.1:7001 over udp".
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tsumuji.h>

/* Hosts are not started at the same moment. */
#define PATIENCE_US (60 * INT64_C(1000000))
/* So often it says for whom it waits. */
#define CHECKS 6
#define CHECK_US (PATIENCE_US / CHECKS)
/* Longer names are cut. */
#define NAME_BYTES 256

/* Ends the program if a call failed; the launcher prints why. */
static int64_t check(int64_t code, const char *what)
{
    if (code >= 0)
        return code;
    fprintf(stderr, "hosts: %s: %s\n", what, tsumuji_last_error());
    (void)tsumuji_report_error(tsumuji_last_error());
    exit(1);
}

int main(void)
{
    char own[NAME_BYTES], name[NAME_BYTES], missing[1024];
    tsumuji *node = NULL;

    check(tsumuji_open_env(NULL, &node), "open");
    for (int checks = 0; check(tsumuji_wait_up(node, CHECK_US), "meet") > 0; checks++) {
        check(tsumuji_absence(node, missing, sizeof missing), "meet");
        fprintf(stderr, "hosts: waiting for %s\n", missing);
        if (checks == CHECKS)
            return 1;
    }

    int me = tsumuji_me(node), nodes = tsumuji_nodes(node);
    snprintf(own, sizeof own, "%s", tsumuji_name(node, me));
    check(tsumuji_cork(node), "batch");
    for (int other = 0; other < nodes; other++)
        if (other != me)
            check(tsumuji_send(node, other, TSUMUJI_DEFAULT_CHANNEL, own, strlen(own) + 1), "send");
    check(tsumuji_uncork(node), "batch");
    for (int other = 0; other < nodes; other++) {
        if (other == me)
            continue;
        check(tsumuji_recv_on(node, -1, other, name, sizeof name, NULL, PATIENCE_US), "receive");
        name[NAME_BYTES - 1] = '\0'; /* whatever came */
        printf("%s: met %s at %s over %s\n", own, name, tsumuji_address(node, other), tsumuji_link_name(node));
    }
    check(tsumuji_close(node, PATIENCE_US), "close");
    return 0;
}
