// Moving bytes: every function that sends with every one that receives, sizes, flags, ends.
#include "cases.h"

enum { WAYS = 6 };
static const char *senders[WAYS] = {"write", "send", "sendto", "writev", "sendmsg", "sendmmsg"};
static const char *receivers[WAYS] = {"read", "recv", "recvfrom", "readv", "recvmsg", "recvmmsg"};

static long send_by(int way, int fd, char *bytes, size_t count)
{
    struct iovec parts[3] = {{bytes, count / 3}, {bytes + count / 3, 0}, {bytes + count / 3, count - count / 3}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 3};
    struct mmsghdr messages[2] = {{.msg_hdr = {.msg_iov = parts, .msg_iovlen = 1}}, {.msg_hdr = {.msg_iov = parts + 2, .msg_iovlen = 1}}};
    switch (way) {
    case 0: return write(fd, bytes, count);
    case 1: return send(fd, bytes, count, 0);
    case 2: return sendto(fd, bytes, count, MSG_NOSIGNAL, NULL, 0);
    case 3: return writev(fd, parts, 3);
    case 4: return sendmsg(fd, &message, 0);
    default: return sendmmsg(fd, messages, 2, 0) == 2 ? (long)(messages[0].msg_len + messages[1].msg_len) : -1;
    }
}

static long receive_by(int way, int fd, char *bytes, size_t count)
{
    struct iovec parts[3] = {{bytes, count / 2}, {bytes + count / 2, 0}, {bytes + count / 2, count - count / 2}};
    struct sockaddr_in address = {0};
    socklen_t length = sizeof address;
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 3, .msg_name = &address, .msg_namelen = sizeof address};
    struct mmsghdr messages[2] = {{.msg_hdr = message}, {.msg_hdr = {.msg_iov = parts + 2, .msg_iovlen = 1}}};
    long result;
    switch (way) {
    case 0: return read(fd, bytes, count);
    case 1: return recv(fd, bytes, count, 0);
    case 2:
        result = recvfrom(fd, bytes, count, 0, (void *)&address, &length);
        say("address of %u bytes", length);
        return result;
    case 3: return readv(fd, parts, 3);
    case 4:
        result = recvmsg(fd, &message, 0);
        say("name %u control %zu flags %d", message.msg_namelen, (size_t)message.msg_controllen, message.msg_flags);
        return result;
    default:
        result = recvmmsg(fd, messages, 1, 0, NULL);
        return result == 1 ? (long)messages[0].msg_len : -1;
    }
}

static void each_way(int argument)
{
    struct ends ends = argument & 256 ? cold_pair() : pair();
    char sent[300], received[300];
    for (int at = 0; at < 300; at++)
        sent[at] = pattern(at);
    for (int round = 0; round < 3; round++) {
        int from = round % 2 ? ends.server : ends.client, to = round % 2 ? ends.client : ends.server;
        memset(received, 0, sizeof received);
        tell("sent", send_by(argument / WAYS % WAYS, from, sent, 300));
        settle();
        tell("received", receive_by(argument % WAYS, to, received, 300));
        say("%s", memcmp(sent, received, 300) ? "different" : "the same");
    }
}

__attribute__((constructor)) static void add_each_way(void)
{
    for (int way = 0; way < WAYS * WAYS; way++) {
        char name[80];
        snprintf(name, sizeof name, "data_%s_%s", senders[way / WAYS], receivers[way % WAYS]);
        add_case(strdup(name), each_way, way);
        if (way % 7 == 0) {
            strcat(name, "_cold");
            add_case(strdup(name), each_way, way | 256);
        }
    }
}

static void size_case(int bytes)
{
    struct ends ends = pair();
    pthread_t thread;
    int what[2] = {ends.client, bytes};
    pthread_create(&thread, NULL, thread_put, what);
    get(ends.server, bytes, 0);
    pthread_join(thread, NULL);
    int back[2] = {ends.server, bytes};
    pthread_create(&thread, NULL, thread_put, back);
    get(ends.client, bytes, 0);
    pthread_join(thread, NULL);
    say("%d bytes each way", bytes);
}

static void pieces_case(int bytes)
{
    struct ends ends = pair();
    // Written in small pieces and read in others, several times around a ring.
    pid_t child = fork();
    if (child == 0) {
        for (int at = 0; at < 3000000; at += bytes)
            put(ends.client, bytes, at);
        _exit(0);
    }
    close(ends.client);
    for (int at = 0; at + 1000 <= 3000000 / bytes * bytes; at += 1000)
        get(ends.server, 1000, at);
    say("pieces of %d arrived", bytes);
    close(ends.server);
    waitpid(child, NULL, 0);
}

