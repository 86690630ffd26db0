// How connections begin and end: connect, accept, half close, close, reset, linger, time-outs, options.
#include "cases.h"

static char room[65536];

CASE(half_close)
{
    struct ends ends = pair();
    put(ends.client, 100, 0);
    tell("shutdown", shutdown(ends.client, SHUT_WR));
    get(ends.server, 100, 0);
    tell("end", recv(ends.server, room, 10, 0));
    tell("end again", recv(ends.server, room, 10, 0));
    put(ends.server, 50, 0);
    get(ends.client, 50, 0);
    tell("write after it", send(ends.client, room, 1, MSG_NOSIGNAL));
    tell("shutdown again", shutdown(ends.client, SHUT_WR));
    close(ends.server);
    tell("end here", recv(ends.client, room, 10, 0));
}

CASE(half_close_cold)
{
    struct ends ends = cold_pair();
    put(ends.client, 100, 0);
    tell("shutdown", shutdown(ends.client, SHUT_WR));
    get(ends.server, 100, 0);
    tell("end", recv(ends.server, room, 10, 0));
    put(ends.server, 50, 0);
    close(ends.server);
    get(ends.client, 50, 0);
    tell("end here", recv(ends.client, room, 10, 0));
}

CASE(half_close_before_accept)
{
    int listener = listening(AF_INET, 4), client = connecting(listener);
    put(client, 10, 0);
    tell("shutdown", shutdown(client, SHUT_WR));
    int server = accept(listener, NULL, NULL);
    get(server, 10, 0);
    tell("end", recv(server, room, 10, 0));
    put(server, 10, 0);
    get(client, 10, 0);
}

CASE(half_close_both)
{
    struct ends ends = pair();
    shutdown(ends.client, SHUT_WR);
    shutdown(ends.server, SHUT_WR);
    tell("end", recv(ends.server, room, 10, 0));
    tell("end", recv(ends.client, room, 10, 0));
    settle();
    say("%s", events_text(poll_one(ends.client, POLLIN | POLLOUT | POLLRDHUP, 0)));
    tell("write", send(ends.server, room, 1, MSG_NOSIGNAL));
}

CASE(shutdown_reading)
{
    struct ends ends = pair();
    tell("shutdown", shutdown(ends.server, SHUT_RD));
    tell("end", recv(ends.server, room, 10, 0));
    say("%s", events_text(poll_one(ends.server, POLLIN | POLLRDHUP, 0)));
    put(ends.server, 10, 0);
    get(ends.client, 10, 0);
}

CASE(shutdown_reading_keeps_data)
{
    struct ends ends = pair();
    put(ends.client, 10, 0);
    settle();
    shutdown(ends.server, SHUT_RD);
    get(ends.server, 10, 0);
    tell("end", recv(ends.server, room, 10, 0));
}

CASE(shutdown_both)
{
    struct ends ends = pair();
    put(ends.client, 10, 0);
    tell("shutdown", shutdown(ends.client, SHUT_RDWR));
    settle();
    get(ends.server, 10, 0);
    tell("end", recv(ends.server, room, 10, 0));
    tell("end here", recv(ends.client, room, 10, 0));
    tell("write here", send(ends.client, room, 1, MSG_NOSIGNAL));
    say("%s", events_text(poll_one(ends.server, POLLIN | POLLRDHUP, 0)));
}

CASE(shutdown_nonsense)
{
    struct ends ends = pair();
    tell("shutdown", shutdown(ends.client, 77));
    tell("shutdown", shutdown(ends.client, -1));
}

CASE(shutdown_of_unconnected)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    tell("shutdown", shutdown(fd, SHUT_RDWR));
}

CASE(close_ends)
{
    struct ends ends = pair();
    put(ends.client, 1000, 0);
    tell("close", close(ends.client));
    get(ends.server, 1000, 0);
    tell("end", recv(ends.server, room, 10, 0));
    tell("end again", recv(ends.server, room, 10, 0));
}

CASE(close_large)
{
    struct ends ends = pair();
    if (fork() == 0) {
        put(ends.client, 700000, 0);
        _exit(0);
    }
    close(ends.client);
    wait(NULL);
    get(ends.server, 700000, 0);
    tell("end", recv(ends.server, room, 10, 0));
}

