// Files and pipes that go through sockets, stdio over them, and urgent data.
#include "cases.h"
#include <sys/mman.h>
#include <sys/stat.h>

static char room[65536];

static int file_of(size_t bytes)
{
    char name[] = "/tmp/tsumuji-sockets-XXXXXX";
    int fd = mkstemp(name);
    unlink(name);
    put(-1, 0, 0);
    for (size_t at = 0; at < bytes; at++) {
        room[at % sizeof room] = pattern(at);
        if (at % sizeof room == sizeof room - 1 || at == bytes - 1)
            (void)!write(fd, room, at % sizeof room + 1);
    }
    return fd;
}

static void sendfile_case(int bytes)
{
    struct ends ends = pair();
    int file = file_of(bytes);
    off_t offset = 100;
    if (fork() == 0) {
        get(ends.server, bytes - 100, 100);
        get(ends.server, 1000, 0);
        _exit(0);
    }
    long done = 0, more;
    while ((more = sendfile(ends.client, file, &offset, bytes)) > 0)
        done += more;
    tell("sent", done);
    tell("offset", offset);
    tell("position", lseek(file, 0, SEEK_CUR));
    lseek(file, 0, SEEK_SET);
    tell("without offset", sendfile(ends.client, file, NULL, 1000));
    tell("position", lseek(file, 0, SEEK_CUR));
    tell("bad file", sendfile(ends.client, 998, NULL, 10));
    wait(NULL);
}

__attribute__((constructor)) static void add_files(void)
{
    add_case("sendfile_small", sendfile_case, 5000);
    add_case("sendfile_large", sendfile_case, 3000000);
}

CASE(sendfile_cold)
{
    struct ends ends = cold_pair();
    int file = file_of(1000);
    lseek(file, 0, SEEK_SET);
    tell("sent", sendfile(ends.client, file, NULL, 1000));
    get(ends.server, 1000, 0);
    lseek(file, 0, SEEK_SET);
    tell("sent", sendfile(ends.server, file, NULL, 1000));
    get(ends.client, 1000, 0);
}

CASE(splice_both_ways)
{
    struct ends ends = pair();
    int pipes[2];
    if (pipe(pipes))
        return;
    put(ends.client, 1000, 0);
    settle();
    tell("out", splice(ends.server, NULL, pipes[1], NULL, 600, 0));
    tell("out", splice(ends.server, NULL, pipes[1], NULL, 600, 0));
    nonblocking(ends.server);
    tell("nothing", splice(ends.server, NULL, pipes[1], NULL, 600, SPLICE_F_NONBLOCK));
    tell("in", splice(pipes[0], NULL, ends.server, NULL, 1000, 0));
    get(ends.client, 1000, 0);
    shutdown(ends.client, SHUT_WR);
    tell("end", splice(ends.server, NULL, pipes[1], NULL, 600, 0));
}

static void fill_pipe(int fd, int leave)
{
    for (long left = fcntl(fd, F_GETPIPE_SZ) - leave; left > 0; left -= 4096)
        (void)!write(fd, room, 4096);
}

CASE(splice_by_a_named_pipe)
{
    struct ends ends = pair();
    char folder[] = "/tmp/tsumuji-sockets-XXXXXX", name[64];
    if (!mkdtemp(folder))
        return;
    snprintf(name, sizeof name, "%s/pipe", folder);
    tell("made", mkfifo(name, 0600));
    int reader = open(name, O_RDONLY | O_NONBLOCK), writer = open(name, O_WRONLY);
    unlink(name);
    rmdir(folder);
    put(ends.client, 5000, 0);
    settle();
    long done = 0, more;
    while (done < 5000 && (more = splice(ends.server, NULL, writer, NULL, 5000 - done, 0)) > 0)
        done += more;
    tell("out", done);
    done = 0;
    while (done < 5000 && (more = splice(reader, NULL, ends.server, NULL, 5000 - done, 0)) > 0)
        done += more;
    tell("in", done);
    get(ends.client, 5000, 0);
    fill_pipe(writer, 0);
    put(ends.client, 10, 0);
    settle();
    tell("full", splice(ends.server, NULL, writer, NULL, 10, SPLICE_F_NONBLOCK));
    get(ends.server, 10, 0);
}

CASE(splice_as_much_as_the_pipe_takes)
{
    struct ends ends = pair();
    int pipes[2];
    if (pipe(pipes))
        return;
    put(ends.client, 200000, 0);
    settle();
    long more = splice(ends.server, NULL, pipes[1], NULL, 200000, 0);
    say("%s", more > 0 && more <= 65536 ? "a part" : "not a part");
    long done = more, seen = 0;
    while (seen < done && (more = read(pipes[0], room, done - seen < 65536 ? done - seen : 65536)) > 0) {
        for (long at = 0; at < more; at++)
            if ((unsigned char)room[at] != pattern(seen + at))
                say("byte %ld is wrong", seen + at), at = more;
        seen += more;
    }
    get(ends.server, 200000 - done, done);
}

