// epoll: levels, edges, one-shots, changes, nesting, sharing.
#include "cases.h"

static char room[65536];

int instance(int fd, unsigned events)
{
    int epoll = epoll_create1(0);
    struct epoll_event event = {events, {.fd = fd}};
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event))
        say("add: %s", error_name(errno));
    return epoll;
}

static void look(int epoll, int ms)
{
    struct epoll_event events[8];
    int count = epoll_wait(epoll, events, 8, ms);
    if (count <= 0)
        tell("none", count);
    for (int at = 0; at < count; at++)
        say("event: %s", events_text(events[at].events));
}

int change(int epoll, int operation, int fd, unsigned events)
{
    struct epoll_event event = {events, {.fd = fd}};
    return epoll_ctl(epoll, operation, fd, &event);
}

CASE(epoll_level)
{
    struct ends ends = pair();
    int epoll = instance(ends.server, EPOLLIN);
    look(epoll, 0);
    put(ends.client, 10, 0);
    look(epoll, 1000);
    look(epoll, 0);
    get(ends.server, 5, 0);
    look(epoll, 0);
    get(ends.server, 5, 5);
    look(epoll, 10);
    put(ends.client, 10, 0);
    look(epoll, 1000);
    get(ends.server, 10, 0);
    look(epoll, 0);
}

CASE(epoll_edge)
{
    struct ends ends = pair();
    int epoll = instance(ends.server, EPOLLIN | EPOLLET);
    look(epoll, 0);
    put(ends.client, 10, 0);
    look(epoll, 1000);
    look(epoll, 10);
    put(ends.client, 10, 10);
    look(epoll, 1000);
    look(epoll, 10);
    get(ends.server, 20, 0);
    look(epoll, 10);
    shutdown(ends.client, SHUT_WR);
    look(epoll, 1000);
    look(epoll, 10);
}

CASE(epoll_edge_cold)
{
    struct ends ends = cold_pair();
    int epoll = instance(ends.server, EPOLLIN | EPOLLET);
    put(ends.client, 10, 0);
    look(epoll, 1000);
    look(epoll, 10);
    get(ends.server, 10, 0);
    put(ends.server, 10, 0);
    get(ends.client, 10, 0);
    put(ends.client, 10, 10);
    look(epoll, 1000);
    get(ends.server, 10, 10);
    look(epoll, 10);
}

CASE(epoll_level_cold)
{
    struct ends ends = cold_pair();
    int epoll = instance(ends.server, EPOLLIN), other = instance(ends.client, EPOLLIN);
    put(ends.client, 10, 0);
    look(epoll, 1000);
    look(epoll, 0);
    get(ends.server, 10, 0);
    look(epoll, 10);
    put(ends.server, 10, 0);
    look(other, 1000);
    get(ends.client, 10, 0);
    look(other, 10);
    put(ends.client, 10, 0);
    look(epoll, 1000);
    get(ends.server, 10, 0);
    look(epoll, 10);
    close(ends.client);
    settle();
    look(epoll, 1000);
    look(epoll, 0);
}

CASE(epoll_edge_add_ready)
{
    struct ends ends = pair();
    put(ends.client, 10, 0);
    settle();
    int epoll = instance(ends.server, EPOLLIN | EPOLLOUT | EPOLLET);
    look(epoll, 0);
    look(epoll, 0);
    tell("mod", change(epoll, EPOLL_CTL_MOD, ends.server, EPOLLIN | EPOLLET));
    look(epoll, 0);
    look(epoll, 0);
}

CASE(epoll_one_shot)
{
    struct ends ends = pair();
    int epoll = instance(ends.server, EPOLLIN | EPOLLONESHOT);
    put(ends.client, 10, 0);
    look(epoll, 1000);
    look(epoll, 10);
    put(ends.client, 10, 10);
    look(epoll, 10);
    tell("mod", change(epoll, EPOLL_CTL_MOD, ends.server, EPOLLIN | EPOLLONESHOT));
    look(epoll, 0);
    look(epoll, 0);
    get(ends.server, 20, 0);
    tell("mod", change(epoll, EPOLL_CTL_MOD, ends.server, EPOLLIN | EPOLLONESHOT));
    look(epoll, 10);
    close(ends.client);
    look(epoll, 1000);
    look(epoll, 0);
}

