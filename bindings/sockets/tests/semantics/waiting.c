// What poll, select and epoll say of a socket in each state, and how they wait.
#include "cases.h"

static char room[65536];
enum { STATES = 10, MEANS = 6 };
static const char *states[STATES] = {"idle", "data", "half_closed", "data_and_half_closed", "closed", "reset", "shut_writing", "shut_both", "full", "cold_data"};
static const char *means[MEANS] = {"poll", "ppoll", "select", "pselect", "epoll", "epoll_edge"};

// The client in that state.
static int in_state(int state)
{
    struct ends ends = state == 9 ? cold_pair() : pair();
    struct linger linger = {1, 0};
    switch (state) {
    case 1:
    case 9: put(ends.server, 10, 0); break;
    case 2: shutdown(ends.server, SHUT_WR); break;
    case 3:
        put(ends.server, 10, 0);
        shutdown(ends.server, SHUT_WR);
        break;
    case 4: close(ends.server); break;
    case 5:
        setsockopt(ends.server, SOL_SOCKET, SO_LINGER, &linger, sizeof linger);
        close(ends.server);
        break;
    case 6: shutdown(ends.client, SHUT_WR); break;
    case 7:
        shutdown(ends.client, SHUT_WR);
        shutdown(ends.server, SHUT_WR);
        break;
    case 8:
        nonblocking(ends.client);
        while (send(ends.client, room, sizeof room, 0) > 0)
            ;
        break;
    }
    settle();
    return ends.client;
}

static void state_case(int argument)
{
    int fd = in_state(argument / MEANS), count;
    struct pollfd one = {.fd = fd, .events = POLLIN | POLLOUT | POLLPRI | POLLRDHUP};
    struct timespec none = {0, 0};
    struct timeval nothing = {0, 0};
    fd_set reads, writes, others;
    FD_ZERO(&reads);
    FD_SET(fd, &reads);
    writes = others = reads;
    switch (argument % MEANS) {
    case 0:
        count = poll(&one, 1, 0);
        say("%d: %s", count, events_text(one.revents));
        break;
    case 1:
        count = ppoll(&one, 1, &none, NULL);
        say("%d: %s", count, events_text(one.revents));
        break;
    case 2:
    case 3:
        count = argument % MEANS == 2 ? select(fd + 1, &reads, &writes, &others, &nothing) : pselect(fd + 1, &reads, &writes, &others, &none, NULL);
        say("%d: read %d write %d other %d", count, !!FD_ISSET(fd, &reads), !!FD_ISSET(fd, &writes), !!FD_ISSET(fd, &others));
        break;
    default: {
        int epoll = epoll_create1(0);
        struct epoll_event event = {EPOLLIN | EPOLLOUT | EPOLLPRI | EPOLLRDHUP | (argument % MEANS == 5 ? EPOLLET : 0), {.u64 = 0x123456789abcdef}};
        tell("add", epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event));
        for (int round = 0; round < 3; round++) {
            memset(&event, 0, sizeof event);
            count = epoll_wait(epoll, &event, 1, 0);
            say("%d: %s, %s", count, count > 0 ? events_text(event.events) : "-", count > 0 && event.data.u64 == 0x123456789abcdef ? "its data" : "no data");
        }
    }
    }
}

__attribute__((constructor)) static void add_states(void)
{
    for (int at = 0; at < STATES * MEANS; at++) {
        char name[80];
        snprintf(name, sizeof name, "ready_%s_%s", states[at / MEANS], means[at % MEANS]);
        add_case(strdup(name), state_case, at);
    }
}

static void later(int fd, int ms)
{
    if (fork() == 0) {
        sleep_ms(ms);
        put(fd, 10, 0);
        _exit(0);
    }
}

static void wait_case(int by)
{
    struct ends ends = pair();
    struct timespec second = {2, 0};
    struct timeval seconds = {2, 0};
    struct pollfd one = {.fd = ends.server, .events = POLLIN};
    fd_set reads;
    FD_ZERO(&reads);
    FD_SET(ends.server, &reads);
    later(ends.client, 30);
    switch (by) {
    case 0: tell("poll", poll(&one, 1, 2000)); break;
    case 1: tell("ppoll", ppoll(&one, 1, &second, NULL)); break;
    case 2:
        tell("select", select(ends.server + 1, &reads, NULL, NULL, &seconds));
        say("%s", seconds.tv_sec == 1 ? "some time is left" : "the time was not changed");
        break;
    case 3: tell("pselect", pselect(ends.server + 1, &reads, NULL, NULL, &second, NULL)); break;
    case 4: tell("poll for ever", poll(&one, 1, -1)); break;
    case 5: tell("read", read(ends.server, room, 10)); break;
    }
    if (by != 5)
        get(ends.server, 10, 0);
    wait(NULL);
}

