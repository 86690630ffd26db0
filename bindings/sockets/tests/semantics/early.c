// Sockets that are in epoll instances, or have copies, before they connect; and io_uring, which goes past the C library.
#include "cases.h"
#include <linux/io_uring.h>
#include <sys/mman.h>

static char room[65536];

static struct sockaddr_in address_of(int listener)
{
    struct sockaddr_in address;
    socklen_t length = sizeof address;
    getsockname(listener, (void *)&address, &length);
    return address;
}

static void await(int epoll, int ms)
{
    struct epoll_event event;
    int count = epoll_wait(epoll, &event, 1, ms);
    if (count == 1)
        say("event of %d: %s", (int)event.data.u64, events_text(event.events));
    else
        tell("none", count);
}

static long ask(int epoll, int operation, int fd, unsigned events, int data)
{
    struct epoll_event event = {events, {.u64 = data}};
    return epoll_ctl(epoll, operation, fd, &event);
}

// A byte each way, as often as it takes to be carried.
static void warm(int client, int server)
{
    for (int round = 0; round < 4; round++) {
        put(client, 1, 0);
        get(server, 1, 0);
        put(server, 1, 0);
        get(client, 1, 0);
    }
}

// Connects, and makes sure that it is carried if it can be; the other end.
static int joined(int client, int listener)
{
    struct sockaddr_in address = address_of(listener);
    tell("connect", connect(client, (void *)&address, sizeof address));
    int server = accept(listener, NULL, NULL);
    warm(client, server);
    return server;
}

// More than a ring holds, read by edges.
static void stream_by_edges(int how)
{
    int listener = listening(AF_INET, 4), epoll = epoll_create1(0);
    struct sockaddr_in address = address_of(listener);
    int client = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    tell("add", ask(epoll, EPOLL_CTL_ADD, client, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, 2));
    connect(client, (void *)&address, sizeof address);
    int server = accept(listener, NULL, NULL);
    if (how == 1)
        tell("change", ask(epoll, EPOLL_CTL_MOD, client, EPOLLIN | EPOLLET, 3));
    pid_t writer = fork();
    if (writer == 0) {
        for (int part = 0; part < 48; part++)
            put(server, sizeof room, 0);
        _exit(0);
    }
    close(server);
    long total = 0;
    for (int turn = 0; turn < 100000; turn++) {
        struct epoll_event event;
        if (epoll_wait(epoll, &event, 1, 3000) <= 0) {
            say("nothing came for three seconds");
            break;
        }
        long more;
        while ((more = recv(client, room, sizeof room, 0)) > 0)
            total += more;
        if (more == 0)
            break;
    }
    say("%ld", total);
    waitpid(writer, NULL, 0);
}

CASE(epoll_added_before_connect) { stream_by_edges(0); }

CASE(epoll_added_before_connect_and_changed) { stream_by_edges(1); }

static void changes(unsigned edge)
{
    int listener = listening(AF_INET, 4), epoll = epoll_create1(0);
    int client = socket(AF_INET, SOCK_STREAM, 0);
    tell("add", ask(epoll, EPOLL_CTL_ADD, client, EPOLLOUT | edge, 2));
    tell("change", ask(epoll, EPOLL_CTL_MOD, client, EPOLLIN | edge, 3));
    int server = joined(client, listener);
    put(server, 10, 0);
    await(epoll, 1000);
    get(client, 10, 0);
    await(epoll, 10);
    tell("change", ask(epoll, EPOLL_CTL_MOD, client, EPOLLIN, 7));
    put(server, 10, 0);
    await(epoll, 1000);
    await(epoll, 1000);
    get(client, 10, 0);
    tell("again", ask(epoll, EPOLL_CTL_ADD, client, EPOLLIN, 8));
    tell("delete", ask(epoll, EPOLL_CTL_DEL, client, 0, 0));
    tell("delete", ask(epoll, EPOLL_CTL_DEL, client, 0, 0));
    put(server, 10, 0);
    await(epoll, 20);
    tell("add", ask(epoll, EPOLL_CTL_ADD, client, EPOLLIN, 9));
    await(epoll, 1000);
}

CASE(epoll_before_connect_levels) { changes(0); }

CASE(epoll_before_connect_edges) { changes(EPOLLET); }

CASE(epoll_deleted_before_connect)
{
    int listener = listening(AF_INET, 4), epoll = epoll_create1(0);
    int client = socket(AF_INET, SOCK_STREAM, 0);
    tell("add", ask(epoll, EPOLL_CTL_ADD, client, EPOLLIN, 2));
    tell("delete", ask(epoll, EPOLL_CTL_DEL, client, 0, 0));
    int server = joined(client, listener);
    put(server, 10, 0);
    await(epoll, 20);
    tell("change", ask(epoll, EPOLL_CTL_MOD, client, EPOLLIN, 3));
    tell("add", ask(epoll, EPOLL_CTL_ADD, client, EPOLLIN, 4));
    await(epoll, 1000);
}

