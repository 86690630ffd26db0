// Connections of which one end has asked for what only TCP has, so that data goes by TCP again: nothing is lost, repeated or mixed up.
#include "cases.h"

static char room[1 << 20];

// A pair that has gone back to TCP, both ways.
static struct ends back_pair(void)
{
    struct ends ends = pair();
    int on = 1;
    setsockopt(ends.client, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof on);
    put(ends.client, 10, 0);
    get(ends.server, 10, 0);
    put(ends.server, 10, 0);
    get(ends.client, 10, 0);
    put(ends.client, 10, 0);
    get(ends.server, 10, 0);
    return ends;
}

CASE(back_empty_buffers_first)
{
    struct ends ends = back_pair();
    struct iovec parts[21] = {0};
    char bytes[10];
    for (int at = 0; at < 10; at++)
        bytes[at] = pattern(at);
    parts[20] = (struct iovec){bytes, 10};
    tell("writev", writev(ends.client, parts, 21));
    settle();
    memset(bytes, 0, sizeof bytes);
    tell("readv", readv(ends.server, parts, 21));
    say("%s", bytes[9] == (char)pattern(9) ? "the same" : "different");
}

CASE(back_empty_buffer_then_rest)
{
    struct ends ends = back_pair();
    char bytes[10];
    struct iovec parts[3] = {{NULL, 0}, {bytes, 5}, {bytes + 5, 5}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 3};
    if (fork() == 0) {
        put(ends.client, 3, 0);
        sleep_ms(30);
        put(ends.client, 7, 3);
        _exit(0);
    }
    tell("recvmsg", recvmsg(ends.server, &message, MSG_WAITALL));
    for (int at = 0; at < 10; at++)
        if ((unsigned char)bytes[at] != pattern(at))
            say("byte %d is wrong", at);
    wait(NULL);
}

CASE(back_empty_buffer_in_a_large_write)
{
    struct ends ends = back_pair();
    enum { BYTES = 8 << 20 };
    char *bytes = malloc(BYTES);
    for (int at = 0; at < BYTES; at++)
        bytes[at] = pattern(at);
    struct iovec parts[3] = {{NULL, 0}, {bytes, BYTES / 2}, {bytes + BYTES / 2, BYTES / 2}};
    if (fork() == 0) {
        close(ends.server);
        tell("writev", writev(ends.client, parts, 3));
        _exit(0);
    }
    close(ends.client);
    sleep_ms(30);
    get(ends.server, BYTES, 0);
    wait(NULL);
    tell("end", recv(ends.server, room, 1, 0));
}

static int file_of(size_t bytes)
{
    char name[] = "/tmp/tsumuji-sockets-XXXXXX";
    int fd = mkstemp(name);
    unlink(name);
    for (size_t at = 0; at < bytes; at++)
        room[at] = pattern(at);
    (void)!write(fd, room, bytes);
    lseek(fd, 0, SEEK_SET);
    return fd;
}

// The end that sends a file learns only by that call that it is to go back.
CASE(back_sendfile)
{
    struct ends ends = pair();
    int on = 1, file = file_of(100000);
    setsockopt(ends.server, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof on);
    tell("sent", sendfile(ends.client, file, NULL, 100000));
    get(ends.server, 100000, 0);
    put(ends.server, 100, 0);
    get(ends.client, 100, 0);
    put(ends.client, 100, 0);
    get(ends.server, 100, 0);
}

CASE(back_sendfile_nonblocking)
{
    struct ends ends = back_pair();
    int file = file_of(1 << 20);
    nonblocking(ends.client);
    long done = 0, more;
    off_t offset = 0;
    for (int round = 0; round < 100; round++) {
        offset = done % (1 << 20);
        more = sendfile(ends.client, file, &offset, (1 << 20) - offset);
        if (more < 0)
            break;
        done += more;
    }
    tell("full", more);
    if (fork() == 0) {
        close(ends.client);
        for (long at = 0; at < done;) {
            long piece = done - at < (1 << 20) ? done - at : 1 << 20;
            get(ends.server, piece, 0);
            at += piece;
        }
        tell("no more", recv(ends.server, room, 1, MSG_DONTWAIT));
        _exit(0);
    }
    wait(NULL);
}

CASE(back_splice)
{
    struct ends ends = pair();
    int on = 1, pipes[2];
    if (pipe(pipes))
        return;
    put(pipes[1], 0, 0);
    for (int at = 0; at < 5000; at++)
        room[at] = pattern(at);
    (void)!write(pipes[1], room, 5000);
    setsockopt(ends.server, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof on);
    tell("in", splice(pipes[0], NULL, ends.client, NULL, 5000, 0));
    get(ends.server, 2000, 0);
    tell("out", splice(ends.server, NULL, pipes[1], NULL, 3000, 0));
    tell("from the pipe", read(pipes[0], room, 3000));
    say("%s", (unsigned char)room[2999] == pattern(4999) ? "the same" : "different");
    shutdown(ends.client, SHUT_WR);
    tell("end", splice(ends.server, NULL, pipes[1], NULL, 3000, 0));
}