__attribute__((constructor)) static void add_sizes(void)
{
    static const int sizes[] = {1, 2, 63, 64, 65, 1000, 4096, 16383, 65536, 131073, 1 << 20, (1 << 20) + 1, 3000000, 10000000};
    char name[80];
    for (size_t at = 0; at < sizeof sizes / sizeof *sizes; at++) {
        snprintf(name, sizeof name, "size_%d", sizes[at]);
        add_case(strdup(name), size_case, sizes[at]);
    }
    static const int pieces[] = {7, 100, 1500, 20000, 40000};
    for (size_t at = 0; at < sizeof pieces / sizeof *pieces; at++) {
        snprintf(name, sizeof name, "pieces_%d", pieces[at]);
        add_case(strdup(name), pieces_case, pieces[at]);
    }
}

CASE(peek)
{
    struct ends ends = pair();
    char buffer[64] = "";
    send(ends.client, "abcdef", 6, 0);
    settle();
    tell("peek", recv(ends.server, buffer, 3, MSG_PEEK));
    tell("peek again", recv(ends.server, buffer, 64, MSG_PEEK));
    say("%.6s", buffer);
    tell("read", recv(ends.server, buffer, 4, 0));
    tell("peek the rest", recv(ends.server, buffer, 64, MSG_PEEK));
    tell("read the rest", recv(ends.server, buffer, 64, 0));
    tell("peek at nothing", recv(ends.server, buffer, 64, MSG_PEEK | MSG_DONTWAIT));
}

CASE(peek_cold)
{
    struct ends ends = cold_pair();
    char buffer[64] = "";
    send(ends.client, "abcdef", 6, 0);
    settle();
    tell("peek", recv(ends.server, buffer, 64, MSG_PEEK));
    tell("read", recv(ends.server, buffer, 64, 0));
    tell("peek at nothing", recv(ends.server, buffer, 64, MSG_PEEK | MSG_DONTWAIT));
    shutdown(ends.client, SHUT_WR);
    settle();
    tell("peek at the end", recv(ends.server, buffer, 64, MSG_PEEK));
}

CASE(peek_waitall)
{
    struct ends ends = pair();
    char buffer[64] = "";
    if (fork() == 0) {
        put(ends.client, 4, 0);
        sleep_ms(30);
        put(ends.client, 6, 4);
        _exit(0);
    }
    tell("peek", recv(ends.server, buffer, 10, MSG_PEEK | MSG_WAITALL));
    get(ends.server, 10, 0);
    wait(NULL);
}

CASE(waitall)
{
    struct ends ends = pair();
    char buffer[64];
    if (fork() == 0) {
        for (int at = 0; at < 5; at++) {
            put(ends.client, 4, at * 4);
            sleep_ms(5);
        }
        _exit(0);
    }
    tell("all of it", recv(ends.server, buffer, 20, MSG_WAITALL));
    wait(NULL);
}

CASE(waitall_then_end)
{
    struct ends ends = pair();
    char buffer[64];
    put(ends.client, 5, 0);
    shutdown(ends.client, SHUT_WR);
    tell("what there was", recv(ends.server, buffer, 20, MSG_WAITALL));
    tell("the end", recv(ends.server, buffer, 20, MSG_WAITALL));
}

CASE(waitall_nonblocking)
{
    struct ends ends = pair();
    char buffer[64];
    put(ends.client, 5, 0);
    settle();
    tell("what there is", recv(ends.server, buffer, 20, MSG_WAITALL | MSG_DONTWAIT));
    tell("nothing", recv(ends.server, buffer, 20, MSG_WAITALL | MSG_DONTWAIT));
}

CASE(dontwait)
{
    struct ends ends = pair();
    char buffer[64];
    tell("nothing", recv(ends.server, buffer, 64, MSG_DONTWAIT));
    put(ends.client, 5, 0);
    settle();
    tell("something", recv(ends.server, buffer, 64, MSG_DONTWAIT));
    tell("nothing", recv(ends.server, buffer, 64, MSG_DONTWAIT));
    tell("send", send(ends.server, buffer, 5, MSG_DONTWAIT));
}

CASE(discard)
{
    struct ends ends = pair();
    char buffer[64] = "unchanged";
    put(ends.client, 20, 0);
    settle();
    tell("discarded", recv(ends.server, buffer, 12, MSG_TRUNC));
    say("%s", buffer);
    get(ends.server, 8, 12);
}