static void epoll_wait_case(int by)
{
    struct ends ends = pair();
    int epoll = by == 3 ? epoll_create(5) : epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {EPOLLIN | (by == 1 ? EPOLLET : 0), {.fd = 77}};
    epoll_ctl(epoll, EPOLL_CTL_ADD, ends.server, &event);
    later(ends.client, 30);
    struct timespec second = {2, 0};
    int count = by == 2 ? epoll_pwait(epoll, &event, 1, 2000, NULL) : by == 4 ? epoll_pwait2(epoll, &event, 1, &second, NULL) : epoll_wait(epoll, &event, 1, 2000);
    say("%d: %s for %d", count, events_text(event.events), event.data.fd);
    get(ends.server, 10, 0);
    tell("no more", epoll_wait(epoll, &event, 1, 20));
    wait(NULL);
}

__attribute__((constructor)) static void add_waits(void)
{
    for (int by = 0; by < 6; by++) {
        char name[40];
        snprintf(name, sizeof name, "wait_%d", by);
        add_case(strdup(name), wait_case, by);
        snprintf(name, sizeof name, "wait_epoll_%d", by);
        if (by < 5)
            add_case(strdup(name), epoll_wait_case, by);
    }
}

CASE(poll_times_out)
{
    struct ends ends = pair();
    struct timeval before, after;
    gettimeofday(&before, NULL);
    say("%s", events_text(poll_one(ends.server, POLLIN, 60)));
    gettimeofday(&after, NULL);
    long ms = (after.tv_sec - before.tv_sec) * 1000 + (after.tv_usec - before.tv_usec) / 1000;
    say("%s", ms >= 59 && ms < 2000 ? "in time" : "not in time");
}

CASE(poll_mixed)
{
    struct ends ends = pair(), more = pair();
    int pipes[2];
    if (pipe(pipes))
        return;
    struct pollfd fds[4] = {{pipes[0], POLLIN, 0}, {ends.server, POLLIN, 0}, {-1, POLLIN, 0}, {more.client, POLLIN, 0}};
    tell("nothing", poll(fds, 4, 10));
    (void)!write(pipes[1], "x", 1);
    tell("the pipe", poll(fds, 4, 1000));
    say("%d %d %d %d", fds[0].revents, fds[1].revents, fds[2].revents, fds[3].revents);
    (void)!read(pipes[0], room, 1);
    put(more.server, 1, 0);
    tell("a socket", poll(fds, 4, 1000));
    say("%d %d %d %d", fds[0].revents, fds[1].revents, fds[2].revents, fds[3].revents);
    if (fork() == 0) {
        sleep_ms(20);
        (void)!write(pipes[1], "x", 1);
        _exit(0);
    }
    get(more.client, 1, 0);
    tell("the pipe again", poll(fds, 4, 1000));
    say("%d %d %d %d", fds[0].revents, fds[1].revents, fds[2].revents, fds[3].revents);
    wait(NULL);
}

CASE(poll_bad_descriptor)
{
    struct ends ends = pair();
    struct pollfd fds[2] = {{ends.server, POLLIN, 0}, {999, POLLIN, 0}};
    tell("poll", poll(fds, 2, 100));
    say("%d %d", fds[0].revents, fds[1].revents);
}

CASE(poll_for_nothing)
{
    struct ends ends = pair();
    put(ends.client, 1, 0);
    settle();
    say("%s", events_text(poll_one(ends.server, 0, 0)));
    close(ends.client);
    settle();
    say("%s", events_text(poll_one(ends.server, 0, 0)));
    say("%s", events_text(poll_one(ends.server, POLLRDHUP, 0)));
}

CASE(poll_room)
{
    struct ends ends = pair();
    nonblocking(ends.client);
    long sent = 0, more;
    while ((more = send(ends.client, room, sizeof room, 0)) > 0)
        sent += more;
    say("%s", events_text(poll_one(ends.client, POLLOUT, 10)));
    if (fork() == 0) {
        sleep_ms(20);
        while (sent > 0 && (more = recv(ends.server, room, sizeof room, 0)) > 0)
            sent -= more;
        sleep_ms(50);
        _exit(0);
    }
    say("%s", events_text(poll_one(ends.client, POLLOUT, 3000)));
    wait(NULL);
}