CASE(epoll_one_shot_cold)
{
    struct ends ends = cold_pair();
    int epoll = instance(ends.client, EPOLLIN | EPOLLONESHOT);
    put(ends.server, 10, 0);
    look(epoll, 1000);
    get(ends.client, 10, 0);
    put(ends.client, 10, 0);
    get(ends.server, 10, 0);
    put(ends.server, 10, 0);
    settle();
    look(epoll, 10);
    tell("mod", change(epoll, EPOLL_CTL_MOD, ends.client, EPOLLIN | EPOLLONESHOT));
    look(epoll, 1000);
}

CASE(epoll_edge_one_shot)
{
    struct ends ends = pair();
    int epoll = instance(ends.server, EPOLLIN | EPOLLET | EPOLLONESHOT);
    put(ends.client, 10, 0);
    look(epoll, 1000);
    put(ends.client, 10, 10);
    look(epoll, 10);
    tell("mod", change(epoll, EPOLL_CTL_MOD, ends.server, EPOLLIN | EPOLLET | EPOLLONESHOT));
    look(epoll, 1000);
    look(epoll, 0);
}

CASE(epoll_changes)
{
    struct ends ends = pair();
    int epoll = instance(ends.server, EPOLLIN);
    tell("add again", change(epoll, EPOLL_CTL_ADD, ends.server, EPOLLIN));
    put(ends.client, 10, 0);
    settle();
    tell("mod to nothing", change(epoll, EPOLL_CTL_MOD, ends.server, 0));
    look(epoll, 0);
    tell("mod to out", change(epoll, EPOLL_CTL_MOD, ends.server, EPOLLOUT));
    look(epoll, 0);
    tell("mod to both", change(epoll, EPOLL_CTL_MOD, ends.server, EPOLLIN | EPOLLOUT));
    look(epoll, 0);
    tell("del", change(epoll, EPOLL_CTL_DEL, ends.server, 0));
    look(epoll, 0);
    tell("del again", change(epoll, EPOLL_CTL_DEL, ends.server, 0));
    tell("mod of none", change(epoll, EPOLL_CTL_MOD, ends.server, EPOLLIN));
    tell("add", change(epoll, EPOLL_CTL_ADD, ends.server, EPOLLIN));
    look(epoll, 0);
    tell("nonsense", change(epoll, 17, ends.server, EPOLLIN));
}

CASE(epoll_deleted_and_added)
{
    struct ends ends = pair();
    int epoll = instance(ends.server, EPOLLIN);
    for (int round = 0; round < 3; round++) {
        tell("del", change(epoll, EPOLL_CTL_DEL, ends.server, 0));
        put(ends.client, 10, 0);
        settle();
        look(epoll, 10);
        tell("add", change(epoll, EPOLL_CTL_ADD, ends.server, EPOLLIN));
        look(epoll, 1000);
        get(ends.server, 10, 0);
        look(epoll, 10);
    }
    tell("del", change(epoll, EPOLL_CTL_DEL, ends.server, 0));
    close(ends.client);
    settle();
    look(epoll, 10);
    tell("add", change(epoll, EPOLL_CTL_ADD, ends.server, EPOLLIN | EPOLLRDHUP));
    look(epoll, 1000);
}

CASE(epoll_closed_is_gone)
{
    struct ends ends = pair();
    int epoll = instance(ends.server, EPOLLIN | EPOLLOUT);
    look(epoll, 0);
    close(ends.server);
    look(epoll, 10);
    tell("mod", change(epoll, EPOLL_CTL_MOD, ends.server, EPOLLIN));
}