CASE(errno_survives)
{
    struct ends ends = pair();
    char buffer[8];
    errno = ENOTTY;
    (void)!write(ends.client, "x", 1);
    (void)!read(ends.server, buffer, 8);
    poll_one(ends.server, POLLIN | POLLOUT, 0);
    say("%s", error_name(errno));
}

CASE(empty_buffers)
{
    struct ends ends = pair();
    struct iovec none[2] = {{NULL, 0}, {NULL, 0}};
    char buffer[4];
    tell("write of 0", write(ends.client, buffer, 0));
    tell("send of 0", send(ends.client, buffer, 0, 0));
    tell("writev of 0", writev(ends.client, none, 2));
    tell("writev of no buffers", writev(ends.client, none, 0));
    tell("read of 0", read(ends.server, buffer, 0));
    tell("readv of no buffers", readv(ends.server, none, 0));
    tell("too many buffers", writev(ends.client, none, -1));
    tell("nothing came", recv(ends.server, buffer, 4, MSG_DONTWAIT));
}

CASE(many_buffers)
{
    struct ends ends = pair();
    struct iovec parts[100];
    char bytes[100], read_back[100] = "";
    for (int at = 0; at < 100; at++) {
        bytes[at] = pattern(at);
        parts[at] = (struct iovec){bytes + at, 1};
    }
    tell("writev", writev(ends.client, parts, 100));
    settle();
    for (int at = 0; at < 100; at++)
        parts[at].iov_base = read_back + at;
    tell("readv", readv(ends.server, parts, 100));
    say("%s", memcmp(bytes, read_back, 100) ? "different" : "the same");
}

CASE(recvmmsg_waits_for_one)
{
    struct ends ends = pair();
    char first[10], second[10];
    struct iovec parts[2] = {{first, 10}, {second, 10}};
    struct mmsghdr messages[2] = {{.msg_hdr = {.msg_iov = parts, .msg_iovlen = 1}}, {.msg_hdr = {.msg_iov = parts + 1, .msg_iovlen = 1}}};
    put(ends.client, 10, 0);
    settle();
    tell("messages", recvmmsg(ends.server, messages, 2, MSG_WAITFORONE, NULL));
    tell("bytes", messages[0].msg_len);
    tell("none", recvmmsg(ends.server, messages, 2, MSG_DONTWAIT, NULL));
}

CASE(fionread)
{
    struct ends ends = pair();
    int count = -1;
    tell("ioctl", ioctl(ends.server, FIONREAD, &count));
    tell("none", count);
    put(ends.client, 777, 0);
    settle();
    ioctl(ends.server, FIONREAD, &count);
    tell("some", count);
    get(ends.server, 77, 0);
    ioctl(ends.server, FIONREAD, &count);
    tell("the rest", count);
    shutdown(ends.client, SHUT_WR);
    settle();
    ioctl(ends.server, FIONREAD, &count);
    tell("and an end", count);
}

CASE(fionread_cold)
{
    struct ends ends = cold_pair();
    int count = -1;
    put(ends.client, 777, 0);
    settle();
    ioctl(ends.server, FIONREAD, &count);
    tell("some", count);
    put(ends.client, 3, 777);
    settle();
    ioctl(ends.server, FIONREAD, &count);
    tell("more", count);
    get(ends.server, 780, 0);
}

CASE(full_then_drained)
{
    struct ends ends = pair();
    nonblocking(ends.client);
    char *block = calloc(1, 65536);
    long sent = 0, more;
    while ((more = send(ends.client, block, 65536, 0)) > 0)
        sent += more;
    tell("full", more);
    say("%s", sent > 65536 ? "a good deal fitted" : "little fitted");
    say("poll: %s", events_text(poll_one(ends.client, POLLOUT, 0)));
    nonblocking(ends.server);
    long received = 0;
    for (int quiet = 0; quiet < 20;) {
        more = recv(ends.server, block, 65536, 0);
        if (more > 0)
            received += more;
        else
            quiet++, sleep_ms(1);
    }
    say("%s", sent == received ? "all came" : "some are missing");
    say("poll: %s", events_text(poll_one(ends.client, POLLOUT, 100)));
    tell("send", send(ends.client, block, 10, 0));
}

CASE(blocked_sender_goes_on)
{
    struct ends ends = pair();
    pthread_t thread;
    int what[2] = {ends.client, 30000000};
    pthread_create(&thread, NULL, thread_put, what);
    sleep_ms(50);
    get(ends.server, 30000000, 0);
    pthread_join(thread, NULL);
    say("done");
}

