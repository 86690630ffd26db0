// Ends that gateways do not tell of: these cases run on one host only.
#include "../cases.h"

static char room[100];

CASE(write_to_shut_down)
{
    struct ends ends = pair();
    shutdown(ends.server, SHUT_RDWR);
    settle();
    for (int at = 0; at < 4; at++) {
        tell("sent", send(ends.client, room, sizeof room, MSG_NOSIGNAL));
        settle();
    }
}
