// Files and pipes that go through sockets, stdio over them, and urgent data.
#include "cases.h"

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
    tell("end", fgetc(in));
    tell("eof", feof(in) != 0);
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