CASE(both_directions_at_once)
{
    struct ends ends = pair();
    pthread_t threads[2];
    int what[2][2] = {{ends.client, 5000000}, {ends.server, 5000000}};
    pthread_create(threads, NULL, thread_put, what[0]);
    pthread_create(threads + 1, NULL, thread_put, what[1]);
    if (fork() == 0) {
        get(ends.client, 5000000, 0);
        _exit(0);
    }
    get(ends.server, 5000000, 0);
    wait(NULL);
    pthread_join(threads[0], NULL);
    pthread_join(threads[1], NULL);
    say("done");
}

// One call has one time-out, however many parts come within it.
CASE(waitall_times_out)
{
    struct ends ends = pair();
    struct timeval time = {0, 150000};
    char buffer[64];
    setsockopt(ends.server, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
    pid_t child = fork();
    if (child == 0) {
        for (int at = 0; at < 20; at++) {
            put(ends.client, 2, at * 2);
            sleep_ms(40);
        }
        _exit(0);
    }
    long got = recv(ends.server, buffer, 40, MSG_WAITALL);
    say("%s", got > 0 && got < 40 ? "a part" : "not a part");
    waitpid(child, NULL, 0);
    get(ends.server, 40 - got, got);
    put(ends.client, 5, 0);
    settle();
    tell("peek", recv(ends.server, buffer, 40, MSG_WAITALL | MSG_PEEK));
    get(ends.server, 5, 0);
    tell("nothing", recv(ends.server, buffer, 40, MSG_WAITALL));
}

static void send_time_out_case(int is_cold)
{
    int listener = listening(AF_INET, 4), client = connecting(listener);
    if (is_cold)
        put(client, 10, 0);
    int server = accept(listener, NULL, NULL);
    struct timeval time = {0, 150000};
    enum { BYTES = 32 << 20 };
    char *buffer = calloc(1, BYTES);
    setsockopt(server, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof time);
    long sent = send(server, buffer, BYTES, 0);
    say("%s", sent > 0 && sent < BYTES ? "a part" : "not a part");
}

__attribute__((constructor)) static void add_send_time_outs(void)
{
    add_case("send_times_out", send_time_out_case, 0);
    add_case("send_times_out_behind_cold_data", send_time_out_case, 1);
}

CASE(recvmmsg_times_out)
{
    struct ends ends = pair();
    struct timespec time = {0, 50000000};
    char first[10], second[10];
    struct iovec parts[2] = {{first, 10}, {second, 10}};
    struct mmsghdr messages[2] = {{.msg_hdr = {.msg_iov = parts, .msg_iovlen = 1}}, {.msg_hdr = {.msg_iov = parts + 1, .msg_iovlen = 1}}};
    pid_t child = fork();
    if (child == 0) {
        sleep_ms(100);
        put(ends.client, 10, 0);
        sleep_ms(100);
        put(ends.client, 10, 0);
        _exit(0);
    }
    tell("messages", recvmmsg(ends.server, messages, 2, 0, &time));
    tell("left", time.tv_sec * 1000000000 + time.tv_nsec);
    get(ends.server, 10, 0);
    time.tv_nsec = -1;
    tell("no time", recvmmsg(ends.server, messages, 2, MSG_DONTWAIT, &time));
    waitpid(child, NULL, 0);
}

CASE(peek_without_room)
{
    struct ends ends = pair();
    put(ends.client, 20, 0);
    settle();
    tell("peek", recv(ends.server, NULL, 12, MSG_PEEK | MSG_TRUNC));
    tell("peek", recv(ends.server, NULL, 100, MSG_PEEK | MSG_TRUNC));
    get(ends.server, 20, 0);
}

CASE(many_buffers_too_many)
{
    struct ends ends = pair();
    static struct iovec parts[1025];
    char byte;
    for (int at = 0; at < 1025; at++)
        parts[at] = (struct iovec){&byte, 1};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 1025};
    tell("writev", writev(ends.client, parts, 1025));
    tell("sendmsg", sendmsg(ends.client, &message, 0));
    tell("readv", readv(ends.client, parts, 1025));
    tell("recvmsg", recvmsg(ends.client, &message, MSG_DONTWAIT));
}