CASE(close_unread)
{
    struct ends ends = pair();
    put(ends.client, 1000, 0);
    settle();
    close(ends.server);
    settle();
    tell("reset", recv(ends.client, room, 10, 0));
    tell("then", recv(ends.client, room, 10, 0));
    tell("write", send(ends.client, room, 1, MSG_NOSIGNAL));
}

CASE(close_unread_after_data)
{
    struct ends ends = pair();
    put(ends.server, 100, 0);
    put(ends.client, 1000, 0);
    settle();
    close(ends.server);
    settle();
    tell("error", getsockopt(ends.client, SOL_SOCKET, SO_ERROR, room, &(socklen_t){4}));
    say("%s", error_name(*(int *)(void *)room));
}

CASE(write_to_closed)
{
    struct ends ends = pair();
    close(ends.server);
    settle();
    tell("first", send(ends.client, "x", 1, MSG_NOSIGNAL));
    settle();
    tell("second", send(ends.client, "x", 1, MSG_NOSIGNAL));
    tell("third", send(ends.client, "x", 1, MSG_NOSIGNAL));
    tell("read", recv(ends.client, room, 1, 0));
}

CASE(write_to_closed_sigpipe)
{
    struct ends ends = pair();
    close(ends.server);
    settle();
    tell("first", write(ends.client, "x", 1));
    settle();
    tell("second", write(ends.client, "x", 1));
    say("not reached");
}

CASE(write_to_closed_writev)
{
    struct ends ends = pair();
    signal(SIGPIPE, SIG_IGN);
    struct iovec part = {"x", 1};
    close(ends.server);
    settle();
    tell("first", writev(ends.client, &part, 1));
    settle();
    tell("second", writev(ends.client, &part, 1));
}

CASE(linger_reset)
{
    struct ends ends = pair();
    struct linger linger = {1, 0};
    tell("option", setsockopt(ends.server, SOL_SOCKET, SO_LINGER, &linger, sizeof linger));
    close(ends.server);
    settle();
    say("%s", events_text(poll_one(ends.client, POLLIN | POLLOUT | POLLRDHUP, 0)));
    tell("read", recv(ends.client, room, 10, 0));
    tell("read", recv(ends.client, room, 10, 0));
}

CASE(linger_waits)
{
    struct ends ends = pair();
    struct linger linger = {1, 2};
    setsockopt(ends.client, SOL_SOCKET, SO_LINGER, &linger, sizeof linger);
    put(ends.client, 1000, 0);
    tell("close", close(ends.client));
    get(ends.server, 1000, 0);
    tell("end", recv(ends.server, room, 10, 0));
}

CASE(reset_while_waiting)
{
    struct ends ends = pair();
    if (fork() == 0) {
        close(ends.client);
        sleep_ms(30);
        struct linger linger = {1, 0};
        setsockopt(ends.server, SOL_SOCKET, SO_LINGER, &linger, sizeof linger);
        _exit(0);
    }
    close(ends.server);
    tell("read", recv(ends.client, room, 10, 0));
    wait(NULL);
}

CASE(killed_while_waiting)
{
    struct ends ends = pair();
    pid_t child = fork();
    if (child == 0) {
        close(ends.client);
        for (;;)
            pause();
    }
    close(ends.server);
    if (fork() == 0) {
        close(ends.client);
        sleep_ms(30);
        kill(child, SIGKILL);
        _exit(0);
    }
    tell("read", recv(ends.client, room, 10, 0));
}

CASE(killed_while_sending)
{
    struct ends ends = pair();
    signal(SIGPIPE, SIG_IGN);
    pid_t child = fork();
    if (child == 0) {
        close(ends.client);
        get(ends.server, 100000, 0);
        for (;;)
            pause();
    }
    close(ends.server);
    if (fork() == 0) {
        close(ends.client);
        sleep_ms(50);
        kill(child, SIGKILL);
        _exit(0);
    }
    long more;
    while ((more = send(ends.client, room, sizeof room, 0)) > 0)
        ;
    say("%s", more < 0 && (errno == ECONNRESET || errno == EPIPE) ? "an error" : "something else");
}