CASE(splice_into_a_full_pipe)
{
    struct ends ends = pair();
    int pipes[2];
    if (pipe(pipes))
        return;
    fill_pipe(pipes[1], 0);
    put(ends.client, 1000, 0);
    settle();
    tell("at once", splice(ends.server, NULL, pipes[1], NULL, 1000, SPLICE_F_NONBLOCK));
    pid_t child = fork();
    if (child == 0) {
        sleep_ms(30);
        (void)!read(pipes[0], room, 8192);
        _exit(0);
    }
    tell("later", splice(ends.server, NULL, pipes[1], NULL, 1000, 0));
    waitpid(child, NULL, 0);
}

CASE(splice_from_an_empty_pipe)
{
    struct ends ends = pair();
    int pipes[2];
    if (pipe(pipes))
        return;
    tell("at once", splice(pipes[0], NULL, ends.client, NULL, 1000, SPLICE_F_NONBLOCK));
    if (fork() == 0) {
        sleep_ms(30);
        (void)!write(pipes[1], room, 100);
        _exit(0);
    }
    tell("later", splice(pipes[0], NULL, ends.client, NULL, 1000, 0));
    wait(NULL);
    close(pipes[1]);
    tell("end", splice(pipes[0], NULL, ends.client, NULL, 1000, 0));
}

CASE(splice_waits_for_the_socket)
{
    struct ends ends = pair();
    int pipes[2];
    if (pipe(pipes))
        return;
    if (fork() == 0) {
        sleep_ms(30);
        put(ends.client, 10, 0);
        _exit(0);
    }
    tell("out", splice(ends.server, NULL, pipes[1], NULL, 1000, SPLICE_F_NONBLOCK));
    wait(NULL);
}

static int signals;
static void on_pipe(int number) { signals += number == SIGPIPE; }

CASE(splice_bad_arguments)
{
    struct ends ends = pair(), others = pair();
    int pipes[2], file = file_of(100);
    off_t offset = 0;
    signal(SIGPIPE, on_pipe);
    if (pipe(pipes))
        return;
    put(ends.client, 10, 0);
    settle();
    tell("nothing", splice(ends.server, NULL, pipes[1], NULL, 0, 0));
    tell("no pipe", splice(ends.server, NULL, file, NULL, 10, 0));
    tell("no pipe", splice(file, NULL, ends.server, NULL, 10, 0));
    tell("two sockets", splice(ends.server, NULL, others.client, NULL, 10, 0));
    tell("no descriptor", splice(ends.server, NULL, 999, NULL, 10, 0));
    tell("offset of a pipe", splice(ends.server, NULL, pipes[1], &offset, 10, 0));
    tell("offset of a socket", splice(ends.server, &offset, pipes[1], NULL, 10, 0));
    (void)!write(pipes[1], room, 10);
    tell("offset of a socket", splice(pipes[0], NULL, ends.server, &offset, 10, 0));
    shutdown(ends.server, SHUT_WR);
    tell("shut", splice(pipes[0], NULL, ends.server, NULL, 10, 0));
    tell("signals", signals);
    close(pipes[0]);
    tell("no reader", splice(ends.server, NULL, pipes[1], NULL, 10, 0));
    tell("signals", signals);
}

CASE(sendfile_from_a_pipe)
{
    struct ends ends = pair();
    int pipes[2];
    off_t offset = 0;
    if (pipe(pipes))
        return;
    (void)!write(pipes[1], room, 10);
    tell("without offset", sendfile(ends.client, pipes[0], NULL, 10));
    tell("with offset", sendfile(ends.client, pipes[0], &offset, 10));
    tell("nothing", sendfile(ends.client, pipes[0], NULL, 0));
}

// The ring is full and half drained between two steps of one call.
CASE(sendfile_is_whole)
{
    struct ends ends = pair();
    enum { BYTES = 8 << 20 };
    int file = file_of(BYTES);
    pid_t child = fork();
    if (child == 0) {
        close(ends.client);
        for (int at = 0; at < BYTES; at += 1 << 16)
            get(ends.server, 1 << 16, at);
        _exit(0);
    }
    off_t offset = 0;
    tell("sent", sendfile(ends.client, file, &offset, BYTES));
    waitpid(child, NULL, 0);
}

