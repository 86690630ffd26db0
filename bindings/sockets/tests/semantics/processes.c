// Copies of descriptors, forks, threads, signals, passing descriptors.
#include "cases.h"

static char room[65536];

static void copy_case(int by)
{
    struct ends ends = pair();
    int pipes[2], copy = -1;
    if (pipe(pipes))
        return;
    switch (by) {
    case 0: copy = dup(ends.server); break;
    case 1: copy = dup2(ends.server, 300); break;
    case 2: copy = dup3(ends.server, 301, O_CLOEXEC); break;
    case 3: copy = fcntl(ends.server, F_DUPFD, 200); break;
    case 4: copy = fcntl(ends.server, F_DUPFD_CLOEXEC, 200); break;
    case 5: copy = dup2(ends.server, pipes[0]); break;
    case 6: copy = dup2(ends.server, ends.server); break;
    }
    say("%s", fcntl(copy, F_GETFD) & FD_CLOEXEC ? "closes" : "stays");
    put(ends.client, 10, 0);
    get(copy, 10, 0);
    put(copy, 10, 0);
    get(ends.client, 10, 0);
    if (by == 6)
        return;
    tell("close", close(ends.server));
    put(ends.client, 10, 0);
    get(copy, 10, 0);
    nonblocking(copy);
    tell("nothing", read(copy, room, 10));
    tell("close", close(copy));
    tell("end", recv(ends.client, room, 10, 0));
    tell("closed", read(copy, room, 10));
}

__attribute__((constructor)) static void add_copies(void)
{
    static const char *names[] = {"dup", "dup2", "dup3", "dupfd", "dupfd_cloexec", "dup2_over_pipe", "dup2_same"};
    for (int by = 0; by < 7; by++) {
        char name[40];
        snprintf(name, sizeof name, "copy_%s", names[by]);
        add_case(strdup(name), copy_case, by);
    }
}

CASE(copy_over_socket)
{
    struct ends one = pair(), other = pair();
    tell("dup2", dup2(other.server, one.server) == one.server);
    tell("end", recv(one.client, room, 10, 0));
    put(other.client, 10, 0);
    get(one.server, 10, 0);
    close(other.server);
    put(one.server, 10, 0);
    get(other.client, 10, 0);
}

CASE(copy_of_bad)
{
    struct ends ends = pair();
    tell("dup2", dup2(998, ends.server));
    tell("dup3", dup3(998, ends.server, O_CLOEXEC));
    tell("dup3 same", dup3(ends.server, ends.server, 0));
    put(ends.client, 10, 0);
    get(ends.server, 10, 0);
}

CASE(copy_that_is_refused)
{
    struct ends ends = pair(), other = pair();
    int far = dup2(ends.server, 300);
    tell("flags", dup3(other.server, ends.server, O_NONBLOCK));
    tell("flags and same", dup3(ends.server, ends.server, O_NONBLOCK));
    tell("flags of a listener", dup3(other.server, ends.listener, O_NONBLOCK | O_CLOEXEC));
    close(ends.server);
    struct rlimit limit, low;
    if (getrlimit(RLIMIT_NOFILE, &limit))
        return;
    low = limit;
    low.rlim_cur = 300;
    setrlimit(RLIMIT_NOFILE, &low);
    tell("beyond the limit", dup2(other.server, far));
    tell("beyond the limit", dup3(other.server, far, 0));
    setrlimit(RLIMIT_NOFILE, &limit);
    put(ends.client, 10, 0);
    get(far, 10, 0);
    put(far, 10, 0);
    get(ends.client, 10, 0);
    int client = connecting(ends.listener), server = accept(ends.listener, NULL, NULL);
    put(client, 10, 0);
    get(server, 10, 0);
    tell("dup2", dup2(other.server, far) == far);
    tell("end", recv(ends.client, room, 10, 0));
}