CASE(receive_timeout)
{
    struct ends ends = pair();
    struct timeval time = {0, 50000};
    tell("option", setsockopt(ends.server, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time));
    struct timeval before, after;
    gettimeofday(&before, NULL);
    tell("read", recv(ends.server, room, 10, 0));
    gettimeofday(&after, NULL);
    long ms = (after.tv_sec - before.tv_sec) * 1000 + (after.tv_usec - before.tv_usec) / 1000;
    say("%s", ms >= 45 && ms < 2000 ? "in time" : "not in time");
    put(ends.client, 10, 0);
    get(ends.server, 10, 0);
}

CASE(send_timeout)
{
    struct ends ends = pair();
    struct timeval time = {0, 50000};
    setsockopt(ends.client, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof time);
    long more;
    // The kernel makes more room for a stream that fills it: a part may be taken, and a whole one after that.
    while ((more = send(ends.client, room, sizeof room, 0)) > 0)
        ;
    tell("full", more);
}

CASE(low_water)
{
    struct ends ends = pair();
    int bytes = 10;
    tell("option", setsockopt(ends.server, SOL_SOCKET, SO_RCVLOWAT, &bytes, sizeof bytes));
    put(ends.client, 5, 0);
    settle();
    say("%s", events_text(poll_one(ends.server, POLLIN, 0)));
    put(ends.client, 5, 5);
    settle();
    say("%s", events_text(poll_one(ends.server, POLLIN, 0)));
    get(ends.server, 10, 0);
    socklen_t length = sizeof bytes;
    getsockopt(ends.server, SOL_SOCKET, SO_RCVLOWAT, &bytes, &length);
    tell("option", bytes);
}

static void option_case(int argument)
{
    static const struct {
        int level, name, value;
    } options[] = {
        {IPPROTO_TCP, TCP_NODELAY, 1}, {IPPROTO_TCP, TCP_NODELAY, 0}, {IPPROTO_TCP, TCP_CORK, 1}, {IPPROTO_TCP, TCP_CORK, 0},
        {SOL_SOCKET, SO_KEEPALIVE, 1}, {SOL_SOCKET, SO_REUSEADDR, 1}, {SOL_SOCKET, SO_OOBINLINE, 1}, {SOL_SOCKET, SO_SNDBUF, 50000},
        {SOL_SOCKET, SO_RCVBUF, 50000}, {SOL_SOCKET, SO_PRIORITY, 3}, {IPPROTO_TCP, TCP_KEEPIDLE, 77}, {IPPROTO_TCP, TCP_USER_TIMEOUT, 5000},
        {IPPROTO_TCP, TCP_QUICKACK, 0}, {IPPROTO_IP, IP_TOS, 16}, {SOL_SOCKET, 9999, 1}, {SOL_SOCKET, SO_RCVLOWAT, 7},
    };
    struct ends ends = pair();
    int value = options[argument].value;
    socklen_t length = sizeof value;
    tell("before", getsockopt(ends.client, options[argument].level, options[argument].name, &value, &length));
    say("%d of %u bytes", value, length);
    value = options[argument].value;
    tell("set", setsockopt(ends.client, options[argument].level, options[argument].name, &value, sizeof value));
    value = -1;
    tell("get", getsockopt(ends.client, options[argument].level, options[argument].name, &value, &length));
    say("%d", value);
    put(ends.client, 10, 0);
    get(ends.server, 10, 0);
}

__attribute__((constructor)) static void add_options(void)
{
    for (int at = 0; at < 16; at++) {
        char name[40];
        snprintf(name, sizeof name, "option_%02d", at);
        add_case(strdup(name), option_case, at);
    }
}

CASE(corked)
{
    struct ends ends = pair();
    int on = 1, off = 0;
    setsockopt(ends.client, IPPROTO_TCP, TCP_CORK, &on, sizeof on);
    put(ends.client, 10, 0);
    put(ends.client, 10, 10);
    setsockopt(ends.client, IPPROTO_TCP, TCP_CORK, &off, sizeof off);
    get(ends.server, 20, 0);
}