// The same calls by other names, and by their numbers.
static void other_names_case(int by)
{
    struct ends ends = pair();
    char into[20] = "";
    struct iovec out[2] = {{"abc", 3}, {"defg", 4}}, in[2] = {{into, 2}, {into + 2, 10}};
    struct msghdr sent = {.msg_iov = out, .msg_iovlen = 2}, taken = {.msg_iov = in, .msg_iovlen = 2};
    int copy;
    // What does not wait is asked for often, so that news by TCP would be seen.
    for (int round = 0; round < 40; round++) {
        switch (by) {
        case 0: tell("pwritev2", pwritev2(ends.client, out, 2, -1, 0)); break;
        case 1: tell("write", syscall(SYS_write, ends.client, "abcdefg", 7)); break;
        case 2: tell("writev", syscall(SYS_writev, ends.client, out, 2)); break;
        case 3: tell("sendto", syscall(SYS_sendto, ends.client, "abcdefg", 7, 0, NULL, 0)); break;
        case 4: tell("sendmsg", syscall(SYS_sendmsg, ends.client, &sent, 0)); break;
        case 5: tell("pwritev2", syscall(SYS_pwritev2, ends.client, out, 2, -1L, -1L, 0)); break;
        case 6:
            copy = syscall(SYS_dup, ends.client);
            put(copy, 7, 0);
            close(copy);
        }
        memset(into, 0, sizeof into);
        switch (by) {
        case 0: tell("preadv2", preadv2(ends.server, in, 2, -1, 0)); break;
        case 1: tell("read", syscall(SYS_read, ends.server, into, 12)); break;
        case 2: tell("readv", syscall(SYS_readv, ends.server, in, 2)); break;
        case 3: tell("recvfrom", syscall(SYS_recvfrom, ends.server, into, 12, 0, NULL, NULL)); break;
        case 4: tell("recvmsg", syscall(SYS_recvmsg, ends.server, &taken, 0)); break;
        case 5: tell("preadv2", syscall(SYS_preadv2, ends.server, in, 2, -1L, -1L, 0)); break;
        case 6:
            copy = syscall(SYS_dup3, ends.server, 300, 0);
            get(copy, 7, 0);
            close(copy);
        }
        say("%s", into);
    }
    switch (by) {
    case 0:
        tell("position", preadv2(ends.server, in, 2, 0, 0));
        tell("position", pwritev2(ends.client, out, 2, 5, 0));
        tell("flags", preadv2(ends.server, in, 2, -1, 1 << 20));
        nonblocking(ends.server);
        tell("nothing", preadv2(ends.server, in, 2, -1, 0));
        break;
    case 1:
        tell("shutdown", syscall(SYS_shutdown, ends.client, SHUT_WR));
        tell("end", syscall(SYS_read, ends.server, into, 12));
    }
}

__attribute__((constructor)) static void add_other_names(void)
{
    static const char *names[] = {"preadv2", "by_number_read", "by_number_readv", "by_number_recvfrom", "by_number_recvmsg", "by_number_preadv2", "by_number_dup"};
    for (int by = 0; by < 7; by++) {
        char name[40];
        snprintf(name, sizeof name, "data_%s", names[by]);
        add_case(strdup(name), other_names_case, by);
    }
}

// An error that comes after the first message is the next call's.
CASE(recvmmsg_error_after_a_part)
{
    struct ends ends = pair();
    struct linger linger = {1, 0};
    char first[10], second[10];
    struct iovec parts[2] = {{first, 10}, {second, 10}};
    struct mmsghdr messages[2] = {{.msg_hdr = {.msg_iov = parts, .msg_iovlen = 1}}, {.msg_hdr = {.msg_iov = parts + 1, .msg_iovlen = 1}}};
    put(ends.server, 10, 0);
    pid_t child = fork();
    if (child == 0) {
        close(ends.client);
        sleep_ms(60);
        setsockopt(ends.server, SOL_SOCKET, SO_LINGER, &linger, sizeof linger);
        close(ends.server);
        _exit(0);
    }
    close(ends.server);
    tell("messages", recvmmsg(ends.client, messages, 2, 0, NULL));
    tell("then", recv(ends.client, first, 10, 0));
    tell("then", recv(ends.client, first, 10, 0));
    waitpid(child, NULL, 0);
}

// No bytes are asked for: `read` returns at once, `recv` waits until there are some, or an end.
CASE(receive_no_bytes)
{
    struct ends ends = pair();
    char byte;
    struct iovec part = {&byte, 0};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    tell("read", read(ends.server, &byte, 0));
    tell("readv", readv(ends.server, &part, 1));
    tell("recv", recv(ends.server, &byte, 0, MSG_DONTWAIT));
    tell("recvmsg", recvmsg(ends.server, &message, MSG_DONTWAIT));
    pid_t child = fork();
    if (child == 0) {
        sleep_ms(30);
        put(ends.client, 10, 0);
        _exit(0);
    }
    tell("waits", recv(ends.server, &byte, 0, 0));
    tell("there are some", recv(ends.server, &byte, 0, MSG_DONTWAIT));
    get(ends.server, 10, 0);
    waitpid(child, NULL, 0);
    close(ends.client);
    settle();
    tell("end", recv(ends.server, &byte, 0, 0));
}