CASE(copy_shares_flags)
{
    struct ends ends = pair();
    int copy = dup(ends.server);
    nonblocking(ends.server);
    tell("read", read(copy, room, 1));
    int off = 0;
    ioctl(copy, FIONBIO, &off);
    say("%s", fcntl(ends.server, F_GETFL) & O_NONBLOCK ? "non-blocking" : "blocking");
    int on = 1;
    ioctl(ends.server, FIONBIO, &on);
    tell("read", read(copy, room, 1));
}

CASE(close_twice)
{
    struct ends ends = pair();
    tell("close", close(ends.server));
    tell("close", close(ends.server));
    tell("write", write(ends.server, "x", 1));
}

CASE(close_range_closes)
{
    struct ends ends = pair();
    int low = ends.client < ends.server ? ends.client : ends.server;
    int keep = dup2(ends.client, 400);
    tell("close_range", close_range(low, 399, 0));
    tell("closed", read(ends.server, room, 1));
    tell("end", recv(keep, room, 1, 0));
    int listener = listening(AF_INET, 4), client = connecting(listener), server = accept(listener, NULL, NULL);
    put(client, 10, 0);
    get(server, 10, 0);
}

CASE(close_everything_and_go_on)
{
    struct ends ends = pair();
    for (int fd = 3; fd < 70000; fd++)
        close(fd);
    tell("closed", read(ends.server, room, 1));
    struct ends again = pair();
    put(again.client, 10, 0);
    get(again.server, 10, 0);
}

CASE(numbers_are_the_lowest)
{
    struct ends ends = pair();
    say("%d %d %d", ends.listener, ends.client, ends.server);
    close(ends.client);
    int fd = dup(1);
    say("%s", fd == ends.client ? "used again" : "not used again");
}

CASE(fork_child_writes)
{
    struct ends ends = pair();
    if (fork() == 0) {
        put(ends.client, 100000, 0);
        _exit(0);
    }
    get(ends.server, 100000, 0);
    wait(NULL);
    put(ends.client, 10, 0);
    get(ends.server, 10, 0);
}

CASE(fork_both_write)
{
    struct ends ends = pair();
    // Lines of two writers never mix, and none is lost.
    enum { LINES = 20000, BYTES = 16 };
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        for (int at = 0; at < LINES; at++)
            (void)!write(ends.client, "cccccccccccccccc", BYTES);
        _exit(0);
    }
    pid_t other = fork();
    if (other == 0) {
        for (int at = 0; at < LINES; at++)
            (void)!write(ends.client, "pppppppppppppppp", BYTES);
        _exit(0);
    }
    int counts[2] = {0, 0}, mixed = 0;
    for (int at = 0; at < 2 * LINES; at++) {
        char line[BYTES];
        if (recv(ends.server, line, BYTES, MSG_WAITALL) != BYTES)
            break;
        counts[line[0] == 'p']++;
        for (int byte = 1; byte < BYTES; byte++)
            mixed += line[byte] != line[0];
    }
    say("%d and %d lines, %d mixed", counts[0], counts[1], mixed);
    waitpid(child, NULL, 0);
    waitpid(other, NULL, 0);
}

CASE(fork_both_read)
{
    struct ends ends = pair();
    int pipes[2];
    if (pipe(pipes))
        return;
    for (int child = 0; child < 2; child++)
        if (fork() == 0) {
            close(ends.client);
            int total = 0;
            for (ssize_t more; (more = read(ends.server, room, 1000)) > 0;)
                total += more;
            (void)!write(pipes[1], &total, sizeof total);
            _exit(0);
        }
    close(ends.server);
    put(ends.client, 1000000, 0);
    close(ends.client);
    int totals[2] = {0, 0};
    (void)!read(pipes[0], totals, 4);
    (void)!read(pipes[0], totals + 1, 4);
    tell("both together", totals[0] + totals[1]);
}