CASE(connect_refused)
{
    int listener = listening(AF_INET, 1);
    struct sockaddr_in address;
    socklen_t length = sizeof address;
    getsockname(listener, (void *)&address, &length);
    close(listener);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    tell("connect", connect(fd, (void *)&address, length));
    tell("send", send(fd, "x", 1, MSG_NOSIGNAL));
    tell("again", connect(fd, (void *)&address, length));
}

CASE(connect_refused_nonblocking)
{
    int listener = listening(AF_INET, 1);
    struct sockaddr_in address;
    socklen_t length = sizeof address;
    getsockname(listener, (void *)&address, &length);
    close(listener);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), error = -1;
    int result = connect(fd, (void *)&address, length);
    say("%s", result == -1 && (errno == EINPROGRESS || errno == ECONNREFUSED) ? "as expected" : "not so");
    if (errno == EINPROGRESS) {
        poll_one(fd, POLLOUT, 1000);
        length = sizeof error;
        getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length);
        say("%s", error_name(error));
    } else
        say("ECONNREFUSED");
}

static void connect_nonblocking(int family)
{
    int listener = listening(family, 4);
    struct sockaddr_storage address;
    socklen_t length = sizeof address;
    getsockname(listener, (void *)&address, &length);
    int fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK, 0);
    tell("connect", connect(fd, (void *)&address, length));
    say("%s", events_text(poll_one(fd, POLLIN | POLLOUT, 1000)));
    int error = -1;
    socklen_t bytes = sizeof error;
    getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes);
    say("%s", error_name(error));
    int again = connect(fd, (void *)&address, length);
    say("%s", again == 0 || errno == EISCONN ? "connected" : error_name(errno));
    tell("and again", connect(fd, (void *)&address, length));
    int server = accept(listener, NULL, NULL);
    tell("read", recv(fd, room, 1, 0));
    put(fd, 10, 0);
    get(server, 10, 0);
    put(server, 10, 0);
    poll_one(fd, POLLIN, 1000);
    get(fd, 10, 0);
}

__attribute__((constructor)) static void add_connects(void)
{
    add_case("connect_nonblocking", connect_nonblocking, AF_INET);
    add_case("connect_nonblocking_ipv6", connect_nonblocking, AF_INET6);
}

CASE(connect_ipv6)
{
    int listener = listening(AF_INET6, 4), client = connecting(listener), server = accept(listener, NULL, NULL);
    for (int round = 0; round < 3; round++) {
        put(client, 1000, 0);
        get(server, 1000, 0);
        put(server, 1000, 0);
        get(client, 1000, 0);
    }
    say("done");
}

CASE(connect_by_wildcard)
{
    int listener = socket(AF_INET6, SOCK_STREAM, 0);
    struct sockaddr_in6 any = {.sin6_family = AF_INET6};
    socklen_t length = sizeof any;
    tell("bind", bind(listener, (void *)&any, sizeof any));
    tell("listen", listen(listener, 4));
    getsockname(listener, (void *)&any, &length);
    struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = any.sin6_port, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int client = socket(AF_INET, SOCK_STREAM, 0);
    tell("connect", connect(client, (void *)&four, sizeof four));
    struct sockaddr_in6 peer;
    length = sizeof peer;
    int server = accept(listener, (void *)&peer, &length);
    say("%u bytes, %s", length, IN6_IS_ADDR_V4MAPPED(&peer.sin6_addr) ? "mapped" : "not mapped");
    for (int round = 0; round < 3; round++) {
        put(client, 1000, 0);
        get(server, 1000, 0);
        put(server, 1000, 0);
        get(client, 1000, 0);
    }
}

CASE(connect_to_any)
{
    int listener = listening(AF_INET, 4);
    struct sockaddr_in address;
    socklen_t length = sizeof address;
    getsockname(listener, (void *)&address, &length);
    address.sin_addr.s_addr = htonl(INADDR_ANY);
    int client = socket(AF_INET, SOCK_STREAM, 0);
    tell("connect", connect(client, (void *)&address, length));
    int server = accept(listener, NULL, NULL);
    put(client, 10, 0);
    get(server, 10, 0);
    put(server, 10, 0);
    get(client, 10, 0);
}

