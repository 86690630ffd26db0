// Calls of one thread while another one closes, forks or shuts down.
#include "cases.h"
#include <sched.h>

static char room[1 << 16];

static _Atomic pid_t receiving_thread;

static void *receiving(void *argument)
{
    char byte;
    receiving_thread = (pid_t)syscall(SYS_gettid);
    return (void *)recv(*(int *)argument, &byte, 1, 0);
}

// A thread that is in a call on a connection.
static pthread_t receiver(int *fd)
{
    pthread_t thread;
    receiving_thread = 0;
    pthread_create(&thread, NULL, receiving, fd);
    do {
        sleep_ms(5);
    } while (!receiving_thread || !sleeps(getpid(), receiving_thread));
    return thread;
}

// The call is still there when the next connection comes.
CASE(threads_close_and_accept)
{
    struct ends ends = pair();
    int old = ends.server;
    pthread_t thread = receiver(&old);
    close(ends.server);
    close(ends.client);
    int client = connecting(ends.listener), server = accept(ends.listener, NULL, NULL);
    put(client, 1, 0);
    get(server, 1, 0);
    put(server, 1, 0);
    get(client, 1, 0);
    int epoll = instance(server, EPOLLIN);
    struct epoll_event event;
    tell("nothing", epoll_wait(epoll, &event, 1, 40));
    put(client, 10, 0);
    tell("told", epoll_wait(epoll, &event, 1, 2000));
    get(server, 10, 0);
    pthread_join(thread, NULL);
    put(client, 10, 0);
    get(server, 10, 0);
}

// As above, but the call has slept for long.
CASE(threads_close_and_accept_late)
{
    struct ends ends = pair();
    int old = ends.server;
    pthread_t thread = receiver(&old);
    sleep_ms(60);
    close(ends.server);
    close(ends.client);
    int client = connecting(ends.listener), server = accept(ends.listener, NULL, NULL);
    put(client, 1, 0);
    get(server, 1, 0);
    put(server, 1, 0);
    get(client, 1, 0);
    pthread_join(thread, NULL);
    nonblocking(server);
    tell("nothing", recv(server, room, 1, 0));
    put(client, 10, 0);
    settle();
    get(server, 10, 0);
}

// A child that has no part in the call of another thread lets go of the connection once, also if it executes another program.
static void fork_during_a_call(int executes)
{
    struct ends ends = pair();
    pthread_t thread = receiver(&ends.server);
    pid_t child = fork();
    if (child == 0) {
        close(ends.server);
        close(ends.client);
        if (!executes)
            exit(0);
        execlp("true", "true", NULL);
        _exit(1);
    }
    waitpid(child, NULL, 0);
    put(ends.client, 1, 0);
    pthread_join(thread, NULL);
    put(ends.client, 100, 1);
    settle();
    close(ends.server);
    settle();
    tell("reset", recv(ends.client, room, 10, 0));
}

__attribute__((constructor)) static void add_forks(void)
{
    add_case("fork_during_a_call", fork_during_a_call, 0);
    add_case("fork_and_exec_during_a_call", fork_during_a_call, 1);
}

static long ms_since(const struct timeval *before)
{
    struct timeval after;
    gettimeofday(&after, NULL);
    return (after.tv_sec - before->tv_sec) * 1000 + (after.tv_usec - before->tv_usec) / 1000;
}

enum { MUCH = 64 << 20 };

static void *sending(void *argument)
{
    char *bytes = calloc(1, MUCH);
    long sent = send(*(int *)argument, bytes, MUCH, MSG_NOSIGNAL);
    free(bytes);
    return (void *)sent;
}

// A thread waits for room while another one shuts down sending, after so many milliseconds.
static void shutdown_wakes_a_sender(int ms)
{
    struct ends ends = pair();
    pthread_t thread;
    pthread_create(&thread, NULL, sending, &ends.client);
    sleep_ms(ms);
    struct timeval before;
    gettimeofday(&before, NULL);
    tell("shutdown", shutdown(ends.client, SHUT_WR));
    void *sent;
    pthread_join(thread, &sent);
    say("%s", ms_since(&before) < 2000 ? "in time" : "late");
    say("%s", (long)sent > 0 && (long)sent < MUCH ? "a part" : "not a part");
    tell("then", send(ends.client, room, 1, MSG_NOSIGNAL));
    long seen = 0;
    for (long bytes; (bytes = recv(ends.server, room, sizeof room, 0)) > 0;)
        seen += bytes;
    tell("came", seen == (long)sent);
}

__attribute__((constructor)) static void add_shutdowns(void)
{
    add_case("shutdown_wakes_a_sender", shutdown_wakes_a_sender, 60);
    add_case("shutdown_wakes_a_sender_early", shutdown_wakes_a_sender, 8);
}