CASE(epoll_copy_stays)
{
    struct ends ends = pair();
    int epoll = instance(ends.server, EPOLLIN), copy = dup(ends.server);
    close(ends.server);
    put(ends.client, 10, 0);
    look(epoll, 1000);
    get(copy, 10, 0);
    close(copy);
    look(epoll, 10);
}

CASE(epoll_two_copies)
{
    struct ends ends = pair();
    int copy = dup(ends.server), epoll = instance(ends.server, EPOLLIN);
    tell("add a copy", change(epoll, EPOLL_CTL_ADD, copy, EPOLLOUT));
    put(ends.client, 10, 0);
    settle();
    struct epoll_event events[8];
    tell("events", epoll_wait(epoll, events, 8, 100));
}

CASE(epoll_two_instances)
{
    struct ends ends = pair();
    int one = instance(ends.server, EPOLLIN), other = instance(ends.server, EPOLLIN | EPOLLET);
    put(ends.client, 10, 0);
    look(one, 1000);
    look(other, 1000);
    get(ends.server, 10, 0);
    look(one, 10);
    look(other, 10);
    close(one);
    put(ends.client, 10, 0);
    look(other, 1000);
}

CASE(epoll_mixed)
{
    struct ends ends = pair();
    int epoll = instance(ends.server, EPOLLIN), event = eventfd(0, EFD_NONBLOCK), pipes[2];
    if (pipe(pipes))
        return;
    change(epoll, EPOLL_CTL_ADD, event, EPOLLIN);
    change(epoll, EPOLL_CTL_ADD, pipes[0], EPOLLIN | EPOLLET);
    look(epoll, 0);
    eventfd_write(event, 1);
    look(epoll, 100);
    eventfd_t value;
    eventfd_read(event, &value);
    (void)!write(pipes[1], "x", 1);
    look(epoll, 100);
    put(ends.client, 10, 0);
    look(epoll, 1000);
    if (fork() == 0) {
        sleep_ms(20);
        eventfd_write(event, 1);
        _exit(0);
    }
    get(ends.server, 10, 0);
    look(epoll, 1000);
    wait(NULL);
}

CASE(epoll_mixed_not_starved)
{
    struct ends ends = pair();
    int epoll = instance(ends.server, EPOLLIN), event = eventfd(1, EFD_NONBLOCK), seen = 0;
    change(epoll, EPOLL_CTL_ADD, event, EPOLLIN);
    put(ends.client, 10, 0);
    settle();
    for (int round = 0; round < 100; round++) {
        struct epoll_event events[4];
        int count = epoll_wait(epoll, events, 4, 0);
        for (int at = 0; at < count; at++)
            seen |= events[at].data.fd == event ? 1 : 2;
    }
    tell("seen", seen);
}

CASE(epoll_few_at_a_time)
{
    struct ends ends[6];
    int epoll = epoll_create1(0), seen = 0;
    for (int at = 0; at < 6; at++) {
        ends[at] = pair();
        struct epoll_event event = {EPOLLIN, {.u32 = at}};
        epoll_ctl(epoll, EPOLL_CTL_ADD, ends[at].server, &event);
        put(ends[at].client, 10, 0);
    }
    settle();
    for (int round = 0; round < 6; round++) {
        struct epoll_event events[2];
        int count = epoll_wait(epoll, events, 2, 0);
        tell("count", count);
        for (int at = 0; at < count; at++)
            seen |= 1 << events[at].data.u32;
    }
    tell("all were seen", seen);
}

static void *put_later(void *argument)
{
    sleep_ms(30);
    return thread_put(argument);
}