CASE(connect_bound)
{
    int listener = listening(AF_INET, 4);
    struct sockaddr_in address, own = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(0x7f000005)};
    socklen_t length = sizeof address;
    getsockname(listener, (void *)&address, &length);
    int client = socket(AF_INET, SOCK_STREAM, 0);
    tell("bind", bind(client, (void *)&own, sizeof own));
    tell("connect", connect(client, (void *)&address, sizeof address));
    length = sizeof own;
    int server = accept(listener, (void *)&own, &length);
    say("%s", inet_ntoa(own.sin_addr));
    put(client, 10, 0);
    get(server, 10, 0);
    put(server, 10, 0);
    get(client, 10, 0);
}

CASE(names_agree)
{
    struct ends ends = pair();
    struct sockaddr_in one, other;
    socklen_t length = sizeof one;
    getsockname(ends.client, (void *)&one, &length);
    getpeername(ends.server, (void *)&other, &length);
    say("%s", memcmp(&one, &other, 8) ? "different" : "the same");
    getsockname(ends.server, (void *)&one, &length);
    getpeername(ends.client, (void *)&other, &length);
    say("%s", memcmp(&one, &other, 8) ? "different" : "the same");
    struct sockaddr_in accepted;
    int client = connecting(ends.listener), server = accept(ends.listener, (void *)&accepted, &length);
    getsockname(client, (void *)&one, &length);
    say("%s, %u bytes", memcmp(&one, &accepted, 8) ? "different" : "the same", length);
    close(server);
}

CASE(accept_short_address)
{
    int listener = listening(AF_INET, 4);
    connecting(listener);
    char address[16];
    memset(address, 7, sizeof address);
    socklen_t length = 4;
    int server = accept(listener, (void *)address, &length);
    say("%s, length %u, byte 5 is %d", server < 0 ? "no" : "accepted", length, address[5]);
}

CASE(accept_nonblocking)
{
    int listener = listening(AF_INET, 4);
    nonblocking(listener);
    tell("accept", accept(listener, NULL, NULL));
    int client = connecting(listener);
    int server = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    say("%s", fcntl(server, F_GETFL) & O_NONBLOCK ? "non-blocking" : "blocking");
    say("%s", fcntl(server, F_GETFD) & FD_CLOEXEC ? "closes" : "stays");
    tell("read", read(server, room, 10));
    put(client, 10, 0);
    poll_one(server, POLLIN, 1000);
    get(server, 10, 0);
    tell("read", read(server, room, 10));
}

CASE(accept_many)
{
    int listener = listening(AF_INET, 64), clients[40], servers[40];
    for (int at = 0; at < 40; at++)
        clients[at] = connecting(listener);
    for (int at = 0; at < 40; at++)
        servers[at] = accept(listener, NULL, NULL);
    for (int round = 0; round < 3; round++)
        for (int at = 0; at < 40; at++) {
            put(clients[at], 10, at);
            get(servers[at], 10, at);
            put(servers[at], 10, at);
            get(clients[at], 10, at);
        }
    say("all of them");
}

CASE(accept_of_nothing)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    tell("accept", accept(fd, NULL, NULL));
    tell("accept", accept(-1, NULL, NULL));
    tell("read", read(fd, room, 1));
    tell("send", send(fd, room, 1, MSG_NOSIGNAL));
}

CASE(listener_closed_with_waiting)
{
    int listener = listening(AF_INET, 4), client = connecting(listener);
    close(listener);
    settle();
    tell("read", recv(client, room, 1, 0));
}

CASE(written_before_accept)
{
    int listener = listening(AF_INET, 4), client = connecting(listener);
    put(client, 5000, 0);
    int server = accept(listener, NULL, NULL);
    put(client, 5000, 5000);
    put(server, 5000, 0);
    get(server, 10000, 0);
    get(client, 5000, 0);
    put(client, 100, 10000);
    get(server, 100, 10000);
}