// What a connection had received before it had a ring is unread meanwhile.
CASE(poll_room_behind_cold_data)
{
    int listener = listening(AF_INET, 4), client = connecting(listener);
    put(client, 10, 0);
    int server = accept(listener, NULL, NULL);
    nonblocking(server);
    long sent = 0, more;
    while ((more = send(server, room, sizeof room, 0)) > 0)
        sent += more;
    pid_t child = fork();
    if (child == 0) {
        sleep_ms(30);
        while (sent > 0 && (more = recv(client, room, sizeof room, 0)) > 0)
            sent -= more;
        sleep_ms(50);
        _exit(0);
    }
    say("%s", events_text(poll_one(server, POLLOUT, 3000)));
    waitpid(child, NULL, 0);
}

struct wanted {
    int fd, events;
};

static void *poll_later(void *argument)
{
    struct wanted *wanted = argument;
    return (void *)(long)poll_one(wanted->fd, wanted->events, 3000);
}

CASE(poll_by_two_threads)
{
    struct ends ends = pair();
    nonblocking(ends.client);
    long sent = 0, more;
    while ((more = send(ends.client, room, sizeof room, 0)) > 0)
        sent += more;
    struct wanted wanted[2] = {{ends.client, POLLOUT}, {ends.client, POLLIN}};
    pthread_t threads[2];
    void *events;
    struct timeval before, after;
    gettimeofday(&before, NULL);
    for (int at = 0; at < 2; at++)
        pthread_create(threads + at, NULL, poll_later, wanted + at), sleep_ms(30);
    put(ends.server, 10, 0);
    pthread_join(threads[1], &events);
    say("%s", events_text((long)events));
    sleep_ms(30);
    while (sent > 0 && (more = recv(ends.server, room, sizeof room, 0)) > 0)
        sent -= more;
    pthread_join(threads[0], &events);
    say("%s", events_text((long)events));
    gettimeofday(&after, NULL);
    say("%s", after.tv_sec - before.tv_sec < 2 ? "in time" : "late");
}

CASE(poll_other_names)
{
    struct ends ends = pair();
    nonblocking(ends.client);
    long sent = 0, more;
    while ((more = send(ends.client, room, sizeof room, 0)) > 0)
        sent += more;
    say("%d", poll_one(ends.client, POLLWRNORM, 10));
    pid_t child = fork();
    if (child == 0) {
        sleep_ms(30);
        while (sent > 0 && (more = recv(ends.server, room, sizeof room, 0)) > 0)
            sent -= more;
        sleep_ms(50);
        _exit(0);
    }
    say("%s", poll_one(ends.client, POLLWRNORM, 3000) == POLLWRNORM ? "room" : "no room");
    waitpid(child, NULL, 0);
}

CASE(select_bad_time)
{
    struct ends ends = pair();
    struct timeval time = {-1, 0};
    fd_set reads;
    FD_ZERO(&reads);
    FD_SET(ends.server, &reads);
    tell("select", select(ends.server + 1, &reads, NULL, NULL, &time));
    time = (struct timeval){0, -1};
    tell("select", select(ends.server + 1, &reads, NULL, NULL, &time));
}

CASE(poll_listener)
{
    int listener = listening(AF_INET, 4);
    say("%s", events_text(poll_one(listener, POLLIN | POLLOUT, 0)));
    int client = connecting(listener);
    say("%s", events_text(poll_one(listener, POLLIN | POLLOUT, 100)));
    close(accept(listener, NULL, NULL));
    close(client);
}

CASE(select_large)
{
    struct ends ends = pair();
    int fd = dup2(ends.server, 700);
    fd_set reads;
    FD_ZERO(&reads);
    FD_SET(fd, &reads);
    struct timeval time = {0, 10000};
    tell("none", select(fd + 1, &reads, NULL, NULL, &time));
    say("%d", !!FD_ISSET(fd, &reads));
    put(ends.client, 1, 0);
    FD_SET(fd, &reads);
    time.tv_sec = 1;
    tell("one", select(fd + 1, &reads, NULL, NULL, &time));
    say("%d", !!FD_ISSET(fd, &reads));
}