static void *shutting_down(void *argument)
{
    sleep_ms(60);
    shutdown(*(int *)argument, SHUT_WR);
    return NULL;
}

CASE(epoll_room_by_shutdown)
{
    struct ends ends = pair();
    nonblocking(ends.client);
    while (send(ends.client, room, sizeof room, 0) > 0)
        ;
    int epoll = instance(ends.client, EPOLLOUT);
    struct epoll_event event = {0};
    tell("full", epoll_wait(epoll, &event, 1, 0));
    pthread_t thread;
    pthread_create(&thread, NULL, shutting_down, &ends.client);
    struct timeval before;
    gettimeofday(&before, NULL);
    tell("told", epoll_wait(epoll, &event, 1, 3000));
    say("%s, %s", events_text(event.events), ms_since(&before) < 1500 ? "in time" : "late");
    pthread_join(thread, NULL);
}

// The same for `poll`, which waits for so many connections.
static void poll_room_by_shutdown(int count)
{
    struct ends ends = pair(), others = pair();
    nonblocking(ends.client);
    while (send(ends.client, room, sizeof room, 0) > 0)
        ;
    struct pollfd fds[] = {{ends.client, POLLOUT, 0}, {others.client, POLLIN, 0}};
    tell("full", poll(fds, count, 0));
    pthread_t thread;
    pthread_create(&thread, NULL, shutting_down, &ends.client);
    struct timeval before;
    gettimeofday(&before, NULL);
    tell("told", poll(fds, count, 3000));
    say("%s, %s", events_text(fds[0].revents), ms_since(&before) < 1500 ? "in time" : "late");
    pthread_join(thread, NULL);
}

__attribute__((constructor)) static void add_polls(void)
{
    add_case("poll_room_by_shutdown", poll_room_by_shutdown, 1);
    add_case("poll_room_by_shutdown_of_two", poll_room_by_shutdown, 2);
}

// A child has no part in the instance that it inherits, and closes what it has.
CASE(epoll_after_a_child_closes)
{
    struct ends ends = pair();
    int epoll = instance(ends.server, EPOLLIN);
    struct epoll_event event = {0};
    tell("nothing", epoll_wait(epoll, &event, 1, 20));
    pid_t child = fork();
    if (child == 0) {
        close(ends.server);
        close(epoll);
        close(ends.client);
        exit(0);
    }
    waitpid(child, NULL, 0);
    if (fork() == 0) {
        close(epoll);
        close(ends.server);
        sleep_ms(100);
        put(ends.client, 10, 0);
        _exit(0);
    }
    tell("told", epoll_wait(epoll, &event, 1, -1));
    get(ends.server, 10, 0);
    wait(NULL);
}

// A process ends with data unread that it was told of, in that way: by `exit`, by `_exit`, killed.
static void end_with_unread(int way)
{
    struct ends ends = pair();
    pid_t child = fork();
    if (child == 0) {
        close(ends.client);
        get(ends.server, 10, 0);
        poll_one(ends.server, POLLIN, 1000);
        sleep_ms(60);
        if (way == 0)
            exit(0);
        if (way == 1)
            _exit(0);
        raise(SIGKILL);
    }
    close(ends.server);
    sleep_ms(30);
    put(ends.client, 10, 0);
    sleep_ms(30);
    put(ends.client, 1000, 10);
    tell("read", recv(ends.client, room, 10, 0));
    tell("then", recv(ends.client, room, 10, 0));
    tell("write", send(ends.client, room, 1, MSG_NOSIGNAL));
    waitpid(child, NULL, 0);
}

__attribute__((constructor)) static void add_ends(void)
{
    add_case("close_by_exit_with_unread", end_with_unread, 0);
    add_case("close_by_quick_exit_with_unread", end_with_unread, 1);
    add_case("killed_with_unread", end_with_unread, 2);
}

static struct ends forked;

static int reading_child(void *unused)
{
    (void)unused;
    close(forked.client);
    sleep_ms(100);
    get(forked.server, 50000, 0);
    tell("end", recv(forked.server, room, 1, 0));
    put(forked.server, 10, 0);
    _exit(0);
}