CASE(closed_before_accept)
{
    int listener = listening(AF_INET, 4), client = connecting(listener);
    put(client, 50, 0);
    close(client);
    int server = accept(listener, NULL, NULL);
    get(server, 50, 0);
    tell("end", recv(server, room, 1, 0));
}

CASE(slots_are_used_again)
{
    int listener = listening(AF_INET, 4);
    for (int round = 0; round < 200; round++) {
        int client = connecting(listener), server = accept(listener, NULL, NULL);
        put(client, 100, round);
        get(server, 100, round);
        put(server, 20000, round);
        get(client, 20000, round);
        close(round % 2 ? client : server);
        if (recv(round % 2 ? server : client, room, 1, 0) != 0)
            say("no end");
        close(round % 2 ? server : client);
    }
    say("done");
}

CASE(reconnect_after_unspec)
{
    struct ends ends = pair();
    close(ends.client);
    int client = connecting(ends.listener), server = accept(ends.listener, NULL, NULL);
    put(client, 10, 0);
    get(server, 10, 0);
}

CASE(connect_to_nothing)
{
    struct ends ends = pair();
    struct sockaddr nothing = {.sa_family = AF_UNSPEC};
    tell("off", connect(ends.client, &nothing, sizeof nothing));
    settle();
    tell("other end", recv(ends.server, room, 10, 0));
    tell("send", send(ends.client, room, 10, MSG_NOSIGNAL));
    struct sockaddr_in address;
    socklen_t length = sizeof address;
    getsockname(ends.listener, (void *)&address, &length);
    tell("connect", connect(ends.client, (void *)&address, length));
    int server = accept(ends.listener, NULL, NULL);
    put(ends.client, 10, 0);
    get(server, 10, 0);
    put(server, 10, 0);
    get(ends.client, 10, 0);
    close(server);
    tell("end", recv(ends.client, room, 10, 0));
}

// What could be received is; the error is the next call's.
CASE(reset_after_a_part)
{
    struct ends ends = pair();
    struct linger linger = {1, 0};
    pid_t child = fork();
    if (child == 0) {
        close(ends.server);
        sleep_ms(30);
        put(ends.client, 10, 0);
        sleep_ms(30);
        setsockopt(ends.client, SOL_SOCKET, SO_LINGER, &linger, sizeof linger);
        _exit(0);
    }
    close(ends.client);
    tell("a part", recv(ends.server, room, 20, MSG_WAITALL));
    say("%s", events_text(poll_one(ends.server, POLLIN | POLLOUT | POLLRDHUP, 0)));
    tell("the error", recv(ends.server, room, 20, 0));
    say("%s", events_text(poll_one(ends.server, POLLIN | POLLOUT | POLLRDHUP, 0)));
    tell("the end", recv(ends.server, room, 20, 0));
    waitpid(child, NULL, 0);
}

static void *answering(void *listener)
{
    for (int i = 0; i < 150; i++) {
        char one = 0;
        int server = accept(*(int *)listener, NULL, NULL);
        if (recv(server, &one, 1, 0) == 1)
            send(server, &one, 1, MSG_NOSIGNAL);
        close(server);
    }
    return NULL;
}

// The server closes at once: its end may be known before what it has sent.
CASE(close_after_an_answer)
{
    int listener = listening(AF_INET, 4), early = 0, late = 0;
    struct sockaddr_in address;
    socklen_t length = sizeof address;
    getsockname(listener, (struct sockaddr *)&address, &length);
    pthread_t thread;
    pthread_create(&thread, NULL, answering, &listener);
    for (int i = 0; i < 150; i++) {
        int client = socket(AF_INET, SOCK_STREAM, 0);
        char one = 1;
        connect(client, (struct sockaddr *)&address, length);
        send(client, &one, 1, MSG_NOSIGNAL);
        early += recv(client, &one, 1, 0) != 1;
        late += recv(client, &one, 1, 0) != 0;
        // A row of short connections would go by TCP at once: each third is none.
        if (i % 3 == 2)
            sleep_ms(25);
        close(client);
    }
    pthread_join(thread, NULL);
    tell("ends before the answer", early);
    tell("more after it", late);
}