// Data of the time before the ring is unread when the other end goes over to its ring, back to TCP, and on.
CASE(back_before_cold_data_was_read)
{
    int listener = listening(AF_INET, 4), client = connecting(listener), on = 1;
    put(client, 1000, 0);
    int server = accept(listener, NULL, NULL);
    put(server, 10, 0);
    get(client, 10, 0);
    put(client, 1000, 1000);
    setsockopt(client, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof on);
    put(client, 1000, 2000);
    settle();
    get(server, 3000, 0);
    put(server, 10, 0);
    get(client, 10, 0);
    put(client, 1000, 3000);
    get(server, 1000, 3000);
}

static void time_out_case(int by)
{
    struct ends ends = back_pair();
    struct timeval before, after, time = {0, 60000};
    fd_set reads;
    FD_ZERO(&reads);
    FD_SET(ends.server, &reads);
    gettimeofday(&before, NULL);
    tell("none", by ? select(ends.server + 1, &reads, NULL, NULL, &time) : poll_one(ends.server, POLLIN, 60));
    gettimeofday(&after, NULL);
    long ms = (after.tv_sec - before.tv_sec) * 1000 + (after.tv_usec - before.tv_usec) / 1000;
    say("%s", ms >= 59 && ms < 2000 ? "in time" : "not in time");
}

__attribute__((constructor)) static void add_time_outs(void)
{
    add_case("back_poll_times_out", time_out_case, 0);
    add_case("back_select_times_out", time_out_case, 1);
}

CASE(back_options_are_the_kernels)
{
    struct ends ends = back_pair();
    int on = 1;
    tell("cork", setsockopt(ends.client, IPPROTO_TCP, TCP_CORK, &on, sizeof on));
    put(ends.client, 10, 0);
    settle();
    tell("corked", recv(ends.server, room, 10, MSG_DONTWAIT));
    on = 0;
    tell("uncork", setsockopt(ends.client, IPPROTO_TCP, TCP_CORK, &on, sizeof on));
    get(ends.server, 10, 0);
}

static void on_signal(__attribute__((unused)) int number) {}

static void *signal_later(void *argument)
{
    sleep_ms(30);
    pthread_kill(*(pthread_t *)argument, SIGUSR1);
    return NULL;
}

// A call that waits goes on after a signal whose handler wants that.
CASE(back_send_restarted)
{
    struct ends ends = back_pair();
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &action, NULL);
    pthread_t self = pthread_self(), thread;
    nonblocking(ends.client);
    long sent = 0, more;
    while ((more = send(ends.client, room, sizeof room, 0)) > 0)
        sent += more;
    fcntl(ends.client, F_SETFL, 0);
    pthread_create(&thread, NULL, signal_later, &self);
    pid_t child = fork();
    if (child == 0) {
        sleep_ms(100);
        while (sent > 0 && (more = recv(ends.server, room, sizeof room, 0)) > 0)
            sent -= more;
        sleep_ms(50);
        _exit(0);
    }
    tell("send", send(ends.client, room, 100, 0));
    waitpid(child, NULL, 0);
    pthread_join(thread, NULL);
}

static void part_case(int is_sender)
{
    struct ends ends = back_pair();
    struct linger linger = {1, 0};
    pid_t child = fork();
    if (child == 0) {
        close(ends.server);
        sleep_ms(30);
        if (!is_sender)
            put(ends.client, 10, 0);
        sleep_ms(30);
        setsockopt(ends.client, SOL_SOCKET, SO_LINGER, &linger, sizeof linger);
        _exit(0);
    }
    close(ends.client);
    if (is_sender) {
        int more = 1;
        for (long done = 0; more > 0; done += more)
            more = send(ends.server, room, sizeof room, MSG_NOSIGNAL);
        tell("the error", more);
    } else {
        tell("a part", recv(ends.server, room, 20, MSG_WAITALL));
        tell("the error", recv(ends.server, room, 20, 0));
    }
    tell("receive", recv(ends.server, room, 20, 0));
    tell("send", send(ends.server, room, 20, MSG_NOSIGNAL));
    waitpid(child, NULL, 0);
}

__attribute__((constructor)) static void add_parts(void)
{
    add_case("back_reset_after_a_part", part_case, 0);
    add_case("back_reset_of_a_sender", part_case, 1);
}

// An end that has shut down sending gives up its ring: what the other one sends still comes.
static void back_after_half_close(int asks)
{
    struct ends ends = pair();
    int on = 1, error = -1;
    tell("shutdown", shutdown(ends.client, SHUT_WR));
    tell("end", recv(ends.server, room, 10, 0));
    setsockopt(ends.client, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof on);
    settle();
    if (asks) {
        tell("option", getsockopt(ends.server, SOL_SOCKET, SO_ERROR, &error, &(socklen_t){sizeof error}));
        say("%s", error_name(error));
    }
    for (int at = 0; at < 20; at++) {
        put(ends.server, 100, at * 100);
        get(ends.client, 100, at * 100);
    }
    close(ends.server);
    tell("end", recv(ends.client, room, 10, 0));
}

__attribute__((constructor)) static void add_half_closes(void)
{
    add_case("back_after_half_close", back_after_half_close, 0);
    add_case("back_after_half_close_asked", back_after_half_close, 1);
}