// Answers that take some milliseconds each.
static void *slow_thread(void *argument)
{
    for (int round = 0; round < 40; round++) {
        sleep_ms(8);
        put(*(int *)argument, 10, 0);
    }
    return NULL;
}

static void *slow_end(void *argument)
{
    sleep_ms(2);
    close(*(int *)argument);
    return NULL;
}

CASE(wait_some_milliseconds)
{
    struct ends ends = pair();
    pthread_t thread;
    pthread_create(&thread, NULL, slow_thread, &ends.client);
    for (int round = 0; round < 40; round++)
        get(ends.server, 10, 0);
    pthread_join(thread, NULL);
}

CASE(epoll_some_milliseconds)
{
    struct ends ends = pair();
    int epoll = instance(ends.server, EPOLLIN);
    pthread_t thread;
    pthread_create(&thread, NULL, slow_thread, &ends.client);
    for (int round = 0; round < 40; round++) {
        struct epoll_event event;
        tell("found", epoll_wait(epoll, &event, 1, 5000));
        get(ends.server, 10, 0);
    }
    pthread_join(thread, NULL);
}

CASE(poll_some_milliseconds)
{
    struct ends ends = pair();
    pthread_t thread;
    pthread_create(&thread, NULL, slow_thread, &ends.client);
    for (int round = 0; round < 40; round++) {
        say("%s", events_text(poll_one(ends.server, POLLIN, 5000)));
        get(ends.server, 10, 0);
    }
    pthread_join(thread, NULL);
    // Its time, and its end, are kept.
    struct timespec before, after;
    clock_gettime(CLOCK_MONOTONIC, &before);
    say("%s", events_text(poll_one(ends.server, POLLIN, 30)));
    clock_gettime(CLOCK_MONOTONIC, &after);
    long us = (after.tv_sec - before.tv_sec) * 1000000 + (after.tv_nsec - before.tv_nsec) / 1000;
    tell("early", us < 29000);
    pthread_create(&thread, NULL, slow_end, &ends.client);
    say("%s", events_text(poll_one(ends.server, POLLIN | POLLRDHUP, 5000)));
    pthread_join(thread, NULL);
}

// A listener without room answers nobody: a call that connects gives up, and is connected when there is room.
CASE(connect_times_out)
{
    int listener = listening(AF_INET, 0), first = connecting(listener);
    struct sockaddr_in address;
    socklen_t length = sizeof address;
    getsockname(listener, (void *)&address, &length);
    int fd = socket(AF_INET, SOCK_STREAM, 0), error = 0;
    struct timeval time = {0, 100000};
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof time);
    tell("connect", connect(fd, (void *)&address, sizeof address));
    tell("again", connect(fd, (void *)&address, sizeof address));
    say("%s", events_text(poll_one(fd, POLLIN | POLLOUT, 0)));
    int early = accept(listener, NULL, NULL);
    put(first, 10, 0);
    get(early, 10, 0);
    // The kernel asks again after a second.
    say("%s", events_text(poll_one(fd, POLLOUT, 8000)));
    length = sizeof error;
    getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length);
    tell("error", error);
    int late = accept(listener, NULL, NULL);
    for (int round = 0; round < 20; round++) {
        put(fd, 1000, round);
        get(late, 1000, round);
        put(late, 1000, round);
        get(fd, 1000, round);
    }
    close(late);
    char byte;
    tell("end", recv(fd, &byte, 1, 0));
}

// And one that never is: the other connections go on.
CASE(connect_times_out_for_good)
{
    int listener = listening(AF_INET, 0), first = connecting(listener), early;
    struct sockaddr_in address;
    socklen_t length = sizeof address;
    getsockname(listener, (void *)&address, &length);
    for (int at = 0; at < 3; at++) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        struct timeval time = {0, 20000};
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof time);
        tell("connect", connect(fd, (void *)&address, sizeof address));
        tell("close", close(fd));
    }
    early = accept(listener, NULL, NULL);
    put(first, 10, 0);
    get(early, 10, 0);
    int late = connecting(listener), other = accept(listener, NULL, NULL);
    put(late, 10, 0);
    get(other, 10, 0);
}

struct waiting {
    struct ends ends;
    int inner, outer, reports, holders, most_holders;
    volatile int total, is_ended;
};