CASE(epoll_added_before_refusal)
{
    int listener = listening(AF_INET, 4), gone = listening(AF_INET, 4), epoll = epoll_create1(0);
    struct sockaddr_in nobody = address_of(gone);
    close(gone);
    int client = socket(AF_INET, SOCK_STREAM, 0);
    tell("add", ask(epoll, EPOLL_CTL_ADD, client, EPOLLIN, 2));
    tell("connect", connect(client, (void *)&nobody, sizeof nobody));
    int server = joined(client, listener);
    put(server, 10, 0);
    await(epoll, 1000);
    get(client, 10, 0);
    await(epoll, 10);
}

CASE(epoll_closed_before_connect)
{
    int listener = listening(AF_INET, 4), epoll = epoll_create1(0);
    int client = socket(AF_INET, SOCK_STREAM, 0);
    tell("add", ask(epoll, EPOLL_CTL_ADD, client, EPOLLIN, 2));
    tell("close", close(client));
    // The same number, in no instance.
    int again = socket(AF_INET, SOCK_STREAM, 0);
    int server = joined(again, listener);
    put(server, 10, 0);
    await(epoll, 20);
    tell("change", ask(epoll, EPOLL_CTL_MOD, again, EPOLLIN, 3));
}

// Of a socket with copies only the kernel knows all.
static void with_copy(int how)
{
    int listener = listening(AF_INET, 4);
    struct sockaddr_in address = address_of(listener);
    int client = socket(AF_INET, SOCK_STREAM, 0);
    int copy = how == 0 ? dup(client) : how == 1 ? dup2(client, 90) : fcntl(client, F_DUPFD, 80);
    tell("connect", connect(client, (void *)&address, sizeof address));
    int server = accept(listener, NULL, NULL);
    for (int round = 0; round < 6; round++) {
        int end = round % 2 ? copy : client;
        put(end, 3, 0);
        get(server, 3, 0);
        put(server, 3, 0);
        get(end, 3, 0);
    }
    close(client);
    put(copy, 1, 0);
    get(server, 1, 0);
    close(copy);
    tell("end", recv(server, room, 1, 0));
}

CASE(copy_before_connect) { with_copy(0); }

CASE(copy_before_connect_to_number) { with_copy(1); }

CASE(copy_before_connect_above_number) { with_copy(2); }

// A ring of io_uring, without a library.
struct uring {
    int fd;
    struct io_uring_params with;
    char *submit, *complete;
    struct io_uring_sqe *entries;
};

static int open_ring(struct uring *ring)
{
    memset(ring, 0, sizeof *ring);
    ring->fd = syscall(SYS_io_uring_setup, 4, &ring->with);
    if (ring->fd < 0)
        return -1;
    size_t submit = ring->with.sq_off.array + ring->with.sq_entries * sizeof(unsigned);
    size_t complete = ring->with.cq_off.cqes + ring->with.cq_entries * sizeof(struct io_uring_cqe);
    size_t entries = ring->with.sq_entries * sizeof(struct io_uring_sqe);
    int protection = PROT_READ | PROT_WRITE;
    ring->submit = mmap(NULL, submit, protection, MAP_SHARED, ring->fd, IORING_OFF_SQ_RING);
    ring->complete = mmap(NULL, complete, protection, MAP_SHARED, ring->fd, IORING_OFF_CQ_RING);
    ring->entries = mmap(NULL, entries, protection, MAP_SHARED, ring->fd, IORING_OFF_SQES);
    return 0;
}

static unsigned *word(char *base, unsigned offset) { return (unsigned *)(base + offset); }

// One operation, and its result.
static int operate(struct uring *ring, int code, int fd, void *buffer, unsigned bytes)
{
    unsigned *tail = word(ring->submit, ring->with.sq_off.tail);
    unsigned at = *tail & *word(ring->submit, ring->with.sq_off.ring_mask);
    ring->entries[at] = (struct io_uring_sqe){.opcode = code, .fd = fd, .addr = (unsigned long)buffer, .len = bytes};
    word(ring->submit, ring->with.sq_off.array)[at] = at;
    __atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
    syscall(SYS_io_uring_enter, ring->fd, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0);
    unsigned *head = word(ring->complete, ring->with.cq_off.head);
    struct io_uring_cqe *results = (void *)(ring->complete + ring->with.cq_off.cqes);
    int result = results[*head & *word(ring->complete, ring->with.cq_off.ring_mask)].res;
    __atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);
    return result;
}