CASE(fork_child_holds_it)
{
    struct ends ends = pair();
    pid_t child = fork();
    if (child == 0) {
        close(ends.client);
        sleep_ms(60);
        put(ends.server, 10, 0);
        _exit(0);
    }
    close(ends.server);
    settle();
    tell("no end yet", recv(ends.client, room, 10, MSG_DONTWAIT));
    get(ends.client, 10, 0);
    tell("end", recv(ends.client, room, 10, 0));
    waitpid(child, NULL, 0);
}

CASE(fork_server)
{
    int listener = listening(AF_INET, 16);
    pid_t server = fork();
    if (server == 0) {
        for (int at = 0; at < 10; at++) {
            int fd = accept(listener, NULL, NULL);
            if (fork() == 0) {
                close(listener);
                char line[100];
                ssize_t bytes;
                while ((bytes = read(fd, line, sizeof line)) > 0)
                    (void)!write(fd, line, bytes);
                _exit(0);
            }
            close(fd);
        }
        while (wait(NULL) > 0)
            ;
        _exit(0);
    }
    for (int at = 0; at < 10; at++) {
        int fd = connecting(listener);
        for (int round = 0; round < 5; round++) {
            put(fd, 50, at);
            get(fd, 50, at);
        }
        shutdown(fd, SHUT_WR);
        tell("end", recv(fd, room, 1, 0));
        close(fd);
    }
    waitpid(server, NULL, 0);
}

CASE(fork_before_accept)
{
    int listener = listening(AF_INET, 64);
    pid_t workers[4];
    for (int worker = 0; worker < 4; worker++)
        if ((workers[worker] = fork()) == 0)
            for (;;) {
                int fd = accept(listener, NULL, NULL);
                char line[100];
                ssize_t bytes;
                while ((bytes = read(fd, line, sizeof line)) > 0)
                    (void)!write(fd, line, bytes);
                close(fd);
            }
    int clients[4];
    for (int round = 0; round < 20; round++) {
        for (int at = 0; at < 4; at++)
            clients[at] = connecting(listener);
        for (int at = 0; at < 4; at++)
            put(clients[at], 50, at);
        for (int at = 0; at < 4; at++) {
            get(clients[at], 50, at);
            put(clients[at], 90, at);
            get(clients[at], 90, at);
            close(clients[at]);
        }
    }
    say("served");
    for (int worker = 0; worker < 4; worker++)
        kill(workers[worker], SIGKILL);
    while (wait(NULL) > 0)
        ;
}

static void *reader(void *argument)
{
    int fd = *(int *)argument;
    long total = 0;
    char buffer[700];
    for (ssize_t more; (more = recv(fd, buffer, sizeof buffer, 0)) > 0;)
        total += more;
    return (void *)total;
}

CASE(threads_read)
{
    struct ends ends = pair();
    pthread_t threads[3];
    for (int at = 0; at < 3; at++)
        pthread_create(threads + at, NULL, reader, &ends.server);
    for (int round = 0; round < 300; round++) {
        put(ends.client, 1000, 0);
        if (round % 50 == 0)
            sleep_ms(2);
    }
    close(ends.client);
    long total = 0;
    for (int at = 0; at < 3; at++) {
        void *one;
        pthread_join(threads[at], &one);
        total += (long)one;
    }
    tell("all together", total);
}

CASE(threads_write)
{
    struct ends ends = pair();
    pthread_t threads[3];
    int what[2] = {ends.client, 300000};
    for (int at = 0; at < 3; at++)
        pthread_create(threads + at, NULL, thread_put, what);
    long total = 0;
    while (total < 900000) {
        ssize_t more = recv(ends.server, room, sizeof room, 0);
        if (more <= 0)
            break;
        total += more;
    }
    tell("received", total);
    for (int at = 0; at < 3; at++)
        pthread_join(threads[at], NULL);
}

static void *echo_thread(void *argument)
{
    int fd = *(int *)argument;
    char buffer[100];
    for (ssize_t more; (more = recv(fd, buffer, sizeof buffer, 0)) > 0;)
        send(fd, buffer, more, 0);
    return NULL;
}