// A thread that is told of an edge-triggered instance, and leaves what is in it there.
static void *wait_for_edges(void *argument)
{
    struct waiting *all = argument;
    struct epoll_event event;
    while (epoll_wait(all->outer, &event, 1, 300) > 0)
        __atomic_add_fetch(&all->reports, 1, __ATOMIC_SEQ_CST);
    return NULL;
}

// A thread that is told of a one-shot, which is then its own until it asks for the next.
static void *take_turns(void *argument)
{
    struct waiting *all = argument;
    struct epoll_event event;
    char bytes[64];
    while (!all->is_ended) {
        if (epoll_wait(all->outer, &event, 1, 20) <= 0)
            continue;
        if (__atomic_add_fetch(&all->holders, 1, __ATOMIC_SEQ_CST) > 1)
            all->most_holders = 2;
        for (ssize_t more; (more = recv(all->ends.server, bytes, sizeof bytes, MSG_DONTWAIT)) > 0;)
            all->total += more;
        __atomic_sub_fetch(&all->holders, 1, __ATOMIC_SEQ_CST);
        change(all->outer, EPOLL_CTL_MOD, all->inner, EPOLLIN | EPOLLONESHOT);
    }
    return NULL;
}

static void nested_threads_case(int is_once)
{
    struct waiting all = {.ends = pair(), .most_holders = 1};
    pthread_t threads[3];
    all.inner = instance(all.ends.server, EPOLLIN);
    all.outer = instance(all.inner, EPOLLIN | (is_once ? EPOLLONESHOT : EPOLLET));
    for (int at = 0; at < 3; at++)
        pthread_create(threads + at, NULL, is_once ? take_turns : wait_for_edges, &all);
    for (int round = 0; round < (is_once ? 300 : 3); round++) {
        usleep(is_once ? round * 7 % 500 : 20000);
        put(all.ends.client, 10, 0);
    }
    for (int round = 0; is_once && round < 500 && all.total < 3000; round++)
        sleep_ms(10);
    all.is_ended = 1;
    for (int at = 0; at < 3; at++)
        pthread_join(threads[at], NULL);
    if (!is_once)
        say("%s", all.reports > 0 && all.reports < 30 ? "as often as there is news" : "again and again");
    else
        say("%d bytes, %d at a time", all.total, all.most_holders);
}

__attribute__((constructor)) static void add_nested_threads(void)
{
    add_case("epoll_nested_edge_and_threads", nested_threads_case, 0);
    add_case("epoll_nested_once_and_threads", nested_threads_case, 1);
}

struct served {
    int epoll, late;
    volatile int is_ended;
};

static void *answer(void *argument)
{
    struct served *all = argument;
    struct epoll_event event;
    char byte;
    while (!all->is_ended) {
        int found = epoll_wait(all->epoll, &event, 1, 2000);
        if (found == 0 && !all->is_ended)
            __atomic_add_fetch(&all->late, 1, __ATOMIC_SEQ_CST);
        while (found == 1 && event.data.fd >= 0 && recv(event.data.fd, &byte, 1, MSG_DONTWAIT) == 1)
            send(event.data.fd, &byte, 1, 0);
    }
    return NULL;
}

// Threads sleep in one instance for the connections of several processes: none is forgotten.
CASE(epoll_threads_and_processes)
{
    enum { PROCESSES = 3, EACH = 4, THREADS = 4, ROUNDS = 400 };
    struct served all = {.epoll = epoll_create1(0)};
    int listener = listening(AF_INET, 64), ends[2];
    pid_t clients[PROCESSES];
    for (int at = 0; at < PROCESSES; at++) {
        clients[at] = fork();
        if (clients[at] == 0) {
            int fds[EACH], bad = 0;
            char byte;
            for (int one = 0; one < EACH; one++)
                fds[one] = connecting(listener);
            for (int round = 0; round < ROUNDS; round++) {
                for (int one = 0; one <= round % EACH; one++)
                    bad += write(fds[one], "x", 1) != 1;
                for (int one = 0; one <= round % EACH; one++)
                    bad += read(fds[one], &byte, 1) != 1;
            }
            _exit(bad != 0);
        }
    }
    for (int at = 0; at < PROCESSES * EACH; at++) {
        struct epoll_event event = {.events = EPOLLIN | EPOLLET, .data.fd = accept(listener, NULL, NULL)};
        epoll_ctl(all.epoll, EPOLL_CTL_ADD, event.data.fd, &event);
    }
    tell("pipe", pipe(ends));
    struct epoll_event end = {.events = EPOLLIN, .data.fd = -1};
    epoll_ctl(all.epoll, EPOLL_CTL_ADD, ends[0], &end);
    pthread_t threads[THREADS];
    for (int at = 0; at < THREADS; at++)
        pthread_create(threads + at, NULL, answer, &all);
    for (int at = 0; at < PROCESSES; at++) {
        int status = -1;
        waitpid(clients[at], &status, 0);
        tell("status", status);
    }
    all.is_ended = 1;
    tell("end", write(ends[1], "x", 1));
    for (int at = 0; at < THREADS; at++)
        pthread_join(threads[at], NULL);
    tell("late", all.late);
}