// A child of which the C library tells nobody goes on with the connection that its parent closes.
static void fork_untold(int way)
{
    static char stack[1 << 16] __attribute__((aligned(16)));
    forked = pair();
    struct {
        unsigned long flags, descriptor, child_id, parent_id, signal, rest[3];
    } arguments = {.signal = SIGCHLD};
    pid_t child = -1;
    switch (way) {
    case 0: child = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0); break;
    case 1: child = syscall(SYS_clone3, &arguments, sizeof arguments); break;
    case 2: child = clone(reading_child, stack + sizeof stack, SIGCHLD, NULL); break;
    case 3: child = _Fork(); break;
    }
    if (child == 0)
        reading_child(NULL);
    close(forked.server);
    put(forked.client, 50000, 0);
    shutdown(forked.client, SHUT_WR);
    for (int at = 0; at < 4; at++) {
        struct ends other = pair();
        put(other.client, 1000, at);
        get(other.server, 1000, at);
        close(other.client);
        close(other.server);
    }
    get(forked.client, 10, 0);
    tell("end", recv(forked.client, room, 1, 0));
    tell("child", waitpid(child, NULL, 0) == child);
    struct ends later = pair();
    put(later.client, 10, 0);
    get(later.server, 10, 0);
}

__attribute__((constructor)) static void add_untold_forks(void)
{
    static const char *names[] = {"fork_by_number", "fork_by_clone3", "fork_by_clone", "fork_by_fork_alone"};
    for (int way = 0; way < 4; way++)
        add_case(names[way], fork_untold, way);
}

enum { PASSED = 8 << 20 };

// What is written to one end while a thread sleeps for room in one epoll instance, and another one for answers in a second instance.
struct both {
    int fd, room_epoll, data_epoll;
    long sent, answers;
};

static void *for_room(void *argument)
{
    struct both *both = argument;
    while (both->sent < PASSED) {
        long bytes = send(both->fd, room, sizeof room, MSG_DONTWAIT);
        struct epoll_event event = {0};
        if (bytes > 0)
            both->sent += bytes;
        else if (epoll_wait(both->room_epoll, &event, 1, 5000) < 1)
            break;
    }
    return NULL;
}

static void *for_answers(void *argument)
{
    struct both *both = argument;
    char answers[64];
    while (both->answers < PASSED >> 16) {
        struct epoll_event event = {0};
        if (epoll_wait(both->data_epoll, &event, 1, 5000) < 1)
            break;
        long bytes = recv(both->fd, answers, sizeof answers, MSG_DONTWAIT);
        if (bytes > 0)
            both->answers += bytes;
    }
    return NULL;
}

CASE(epoll_of_two_instances)
{
    struct ends ends = pair();
    struct both both = {ends.client, instance(ends.client, EPOLLOUT), instance(ends.client, EPOLLIN), 0, 0};
    pthread_t threads[2];
    pthread_create(threads, NULL, for_room, &both);
    pthread_create(threads + 1, NULL, for_answers, &both);
    char *taken = malloc(sizeof room);
    long seen = 0, answered = 0;
    while (seen < PASSED && poll_one(ends.server, POLLIN, 5000) > 0) {
        long bytes = recv(ends.server, taken, sizeof room, 0);
        if (bytes <= 0)
            break;
        for (seen += bytes; answered < seen >> 16; answered++)
            send(ends.server, "k", 1, 0);
        if (answered % 16 == 0)
            usleep(300);
    }
    tell("came", seen >= PASSED);
    pthread_join(threads[0], NULL);
    pthread_join(threads[1], NULL);
    tell("answers", both.answers >= PASSED >> 16);
    free(taken);
}

// The other end takes nothing any more, in one way or another; so does this end, perhaps. A few messages may go before that is known.
static void end_of_sending(int way)
{
    struct ends ends = pair();
    if (way >= 3)
        shutdown(ends.client, SHUT_RD);
    switch (way % 3) {
    case 0:
        shutdown(ends.server, SHUT_RD);
        shutdown(ends.server, SHUT_WR);
        break;
    case 1:
        shutdown(ends.server, SHUT_WR);
        shutdown(ends.server, SHUT_RD);
        break;
    case 2: close(ends.server); break;
    }
    settle();
    int sent = 0;
    long result;
    while (sent < 100 && (result = send(ends.client, "x", 1, MSG_NOSIGNAL)) == 1) {
        sent++;
        sleep_ms(1);
    }
    tell(sent < 20 ? "few" : "many", result);
}

__attribute__((constructor)) static void add_ends_of_sending(void)
{
    static const char *names[] = {"shut_read_then_write", "shut_write_then_read", "shut_by_close",
        "shut_read_then_write_deaf", "shut_write_then_read_deaf", "shut_by_close_deaf"};
    for (int way = 0; way < 6; way++)
        add_case(names[way], end_of_sending, way);
}

// A child that has not used the connection ends at once; then the parent closes in order.
CASE(close_after_a_child_ended)
{
    struct ends ends = pair();
    pid_t child = fork();
    if (child == 0)
        _exit(0);
    waitpid(child, NULL, 0);
    close(ends.server);
    sleep_ms(50);
    tell("sent", send(ends.client, "x", 1, MSG_NOSIGNAL));
    sleep_ms(20);
    tell("end", recv(ends.client, room, 10, 0));
}