CASE(stdio)
{
    struct ends ends = pair();
    FILE *out = fdopen(ends.client, "w"), *in = fdopen(ends.server, "r");
    char line[100] = "";
    tell("fileno", fileno(in) == ends.server);
    fprintf(out, "a line of %d\n", 10);
    fprintf(out, "and another");
    fflush(out);
    say("%s", fgets(line, sizeof line, in));
    tell("fclose", fclose(out));
    say("%s", fgets(line, sizeof line, in));
    errno = 0; // an end leaves what an earlier call left there
    tell("end", fgetc(in));
    tell("eof", feof(in) != 0);
}

static int printed_by_list(int fd, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    int bytes = vdprintf(fd, format, list);
    va_end(list);
    return bytes;
}

// More arguments than there are registers for, of both kinds.
CASE(printed)
{
    struct ends ends = pair();
    char line[300] = "";
    for (int round = 0; round < 2; round++) {
        tell("dprintf", dprintf(ends.client, "%d %s %c %ld %.2f %x %.1f %d %d %d %s\n", round, "words", 'c', 1L << 40, 1.25, 255, 2.5, 7, 8, 9, "end"));
        tell("none", dprintf(ends.client, "%s", ""));
        tell("by list", printed_by_list(ends.client, "%d %f %f %f %f %f %f %f %f %.1f %d\n", 1, 1., 2., 3., 4., 5., 6., 7., 8., 9.5, 2));
        memset(line, 0, sizeof line);
        for (size_t at = 0, lines = 0; lines < 2 && at + 1 < sizeof line; at++) {
            if (read(ends.server, line + at, 1) != 1) {
                tell("read", -1);
                return;
            }
            lines += line[at] == '\n';
        }
        say("%s", line);
    }
    tell("elsewhere", dprintf(STDOUT_FILENO, "%s", ""));
    shutdown(ends.client, SHUT_WR);
    signal(SIGPIPE, SIG_IGN);
    tell("after the end", dprintf(ends.client, "%d", 1));
}

// More than the ring and the socket's room.
CASE(printed_at_length)
{
    struct ends ends = pair();
    enum { BYTES = 3 << 20 };
    pid_t child = fork();
    if (child == 0) {
        close(ends.client);
        size_t seen = 0;
        for (ssize_t bytes; (bytes = read(ends.server, room, 1 << 16)) > 0;)
            seen += bytes;
        tell("seen", seen);
        _exit(0);
    }
    tell("printed", dprintf(ends.client, "%*d", BYTES, 5));
    close(ends.client);
    waitpid(child, NULL, 0);
}

// The number is a pipe's after that.
CASE(stdio_cannot_seek)
{
    struct ends ends = pair();
    FILE *file = fdopen(ends.client, "r+");
    errno = 0;
    tell("ftell", ftell(file));
    errno = 0;
    tell("fseek", fseek(file, 1, SEEK_SET));
    put(ends.server, 3, 0);
    char room[4];
    tell("read all the same", fread(room, 1, 3, file));
}

CASE(stdio_before_accept)
{
    int listener = listening(AF_INET, 4), client = connecting(listener), pipes[2];
    FILE *out = fdopen(client, "w");
    fprintf(out, "some words");
    tell("fclose", fclose(out));
    if (pipe(pipes))
        return;
    int server = accept(listener, NULL, NULL);
    tell("words", recv(server, room, 100, MSG_WAITALL));
    say("%s", pipes[0] == client ? "the same number" : "another number");
    tell("write", write(pipes[1], "x", 1));
    tell("read", read(pipes[0], room, 1));
}

CASE(urgent)
{
    struct ends ends = pair();
    put(ends.client, 5, 0);
    tell("urgent", send(ends.client, "!", 1, MSG_OOB));
    put(ends.client, 5, 5);
    settle();
    say("%s", events_text(poll_one(ends.server, POLLIN | POLLPRI, 1000)));
    char byte = 0;
    tell("receive it", recv(ends.server, &byte, 1, MSG_OOB));
    say("%c", byte);
    int mark = -1;
    get(ends.server, 5, 0);
    tell("mark", ioctl(ends.server, SIOCATMARK, &mark) ? -1 : mark);
    get(ends.server, 5, 5);
    put(ends.server, 20, 0);
    get(ends.client, 20, 0);
    put(ends.client, 20, 0);
    get(ends.server, 20, 0);
}

CASE(urgent_with_unread_data)
{
    struct ends ends = pair();
    put(ends.client, 100000, 0);
    tell("urgent", send(ends.client, "!", 1, MSG_OOB));
    put(ends.client, 1000, 100000);
    settle();
    get(ends.server, 100000, 0);
    get(ends.server, 1000, 100000);
    put(ends.server, 3000, 0);
    get(ends.client, 3000, 0);
    shutdown(ends.client, SHUT_WR);
    tell("end", recv(ends.server, room, 1, 0));
}