// What the kernel reports again and again, but nobody asked for, keeps no call beyond its time.
CASE(poll_for_room_after_shutdown)
{
    struct ends ends = pair();
    struct timespec before, after;
    nonblocking(ends.server);
    while (write(ends.server, room, 4096) > 0)
        ;
    tell("shutdown", shutdown(ends.server, SHUT_RD));
    clock_gettime(CLOCK_MONOTONIC, &before);
    say("%s", events_text(poll_one(ends.server, POLLOUT, 50)));
    clock_gettime(CLOCK_MONOTONIC, &after);
    tell("long", after.tv_sec - before.tv_sec > 1);
}

// What `poll` reports of a descriptor that another thread closes is nobody's promise. But it ends, and the connection stands by another descriptor.
CASE(poll_while_another_closes)
{
    struct ends ends = pair();
    int fd = ends.server, other = dup(fd);
    struct timespec before, after;
    pthread_t thread;
    pthread_create(&thread, NULL, slow_end, &ends.server);
    clock_gettime(CLOCK_MONOTONIC, &before);
    poll_one(fd, POLLIN, 100);
    clock_gettime(CLOCK_MONOTONIC, &after);
    tell("long", after.tv_sec - before.tv_sec > 1);
    pthread_join(thread, NULL);
    put(ends.client, 10, 0);
    get(other, 10, 0);
    tell("written", write(other, "x", 1));
}

// A connection is answered just when `poll` goes to sleep for it and many others: it is told.
CASE(poll_while_a_connection_is_answered)
{
    enum { OTHERS = 400, ROUNDS = 120, WAIT_MS = 2000 };
    int idle = listening(AF_INET, OTHERS + 8), busy = listening(AF_INET, 16), late = 0;
    pid_t server = fork();
    if (server == 0) {
        for (int round = 0; round < ROUNDS; round++) {
            poll_one(busy, POLLIN, -1);
            usleep(round % 12 * 20);
            int fd = accept(busy, NULL, NULL);
            if (write(fd, "N", 1) != 1)
                _exit(1);
            read(fd, room, 1);
            close(fd);
        }
        _exit(0);
    }
    static struct pollfd all[OTHERS + 1];
    for (int at = 1; at <= OTHERS; at++)
        all[at] = (struct pollfd){.fd = connecting(idle), .events = POLLIN};
    for (int round = 0; round < ROUNDS; round++) {
        int fd = connecting(busy);
        struct timespec before, after;
        all[0] = (struct pollfd){.fd = fd, .events = POLLIN};
        clock_gettime(CLOCK_MONOTONIC, &before);
        int ready = poll(all, OTHERS + 1, WAIT_MS);
        clock_gettime(CLOCK_MONOTONIC, &after);
        // After its time it looks once more: the time tells.
        late += ready != 1 || after.tv_sec - before.tv_sec >= WAIT_MS / 1000;
        recv(fd, room, 1, 0);
        close(fd);
    }
    tell("late", late);
    waitpid(server, NULL, 0);
}

// Both directions have ended, the other end's by its close.
CASE(poll_after_shutdown_and_close)
{
    struct ends ends = pair();
    char byte;
    shutdown(ends.client, SHUT_WR);
    tell("end", recv(ends.server, &byte, 1, 0));
    close(ends.server);
    settle();
    say("%s", events_text(poll_one(ends.client, POLLIN | POLLRDHUP, 0)));
    int epoll = instance(ends.client, EPOLLIN | EPOLLRDHUP | EPOLLET);
    struct epoll_event event = {0};
    tell("told", epoll_wait(epoll, &event, 1, 1000));
    say("%s", events_text(event.events));
    tell("end here", recv(ends.client, &byte, 1, 0));
    say("%s", events_text(poll_one(ends.client, 0, 1000)));
}