// What wakes a sleeping instance must not take the place of what the program waits for.
CASE(epoll_room_for_one)
{
    struct ends ends = pair();
    int epoll = instance(ends.server, EPOLLIN), event = eventfd(0, EFD_NONBLOCK), what[2] = {ends.client, 10};
    struct epoll_event one;
    for (int round = 0; round < 3; round++) {
        pthread_t thread;
        pthread_create(&thread, NULL, put_later, what);
        tell("slept", epoll_wait(epoll, &one, 1, 3000));
        pthread_join(thread, NULL);
        get(ends.server, 10, 0);
        put(ends.client, 10, 0);
        settle();
        tell("at once", epoll_wait(epoll, &one, 1, 0));
        get(ends.server, 10, 0);
        tell("nothing", epoll_wait(epoll, &one, 1, 0));
    }
    change(epoll, EPOLL_CTL_ADD, event, EPOLLIN);
    tell("event", eventfd_write(event, 1));
    put(ends.client, 10, 0);
    settle();
    int seen = 0, all = 0;
    for (int round = 0; round < 100; round++) {
        all += epoll_wait(epoll, &one, 1, 0);
        seen |= one.data.fd == event ? 1 : 2;
    }
    tell("each time", all);
    tell("both", seen);
}

CASE(epoll_bad_arguments)
{
    struct ends ends = pair();
    int epoll = instance(ends.server, EPOLLIN);
    struct epoll_event event;
    tell("no room", epoll_wait(epoll, &event, 0, 0));
    tell("less than no room", epoll_wait(epoll, &event, -1, 0));
    tell("not an instance", epoll_wait(ends.server, &event, 1, 0));
    tell("no descriptor", change(epoll, EPOLL_CTL_ADD, 999, EPOLLIN));
    tell("itself", change(epoll, EPOLL_CTL_ADD, epoll, EPOLLIN));
}

CASE(epoll_nested)
{
    struct ends ends = pair();
    int inner = instance(ends.server, EPOLLIN), outer = instance(inner, EPOLLIN);
    look(outer, 10);
    put(ends.client, 10, 0);
    look(outer, 1000);
    look(inner, 0);
    get(ends.server, 10, 0);
    look(inner, 10);
    look(outer, 10);
    say("%s", events_text(poll_one(inner, POLLIN, 10)));
    put(ends.client, 10, 0);
    say("%s", events_text(poll_one(inner, POLLIN, 1000)));
}

CASE(epoll_nested_empty_first)
{
    int inner = epoll_create1(0), outer = instance(inner, EPOLLIN);
    struct ends ends = pair();
    change(inner, EPOLL_CTL_ADD, ends.server, EPOLLIN);
    if (fork() == 0) {
        sleep_ms(30);
        put(ends.client, 10, 0);
        _exit(0);
    }
    look(outer, 2000);
    look(inner, 1000);
    wait(NULL);
}

CASE(epoll_before_connect)
{
    int listener = listening(AF_INET, 4), epoll = epoll_create1(0);
    struct sockaddr_in address;
    socklen_t length = sizeof address;
    getsockname(listener, (void *)&address, &length);
    int client = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    tell("connect", connect(client, (void *)&address, length));
    change(epoll, EPOLL_CTL_ADD, client, EPOLLIN | EPOLLOUT | EPOLLET);
    look(epoll, 1000);
    int server = accept(listener, NULL, NULL);
    // An edge is not told twice for reading; that there is room may be, when a connection goes over to its ring.
    change(epoll, EPOLL_CTL_MOD, client, EPOLLIN | EPOLLET);
    put(server, 10, 0);
    look(epoll, 1000);
    get(client, 10, 0);
    look(epoll, 10);
    put(client, 10, 0);
    get(server, 10, 0);
    put(server, 10, 0);
    look(epoll, 1000);
}

CASE(epoll_room)
{
    struct ends ends = pair();
    nonblocking(ends.client);
    long sent = 0, more;
    while ((more = send(ends.client, room, sizeof room, 0)) > 0)
        sent += more;
    int epoll = instance(ends.client, EPOLLOUT | EPOLLET);
    look(epoll, 10);
    while (sent > 0 && (more = recv(ends.server, room, sizeof room, 0)) > 0)
        sent -= more;
    look(epoll, 1000);
    look(epoll, 10);
}

static void *add_later(void *argument)
{
    int *what = argument;
    sleep_ms(30);
    change(what[0], EPOLL_CTL_ADD, what[1], EPOLLIN);
    return NULL;
}

