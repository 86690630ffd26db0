// Data that came before both ends went over, with data behind it; calls that signals end in the middle; lengths that no memory has.
#include "cases.h"

// Four bytes that are there before the server accepts, and four that come afterwards; nothing has been read.
static struct ends half_early(void)
{
    struct ends ends = {.listener = listening(AF_INET, 4)};
    ends.client = connecting(ends.listener);
    put(ends.client, 4, 0);
    ends.server = accept(ends.listener, NULL, NULL);
    settle();
    put(ends.client, 4, 4);
    settle();
    return ends;
}

static void seen(const char *what, const char *room, long bytes)
{
    tell(what, bytes);
    for (long at = 0; at < bytes; at++)
        if ((unsigned char)room[at] != pattern(at))
            say("byte %ld is wrong", at);
}

static void recv_over_turn(int flags)
{
    struct ends ends = half_early();
    char room[64] = {0};
    alarm(10);
    seen("first", room, recv(ends.server, room, flags & MSG_WAITALL ? 8 : sizeof room, flags));
    if (flags & MSG_PEEK)
        seen("taken", room, recv(ends.server, room, sizeof room, 0));
    tell("then", recv(ends.server, room, sizeof room, MSG_DONTWAIT));
}
__attribute__((constructor)) static void add_recv_over_turn(void)
{
    add_case("recv_over_turn", recv_over_turn, 0);
    add_case("recv_over_turn_waitall", recv_over_turn, MSG_WAITALL);
    add_case("peek_over_turn", recv_over_turn, MSG_PEEK);
    add_case("peek_over_turn_waitall", recv_over_turn, MSG_PEEK | MSG_WAITALL);
}

CASE(recv_over_turn_in_pieces)
{
    struct ends ends = half_early();
    char room[8];
    tell("three", recv(ends.server, room, 3, 0));
    tell("three more", recv(ends.server, room + 3, 3, 0));
    tell("the rest", recv(ends.server, room + 6, 8, 0));
    seen("all", room, 8);
}

// A short read means that all was read, and no edge comes for what was there before.
CASE(ready_edge_over_turn)
{
    struct ends ends = half_early();
    nonblocking(ends.server);
    int epoll = instance(ends.server, EPOLLIN | EPOLLET);
    struct epoll_event event;
    char room[64];
    tell("edge", epoll_wait(epoll, &event, 1, 2000));
    tell("read", recv(ends.server, room, sizeof room, 0));
    tell("no edge", epoll_wait(epoll, &event, 1, 50));
}

// What waits for more bytes than one sleeps on until they are there.
static void low_water(int when)
{
    int ten = 10, listener = listening(AF_INET, 4);
    if (when == 0)
        setsockopt(listener, SOL_SOCKET, SO_RCVLOWAT, &ten, sizeof ten);
    int client = connecting(listener);
    if (when == 2 && fork() == 0) {
        do {
            sleep_ms(100); // as below
        } while (!sleeps(getppid(), getppid()));
        int server = accept(listener, NULL, NULL);
        for (int part = 0; part < 10; part++) {
            put(server, 1, part);
            sleep_ms(20);
        }
        exit(0);
    }
    if (when >= 1)
        setsockopt(client, SOL_SOCKET, SO_RCVLOWAT, &ten, sizeof ten);
    int server = when == 2 ? -1 : accept(listener, NULL, NULL);
    int reader = when == 0 ? server : client, writer = when == 0 ? client : server;
    int now = 0;
    socklen_t length = sizeof now;
    getsockopt(reader, SOL_SOCKET, SO_RCVLOWAT, &now, &length);
    say("low water %d", now);
    if (when < 2 && fork() == 0) {
        // The kernel never wakes a reader that comes later: what that has taken already counts no more.
        do {
            sleep_ms(100);
        } while (!sleeps(getppid(), getppid()));
        for (int part = 0; part < 10; part++) {
            put(writer, 1, part);
            sleep_ms(20);
        }
        exit(0);
    }
    char room[16];
    alarm(10);
    seen("received", room, recv(reader, room, 10, 0));
}
__attribute__((constructor)) static void add_low_water(void)
{
    add_case("low_water_of_listener", low_water, 0);
    add_case("low_water_before_accept", low_water, 1);
    add_case("low_water_while_accepted", low_water, 2);
}

// A stream that is always ready hides nothing else, however calls alternate.
CASE(select_beside_ready)
{
    struct ends ends = pair();
    int other[2], found = 0;
    tell("pipe", pipe(other));
    put(ends.client, 1, 0);
    tell("write", write(other[1], "x", 1));
    poll_one(ends.server, POLLIN, 1000);
    for (int round = 0; round < 100; round++) {
        fd_set readable;
        struct timeval none = {0, 0};
        FD_ZERO(&readable);
        FD_SET(ends.server, &readable);
        select(ends.server + 1, &readable, NULL, NULL, &none);
        struct pollfd both[2] = {{ends.server, POLLIN, 0}, {other[0], POLLIN, 0}};
        found += poll(both, 2, 1000) == 2 && both[1].revents == POLLIN;
    }
    tell("both", found);
}

static void nothing(int signal) { (void)signal; }

// A signal ends a call that has moved a part of its bytes, also where handlers have calls begin again.
static void signal_in_part(int sends)
{
    struct ends ends = pair();
    struct sigaction restart = {.sa_handler = nothing, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &restart, NULL);
    struct itimerval soon = {{0, 300000}, {0, 300000}};
    static char room[64 << 20];
    put(ends.client, 5, 0);
    pid_t parent = getpid(), guard = fork();
    if (guard == 0) {
        sleep_ms(10000);
        kill(parent, SIGKILL);
        _exit(0);
    }
    setitimer(ITIMER_REAL, &soon, NULL);
    if (sends) {
        long sent = send(ends.client, room, sizeof room, 0);
        say("a part: %d", sent > 0 && sent < (long)sizeof room);
    } else {
        tell("received", recv(ends.server, room, 100, MSG_WAITALL));
    }
    kill(guard, SIGKILL);
    waitpid(guard, NULL, 0);
}
__attribute__((constructor)) static void add_signal_in_part(void)
{
    add_case("signal_in_part_of_recv", signal_in_part, 0);
    add_case("signal_in_part_of_send", signal_in_part, 1);
}

CASE(write_of_impossible_length)
{
    struct ends ends = pair();
    char room[4] = {0};
    struct iovec parts[2] = {{room, (size_t)-1}, {room, 1}};
    tell("writev", writev(ends.client, parts, 2));
    tell("readv", readv(ends.server, parts, 2));
    tell("writev of one", writev(ends.client, parts, 1));
    tell("nothing came", recv(ends.server, room, sizeof room, MSG_DONTWAIT));
}