CASE(threads_reader_and_writer)
{
    struct ends ends = pair();
    pthread_t echo, writer;
    pthread_create(&echo, NULL, echo_thread, &ends.server);
    int what[2] = {ends.client, 4000000};
    pthread_create(&writer, NULL, thread_put, what);
    get(ends.client, 4000000, 0);
    pthread_join(writer, NULL);
    say("done");
}

static void *shut_later(void *argument)
{
    sleep_ms(30);
    shutdown(*(int *)argument, SHUT_RDWR);
    return NULL;
}

CASE(threads_shutdown_wakes)
{
    struct ends ends = pair();
    pthread_t thread;
    pthread_create(&thread, NULL, shut_later, &ends.client);
    tell("read", recv(ends.client, room, 10, 0));
    pthread_join(thread, NULL);
    tell("other end", recv(ends.server, room, 10, 0));
}

static int signals;
static void on_signal(int number) { signals += number == SIGUSR1; }

// On a busy machine a call may take some time before it sleeps, and a signal before that interrupts nothing: so there are more.
static int is_over;
static void *signal_repeatedly(void *argument)
{
    do {
        sleep_ms(120);
        pthread_kill(*(pthread_t *)argument, SIGUSR1);
    } while (!__atomic_load_n(&is_over, __ATOMIC_RELAXED));
    return NULL;
}

static void interrupt_case(int by)
{
    struct ends ends = pair();
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = by & 1 ? SA_RESTART : 0};
    sigaction(SIGUSR1, &action, NULL);
    pthread_t self = pthread_self(), thread;
    pthread_create(&thread, NULL, signal_repeatedly, &self);
    if (by & 1 && by < 2 && fork() == 0) {
        sleep_ms(200);
        put(ends.client, 10, 0);
        _exit(0);
    }
    struct pollfd one = {.fd = ends.server, .events = POLLIN};
    struct epoll_event event = {EPOLLIN, {.fd = 1}};
    int epoll = epoll_create1(0);
    epoll_ctl(epoll, EPOLL_CTL_ADD, ends.server, &event);
    fd_set reads;
    FD_ZERO(&reads);
    FD_SET(ends.server, &reads);
    switch (by / 2) {
    case 0: tell("read", recv(ends.server, room, 10, 0)); break;
    case 1: tell("poll", poll(&one, 1, 2000)); break;
    case 2: tell("epoll", epoll_wait(epoll, &event, 1, 2000)); break;
    case 3: tell("select", select(ends.server + 1, &reads, NULL, NULL, NULL)); break;
    case 4: {
        long more;
        while ((more = send(ends.client, room, sizeof room, 0)) == sizeof room)
            ;
        // Whether the interrupted call had taken a part depends on how much room the kernel made for the stream by then.
        say("%s", more > 0 || errno == EINTR ? "interrupted" : error_name(errno));
    }
    }
    __atomic_store_n(&is_over, 1, __ATOMIC_RELAXED);
    tell("signalled", signals > 0);
    pthread_join(thread, NULL);
}

__attribute__((constructor)) static void add_interrupts(void)
{
    static const char *names[] = {"read", "read_restarted", "poll", "poll_restarted", "epoll", "epoll_restarted", "select", "select_restarted", "send"};
    for (int by = 0; by < 9; by++) {
        char name[60];
        snprintf(name, sizeof name, "signal_in_%s", names[by]);
        add_case(strdup(name), interrupt_case, by);
    }
}