CASE(epoll_added_while_waiting)
{
    struct ends ends = pair();
    int what[2] = {epoll_create1(0), ends.server};
    put(ends.client, 10, 0);
    pthread_t thread;
    pthread_create(&thread, NULL, add_later, what);
    look(what[0], 3000);
    pthread_join(thread, NULL);
}

static void *change_later(void *argument)
{
    int *what = argument;
    sleep_ms(30);
    change(what[0], EPOLL_CTL_MOD, what[1], EPOLLIN | EPOLLONESHOT);
    return NULL;
}

CASE(epoll_rearmed_while_waiting)
{
    struct ends ends = pair();
    int what[2] = {instance(ends.server, EPOLLIN | EPOLLONESHOT), ends.server};
    put(ends.client, 10, 0);
    look(what[0], 1000);
    pthread_t thread;
    pthread_create(&thread, NULL, change_later, what);
    look(what[0], 3000);
    pthread_join(thread, NULL);
}

static int by_pwait, seen;

static void *wait_for_one(void *argument)
{
    struct epoll_event event;
    struct timespec time = {2, 0};
    sigset_t none;
    sigemptyset(&none);
    int epoll = *(int *)argument;
    int count = by_pwait == 1 ? epoll_pwait(epoll, &event, 1, 2000, &none) : by_pwait == 2 ? epoll_pwait2(epoll, &event, 1, &time, NULL) : epoll_wait(epoll, &event, 1, 2000);
    if (count == 1)
        __atomic_fetch_or(&seen, event.data.u32, __ATOMIC_RELAXED);
    return NULL;
}

// Each of two threads that share an instance is woken for an event of its own, also while the other does not come back.
static void shared_case(int at_once)
{
    // Of one listener.
    struct ends ends[2] = {pair()};
    ends[1].client = connecting(ends[0].listener);
    ends[1].server = accept(ends[0].listener, NULL, NULL);
    put(ends[1].client, 10, 0);
    get(ends[1].server, 10, 0);
    int epoll = epoll_create1(0);
    for (int at = 0; at < 2; at++) {
        struct epoll_event event = {EPOLLIN | EPOLLONESHOT, {.u32 = 1 << at}};
        epoll_ctl(epoll, EPOLL_CTL_ADD, ends[at].server, &event);
    }
    pthread_t threads[2];
    for (int at = 0; at < 2; at++)
        pthread_create(threads + at, NULL, wait_for_one, &epoll);
    sleep_ms(50);
    struct timeval before, after;
    gettimeofday(&before, NULL);
    put(ends[0].client, 10, 0);
    if (!at_once)
        sleep_ms(50);
    put(ends[1].client, 10, 0);
    for (int at = 0; at < 2; at++)
        pthread_join(threads[at], NULL);
    gettimeofday(&after, NULL);
    long ms = (after.tv_sec - before.tv_sec) * 1000 + (after.tv_usec - before.tv_usec) / 1000;
    say("%d seen, %s", seen, ms < 1500 ? "in time" : "late");
}

static void added_case(int by)
{
    struct ends ends = pair();
    int epoll = epoll_create1(0);
    by_pwait = by;
    pthread_t thread;
    pthread_create(&thread, NULL, wait_for_one, &epoll);
    sleep_ms(30);
    struct epoll_event event = {EPOLLIN, {.u32 = 5}};
    epoll_ctl(epoll, EPOLL_CTL_ADD, ends.server, &event);
    sleep_ms(30);
    put(ends.client, 10, 0);
    pthread_join(thread, NULL);
    tell("seen", seen);
}

__attribute__((constructor)) static void add_shared(void)
{
    add_case("epoll_shared_by_threads", shared_case, 0);
    add_case("epoll_shared_by_threads_at_once", shared_case, 1);
    add_case("epoll_added_while_in_wait", added_case, 0);
    add_case("epoll_added_while_in_pwait", added_case, 1);
    add_case("epoll_added_while_in_pwait2", added_case, 2);
}