CASE(reset_after_the_end)
{
    struct ends ends = pair();
    shutdown(ends.server, SHUT_WR);
    settle();
    tell("end", recv(ends.client, room, 10, 0));
    put(ends.client, 10, 0);
    settle();
    get(ends.server, 2, 0);
    close(ends.server);
    settle();
    tell("end", recv(ends.client, room, 10, 0));
    tell("send", send(ends.client, "x", 1, MSG_NOSIGNAL));
}

static int returning_child(void *unused)
{
    (void)unused;
    return 0;
}

// A child whose function returns has ended, as one that exits has.
CASE(close_after_a_child_returned)
{
    static char stack[1 << 16] __attribute__((aligned(16)));
    struct ends ends = pair();
    pid_t child = clone(returning_child, stack + sizeof stack, SIGCHLD, NULL);
    tell("child", waitpid(child, NULL, 0) == child);
    close(ends.server);
    sleep_ms(50);
    tell("sent", send(ends.client, "x", 1, MSG_NOSIGNAL));
    sleep_ms(20);
    tell("end", recv(ends.client, room, 10, 0));
}

// A child that shares the memory fails to execute a program, and ends; then the parent ends with data unread.
static int failing_child(void *unused)
{
    (void)unused;
    _exit(1);
}

CASE(end_after_a_child_with_the_same_memory)
{
    static char stack[1 << 16] __attribute__((aligned(16)));
    struct ends ends = pair();
    pid_t process = fork();
    if (process == 0) {
        close(ends.client);
        pid_t child = clone(failing_child, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, NULL);
        waitpid(child, NULL, 0);
        put(ends.server, 1, 0);
        poll_one(ends.server, POLLIN, 1000);
        exit(0);
    }
    close(ends.server);
    get(ends.client, 1, 0);
    put(ends.client, 10, 0);
    waitpid(process, NULL, 0);
    settle();
    tell("reset", recv(ends.client, room, 10, 0));
}

// The other end has much on its way when an end answers and shuts down both directions: the answer comes.
CASE(shut_after_an_answer)
{
    struct ends ends = pair();
    nonblocking(ends.client);
    long sent = 0;
    for (int quiet = 0; quiet < 20; quiet++, sleep_ms(5))
        for (long bytes; (bytes = send(ends.client, room, sizeof room, MSG_NOSIGNAL)) > 0; quiet = 0)
            sent += bytes;
    tell("much", sent > 100000);
    put(ends.server, 20, 0);
    shutdown(ends.server, SHUT_RDWR);
    settle();
    get(ends.client, 20, 0);
    tell("end", poll_one(ends.client, POLLIN, 2000) > 0 && recv(ends.client, room, 10, 0) <= 0);
}

static void *write_for_ever(void *argument)
{
    static char much[1 << 18];
    while (send(*(int *)argument, much, sizeof much, MSG_NOSIGNAL) > 0)
        ;
    return NULL;
}

static void *epoll_later(void *argument)
{
    struct epoll_event event;
    int epoll = instance(*(int *)argument, EPOLLIN), found = epoll_wait(epoll, &event, 1, 3000);
    close(epoll);
    return (void *)(long)found;
}

static void *poll_for_data(void *argument)
{
    struct pollfd wanted = {*(int *)argument, POLLIN, 0};
    return (void *)(long)poll(&wanted, 1, 3000);
}

// A thread that waits for data, and then one that writes more than there is room for: both are woken in the same way.
static void beside_a_writer(void *(*wait)(void *))
{
    for (int round = 0; round < 4; round++) {
        struct ends ends = pair();
        pthread_t waiter, writer;
        struct timespec begun, ended;
        void *found;
        clock_gettime(CLOCK_MONOTONIC, &begun);
        pthread_create(&waiter, NULL, wait, &ends.client), sleep_ms(50);
        pthread_create(&writer, NULL, write_for_ever, &ends.client), sleep_ms(150);
        put(ends.server, 1, 0);
        pthread_join(waiter, &found);
        clock_gettime(CLOCK_MONOTONIC, &ended);
        tell("found", (long)found);
        say("%s", ended.tv_sec - begun.tv_sec < 2 ? "in time" : "late");
        close(ends.server);
        pthread_join(writer, NULL);
        close(ends.client), close(ends.listener);
    }
}

CASE(poll_beside_a_writer)
{
    beside_a_writer(poll_for_data);
}

CASE(epoll_beside_a_writer)
{
    beside_a_writer(epoll_later);
}