CASE(signal_in_ppoll_mask)
{
    struct ends ends = pair();
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGUSR1, &action, NULL);
    sigset_t blocked, none;
    sigemptyset(&none);
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR1);
    sigprocmask(SIG_BLOCK, &blocked, NULL);
    raise(SIGUSR1);
    struct pollfd one = {.fd = ends.server, .events = POLLIN};
    struct timespec time = {1, 0};
    tell("ppoll", ppoll(&one, 1, &time, &none));
    tell("signals", signals);
    raise(SIGUSR1);
    int epoll = epoll_create1(0);
    struct epoll_event event = {EPOLLIN, {.fd = 1}};
    epoll_ctl(epoll, EPOLL_CTL_ADD, ends.server, &event);
    tell("epoll_pwait", epoll_pwait(epoll, &event, 1, 1000, &none));
    tell("signals", signals);
}

static void pass_case(int has_data)
{
    struct ends ends = pair();
    int channel[2];
    socketpair(AF_UNIX, SOCK_STREAM, 0, channel);
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {.header = {.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS}};
    struct iovec part = {"x", 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    // The other end's process answers: it is in a call of its own.
    pid_t client = fork();
    if (client == 0) {
        close(ends.server);
        if (has_data)
            put(ends.client, 10, 0);
        get(ends.client, 10, 0);
        put(ends.client, 10, 10);
        sleep_ms(100);
        get(ends.client, 10, 10);
        _exit(0);
    }
    pid_t server = fork();
    if (server == 0) {
        close(ends.server);
        close(ends.client);
        char byte;
        struct iovec into = {&byte, 1};
        message.msg_iov = &into;
        if (recvmsg(channel[1], &message, 0) != 1)
            say("no message");
        int fd;
        memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
        if (has_data)
            get(fd, 10, 0);
        put(fd, 10, 0);
        get(fd, 10, 10);
        put(fd, 10, 10);
        _exit(0);
    }
    close(ends.client);
    sleep_ms(20);
    memcpy(CMSG_DATA(&control.header), &ends.server, sizeof(int));
    tell("passed", sendmsg(channel[0], &message, 0));
    close(ends.server);
    waitpid(server, NULL, 0);
    waitpid(client, NULL, 0);
}

__attribute__((constructor)) static void add_passes(void)
{
    add_case("pass_descriptor", pass_case, 0);
    add_case("pass_descriptor_with_data", pass_case, 1);
}

// A server has room for its connections, whatever we need besides.
CASE(fork_many_clients_few_descriptors)
{
    enum { CLIENTS = 30 };
    int listener = listening(AF_INET, 64), pipes[2], fds[CLIENTS], served = 0;
    struct rlimit limit = {64, 64};
    if (pipe(pipes) || setrlimit(RLIMIT_NOFILE, &limit))
        return;
    for (int at = 0; at < CLIENTS; at++)
        if (fork() == 0) {
            close(pipes[1]);
            int fd = connecting(listener);
            put(fd, 10, 0);
            get(fd, 10, 0);
            (void)!read(pipes[0], room, 1);
            _exit(0);
        }
    for (int at = 0; at < CLIENTS; at++) {
        fds[at] = accept(listener, NULL, NULL);
        if (fds[at] < 0) {
            tell("accept", fds[at]);
            break;
        }
        get(fds[at], 10, 0);
        put(fds[at], 10, 0);
        served++;
    }
    tell("served", served);
    close(pipes[1]);
    while (wait(NULL) > 0)
        ;
}

// A fork that fails has made no process that would hold the connection: who closes it with unread data is its last.
static void failed_case(int by)
{
    struct ends ends = pair();
    put(ends.client, 10, 0);
    get(ends.server, 10, 0);
    // Whatever has woken it is out of the kernel.
    for (int at = 0; at < 64; at++)
        (void)!recv(ends.server, room, 10, MSG_DONTWAIT);
    struct rlimit none = {0, 0};
    // The limit counts for ordinary users only.
    if (setrlimit(RLIMIT_NPROC, &none) || (geteuid() == 0 && setresuid(65534, 65534, 65534)))
        say("no limit");
    pid_t child = by == 0 ? fork() : by == 1 ? vfork() : daemon(1, 1);
    if (child == 0)
        _exit(0);
    tell("fork", child);
    put(ends.client, 10, 0);
    settle();
    close(ends.server);
    settle();
    tell("reset", recv(ends.client, room, 10, 0));
}

__attribute__((constructor)) static void add_failures(void)
{
    add_case("fork_fails", failed_case, 0);
    add_case("fork_fails_vfork", failed_case, 1);
    add_case("fork_fails_daemon", failed_case, 2);
}

static volatile int told;
static void on_input(int number) { told += number == SIGIO; }

// Signals for its events: by `fcntl`, and by `ioctl`.
static void input_case(int by)
{
    struct ends ends = pair();
    struct sigaction action = {.sa_handler = on_input};
    sigaction(SIGIO, &action, NULL);
    int on = 1;
    tell("owner", fcntl(ends.server, F_SETOWN, getpid()));
    tell("signals", by == 0 ? fcntl(ends.server, F_SETFL, O_ASYNC) : ioctl(ends.server, FIOASYNC, &on));
    told = 0;
    // The other end makes a call, as it would go on to do.
    put(ends.client, 10, 0);
    for (int at = 0; at < 100 && !told; at++)
        sleep_ms(10);
    say("%s", told ? "told" : "not told");
    get(ends.server, 10, 0);
    told = 0;
    put(ends.client, 10, 10);
    for (int at = 0; at < 100 && !told; at++)
        sleep_ms(10);
    say("%s", told ? "told again" : "not told again");
    get(ends.server, 10, 10);
    put(ends.server, 10, 0);
    get(ends.client, 10, 0);
}

__attribute__((constructor)) static void add_inputs(void)
{
    add_case("signal_of_input", input_case, 0);
    add_case("signal_of_input_by_ioctl", input_case, 1);
}

// Passes descriptors to this process itself, which then has others for them.
static void pass_here(int *fds, int count)
{
    int channel[2];
    socketpair(AF_UNIX, SOCK_STREAM, 0, channel);
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(2 * sizeof(int))];
    } control = {.header = {.cmsg_len = CMSG_LEN(count * sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS}};
    char byte = 'x';
    struct iovec part = {&byte, 1};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = CMSG_SPACE(count * sizeof(int))};
    memcpy(CMSG_DATA(&control.header), fds, count * sizeof(int));
    tell("passed", sendmsg(channel[0], &message, 0));
    for (int at = 0; at < count; at++)
        close(fds[at]);
    tell("received", recvmsg(channel[1], &message, 0));
    memcpy(fds, CMSG_DATA(&control.header), count * sizeof(int));
}