// As many bytes as there are, though the other end is gone.
CASE(sendfile_to_closed)
{
    struct ends ends = pair();
    int file = file_of(10);
    off_t offset = 0;
    signal(SIGPIPE, SIG_IGN);
    close(ends.server);
    settle();
    tell("sent", sendfile(ends.client, file, &offset, 4096));
    tell("offset", offset);
    settle();
    tell("then", send(ends.client, room, 1, 0));
    tell("then", sendfile(ends.client, file, &(off_t){0}, 4096));
}

CASE(splice_to_closed)
{
    struct ends ends = pair();
    int pipes[2], left = -1;
    signal(SIGPIPE, SIG_IGN);
    if (pipe(pipes))
        return;
    (void)!write(pipes[1], room, 1);
    close(ends.server);
    settle();
    tell("spliced", splice(pipes[0], NULL, ends.client, NULL, 256 << 10, 0));
    ioctl(pipes[0], FIONREAD, &left);
    tell("left", left);
}

// A reset in the middle is told to nobody.
CASE(sendfile_reset_after_a_part)
{
    struct ends ends = pair();
    enum { BYTES = 16 << 20 };
    int file = file_of(1);
    if (ftruncate(file, BYTES))
        return;
    pid_t child = fork();
    if (child == 0) {
        close(ends.client);
        sleep_ms(60);
        exit(0);
    }
    close(ends.server);
    signal(SIGPIPE, on_pipe);
    off_t offset = 0;
    long sent = sendfile(ends.client, file, &offset, BYTES);
    say("%s", sent > 0 && sent < BYTES && offset == sent ? "a part" : "not a part");
    tell("then", send(ends.client, room, 1, 0));
    tell("signals", signals);
    tell("then", send(ends.client, room, 1, 0));
    tell("signals", signals);
    waitpid(child, NULL, 0);
}

static void control_of(int fd, int bytes)
{
    char control[64] = {0};
    struct iovec vector = {room, bytes};
    struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    tell("recvmsg", recvmsg(fd, &message, 0));
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    if (!header)
        say("no control data");
    else if (header->cmsg_level == IPPROTO_TCP)
        say("type %d, %d", header->cmsg_type, *(int *)CMSG_DATA(header));
    else
        say("level %d, type %d", header->cmsg_level, header->cmsg_type);
}

CASE(option_unread_bytes)
{
    struct ends ends = pair();
    int on = 1, off = 0;
    put(ends.client, 10, 0);
    settle();
    control_of(ends.server, 1);
    tell("set", setsockopt(ends.server, IPPROTO_TCP, TCP_INQ, &on, sizeof on));
    control_of(ends.server, 3);
    control_of(ends.server, 6);
    put(ends.client, 10, 0);
    tell("set", setsockopt(ends.server, IPPROTO_TCP, TCP_INQ, &off, sizeof off));
    settle();
    control_of(ends.server, 3);
}

CASE(option_unsent_bytes)
{
    struct ends ends = pair();
    nonblocking(ends.client);
    while (send(ends.client, room, sizeof room, 0) > 0)
        ;
    int unsent = 0;
    tell("ioctl", ioctl(ends.client, 0x894b, &unsent));
    say("%s", unsent > 0 ? "some" : "none");
}

// What a reader is told behind the last bytes, so that it looks once more.
CASE(option_unread_bytes_at_the_end)
{
    struct ends ends = pair();
    int on = 1;
    setsockopt(ends.server, IPPROTO_TCP, TCP_INQ, &on, sizeof on);
    put(ends.client, 10, 0);
    shutdown(ends.client, SHUT_WR);
    settle();
    control_of(ends.server, 4);
    control_of(ends.server, 6);
    control_of(ends.server, 6);
}

static long locked_kilobytes(void)
{
    char line[200];
    long found = -1;
    FILE *status = fopen("/proc/self/status", "r");
    while (status && fgets(line, sizeof line, status))
        sscanf(line, "VmLck: %ld", &found);
    if (status)
        fclose(status);
    return found;
}

// Memory that is locked as it is made is little.
CASE(option_locked_memory)
{
    tell("mlockall", mlockall(MCL_FUTURE));
    long before = locked_kilobytes();
    for (int at = 0; at < 4; at++)
        pair();
    say("%s", locked_kilobytes() - before < 32 << 10 ? "little" : "much");
}

// A narrow address space is the program's.
CASE(option_address_space)
{
    struct rlimit limit = {1 << 30, 1 << 30};
    tell("setrlimit", setrlimit(RLIMIT_AS, &limit));
    for (int at = 0; at < 20; at++)
        pair();
    void *memory = malloc(600 << 20);
    say("%s", memory ? "room" : "no room");
    free(memory);
}