// The server receives by a ring that it makes before it accepts (0), or when the connection is carried and data wait in it (1).
static void by_ring(int when)
{
    struct uring ring;
    int listener = listening(AF_INET, 4);
    pid_t child = fork();
    if (child == 0) {
        int client = connecting(listener);
        for (int round = 0; round < 4; round++) {
            put(client, 4, 0);
            get(client, 4, 0);
        }
        put(client, 100, 0);
        get(client, 1000, 0);
        put(client, 500, 0);
        shutdown(client, SHUT_WR);
        tell("end of the client", recv(client, room, 1, 0));
        _exit(0);
    }
    if (when == 0 && open_ring(&ring))
        tell("no ring", -1);
    int server = accept(listener, NULL, NULL);
    for (int round = 0; round < 4; round++) {
        get(server, 4, 0);
        put(server, 4, 0);
    }
    sleep_ms(50);
    if (when == 1 && open_ring(&ring))
        tell("no ring", -1);
    if (ring.fd < 0) {
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        return;
    }
    int got = operate(&ring, IORING_OP_RECV, server, room, 100);
    say("received %d, %s", got, got == 100 && (unsigned char)room[99] == pattern(99) ? "right" : "wrong");
    for (int at = 0; at < 1000; at++)
        room[at] = (char)pattern(at);
    say("sent %d", operate(&ring, IORING_OP_SEND, server, room, 1000));
    long total = 0;
    while ((got = operate(&ring, IORING_OP_RECV, server, room, sizeof room)) > 0)
        total += got;
    say("received %ld, then %d", total, got);
    close(server);
    waitpid(child, NULL, 0);
}

CASE(system_io_uring_before_accept) { by_ring(0); }

CASE(system_io_uring_when_carried) { by_ring(1); }

static void *receive_some(void *argument)
{
    get(*(int *)argument, 10, 0);
    return NULL;
}

// A thread waits for data when another one makes a ring.
CASE(system_io_uring_beside_a_receiver)
{
    struct uring ring;
    struct ends ends = pair();
    pthread_t thread;
    pthread_create(&thread, NULL, receive_some, &ends.server);
    sleep_ms(50);
    if (open_ring(&ring))
        tell("no ring", -1);
    put(ends.client, 10, 0);
    pthread_join(thread, NULL);
    put(ends.server, 10, 0);
    get(ends.client, 10, 0);
    close(ends.client);
    tell("end", recv(ends.server, room, 1, 0));
}

// An attempt that fails later, or is taken back, and another one.
static void connect_again(int how)
{
    int listener = listening(AF_INET, 4), gone = listening(AF_INET, 4), epoll = epoll_create1(0);
    struct sockaddr_in address = address_of(listener), nobody = address_of(gone);
    struct sockaddr unspecified = {.sa_family = AF_UNSPEC};
    close(gone);
    int client = socket(AF_INET, SOCK_STREAM | (how == 0 ? SOCK_NONBLOCK : 0), 0);
    tell("add", ask(epoll, EPOLL_CTL_ADD, client, EPOLLIN, 2));
    if (how == 0) {
        connect(client, (void *)&nobody, sizeof nobody);
        settle();
        fcntl(client, F_SETFL, fcntl(client, F_GETFL) & ~O_NONBLOCK);
    }
    if (how == 1)
        tell("nowhere", connect(client, &unspecified, sizeof unspecified));
    if (how == 2) {
        connect(client, (void *)&address, sizeof address);
        int first = accept(listener, NULL, NULL);
        warm(client, first);
        tell("nowhere", connect(client, &unspecified, sizeof unspecified));
    }
    for (int tries = 0; tries < 3 && connect(client, (void *)&address, sizeof address); tries++)
        ;
    int server = accept(listener, NULL, NULL);
    warm(client, server);
    put(server, 10, 0);
    await(epoll, 1000);
    get(client, 10, 0);
    await(epoll, 10);
    tell("delete", ask(epoll, EPOLL_CTL_DEL, client, 0, 0));
}

CASE(epoll_added_before_late_refusal) { connect_again(0); }

CASE(epoll_added_before_nowhere) { connect_again(1); }

CASE(epoll_added_and_reconnected) { connect_again(2); }

// A registration that cannot be changed.
CASE(epoll_added_exclusively_before_connect)
{
    int listener = listening(AF_INET, 4), epoll = epoll_create1(0);
    int client = socket(AF_INET, SOCK_STREAM, 0);
    tell("add", ask(epoll, EPOLL_CTL_ADD, client, EPOLLIN | EPOLLEXCLUSIVE, 2));
    int server = joined(client, listener);
    put(server, 10, 0);
    await(epoll, 1000);
}

// A socket with copies that listens is a listener by any of them.
CASE(listener_with_an_early_copy)
{
    int listener = socket(AF_INET, SOCK_STREAM, 0), copy = dup(listener);
    struct sockaddr_in any = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    tell("bind", bind(listener, (void *)&any, sizeof any));
    close(listener);
    tell("listen", listen(copy, 4));
    int client = connecting(copy), server = accept(copy, NULL, NULL);
    warm(client, server);
}