// What both ends of a connection have not read is all there for whoever gets both.
CASE(pass_descriptor_with_data_both_ends)
{
    struct ends ends = pair();
    put(ends.client, 50000, 0);
    put(ends.server, 30000, 7);
    get(ends.server, 100, 0);
    int fds[2] = {ends.client, ends.server};
    pass_here(fds, 2);
    get(fds[1], 49900, 100);
    get(fds[0], 30000, 7);
    put(fds[0], 10, 0);
    get(fds[1], 10, 0);
    close(fds[0]);
    char byte;
    tell("end", recv(fds[1], &byte, 1, 0));
}

// One that is passed after its other end has gone back to TCP has no gap in what comes; that it ends early is not told here.
CASE(pass_descriptor_with_data_late)
{
    struct ends ends = pair();
    int on = 1;
    put(ends.client, 100, 0);
    setsockopt(ends.client, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof on);
    put(ends.client, 100, 100);
    int fd = ends.server;
    pass_here(&fd, 1);
    shutdown(ends.client, SHUT_WR);
    unsigned char bytes[300];
    ssize_t more, done = 0;
    while ((more = recv(fd, bytes + done, sizeof bytes - done, 0)) > 0)
        done += more;
    for (ssize_t at = 0; at < done; at++)
        if (bytes[at] != pattern(at)) {
            say("byte %zd is wrong", at);
            break;
        }
    say("at most what was sent: %s", done <= 200 ? "yes" : "no");
}