CASE(epoll_edge_after_fork)
{
    struct ends ends = pair();
    int epoll = instance(ends.server, EPOLLIN | EPOLLOUT | EPOLLET);
    look(epoll, 0);
    pid_t child = fork();
    if (child == 0) {
        put(ends.client, 10, 0);
        look(epoll, 2000);
        look(epoll, 10);
        put(ends.client, 10, 10);
        look(epoll, 2000);
        get(ends.server, 20, 0);
        look(epoll, 10);
        shutdown(ends.client, SHUT_WR);
        look(epoll, 2000);
        look(epoll, 10);
        _exit(0);
    }
    waitpid(child, NULL, 0);
}

CASE(epoll_after_fork)
{
    struct ends ends = pair();
    int epoll = instance(ends.server, EPOLLIN);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        look(epoll, 2000);
        get(ends.server, 10, 0);
        _exit(0);
    }
    sleep_ms(20);
    put(ends.client, 10, 0);
    waitpid(child, NULL, 0);
    look(epoll, 10);
    put(ends.client, 10, 0);
    look(epoll, 1000);
}

CASE(epoll_many)
{
    enum { COUNT = 50 };
    struct ends ends[COUNT];
    int epoll = epoll_create1(0), total = 0;
    for (int at = 0; at < COUNT; at++) {
        ends[at] = pair();
        struct epoll_event event = {EPOLLIN, {.u32 = at}};
        epoll_ctl(epoll, EPOLL_CTL_ADD, ends[at].server, &event);
    }
    pid_t child = fork();
    if (child == 0) {
        for (int round = 0; round < 20; round++)
            for (int at = 0; at < COUNT; at++) {
                put(ends[at].client, 10, 0);
                get(ends[at].client, 10, 0);
            }
        _exit(0);
    }
    while (total < 20 * COUNT) {
        struct epoll_event events[16];
        int count = epoll_wait(epoll, events, 16, 3000);
        if (count <= 0)
            break;
        for (int at = 0; at < count; at++) {
            get(ends[events[at].data.u32].server, 10, 0);
            put(ends[events[at].data.u32].server, 10, 0);
            total++;
        }
    }
    tell("served", total);
    waitpid(child, NULL, 0);
}

CASE(epoll_nested_edge)
{
    struct ends ends = pair();
    int inner = instance(ends.server, EPOLLIN), outer = instance(inner, EPOLLIN | EPOLLET);
    look(outer, 10);
    put(ends.client, 10, 0);
    look(outer, 1000);
    // It is told once, whether or not somebody has looked.
    look(outer, 20);
    look(outer, 0);
    put(ends.client, 10, 10);
    look(outer, 1000);
    look(outer, 20);
    look(inner, 0);
    get(ends.server, 20, 0);
    look(inner, 0);
    look(outer, 20);
    put(ends.client, 10, 0);
    look(outer, 1000);
    look(outer, 20);
}

CASE(epoll_nested_once)
{
    struct ends ends = pair();
    int inner = instance(ends.server, EPOLLIN), outer = instance(inner, EPOLLIN | EPOLLONESHOT);
    put(ends.client, 10, 0);
    look(outer, 1000);
    look(outer, 20);
    put(ends.client, 10, 10);
    look(outer, 20);
    tell("again", change(outer, EPOLL_CTL_MOD, inner, EPOLLIN | EPOLLONESHOT));
    look(outer, 1000);
    look(outer, 20);
    look(inner, 0);
    get(ends.server, 20, 0);
    tell("again", change(outer, EPOLL_CTL_MOD, inner, EPOLLIN | EPOLLONESHOT));
    look(outer, 20);
    put(ends.client, 10, 0);
    look(outer, 1000);
    look(outer, 20);
}

CASE(epoll_nested_closed)
{
    struct ends ends = pair(), others = pair();
    int inner = instance(ends.server, EPOLLIN), outer = instance(inner, EPOLLIN);
    close(inner);
    // Another one, which is in none.
    int again = instance(others.server, EPOLLIN);
    put(others.client, 10, 0);
    look(outer, 20);
    look(again, 1000);
}
