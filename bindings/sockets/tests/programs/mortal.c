// Ends that are killed: `mortal serve FILE` echoes to all its clients by epoll and writes its port into FILE; `mortal fork FILE` does so with a process
// for each client, `mortal drain FILE` without waiting for any; `mortal talk PORT COUNT` sends and receives over four connections, COUNT rounds (0: for ever), and checks what comes back. A
// connection that ends is no failure of the program's, unless COUNT rounds were asked for: then 1.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

static char room[200000];

static int serve(const char *file, int forks, int drains)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0), epoll = epoll_create1(0);
    if (bind(listener, (void *)&address, sizeof address) || listen(listener, 64))
        return 2;
    getsockname(listener, (void *)&address, &length);
    FILE *out = fopen(file, "w");
    fprintf(out, "%d\n", ntohs(address.sin_port));
    fclose(out);
    struct epoll_event event = {EPOLLIN, {.fd = listener}};
    epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &event);
    signal(SIGCHLD, SIG_IGN);
    for (;;) {
        struct epoll_event events[16];
        int count = epoll_wait(epoll, events, 16, -1);
        for (int at = 0; at < count; at++) {
            int fd = events[at].data.fd;
            if (fd == listener) {
                fd = accept4(listener, NULL, NULL, drains ? SOCK_NONBLOCK : 0);
                if (forks) {
                    if (fork() == 0) {
                        close(listener);
                        for (ssize_t bytes; (bytes = read(fd, room, sizeof room)) > 0;)
                            for (ssize_t done = 0, more; done < bytes; done += more)
                                if ((more = send(fd, room + done, bytes - done, MSG_NOSIGNAL)) < 0)
                                    _exit(0);
                        _exit(0);
                    }
                    close(fd);
                    continue;
                }
                event = (struct epoll_event){EPOLLIN, {.fd = fd}};
                epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
                continue;
            }
            ssize_t bytes = read(fd, room, sizeof room);
            // Until there is nothing more.
            while (drains && bytes > 0) {
                send(fd, room, bytes, MSG_NOSIGNAL);
                bytes = read(fd, room, sizeof room);
            }
            if (drains && bytes < 0 && errno == EAGAIN)
                continue;
            for (ssize_t done = 0, more; done < bytes; done += more)
                if ((more = send(fd, room + done, bytes - done, MSG_NOSIGNAL)) < 0)
                    bytes = -1;
            if (bytes <= 0)
                close(fd);
        }
    }
}

static int talk(int port, int count)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(port)};
    int fds[4];
    unsigned seed = getpid();
    static char sent[50000], back[50000];
    for (int at = 0; at < 4; at++) {
        fds[at] = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(fds[at], (void *)&address, sizeof address))
            return count != 0;
    }
    for (int round = 0; count == 0 || round < count; round++)
        for (int at = 0; at < 4; at++) {
            int bytes = 1 + rand_r(&seed) % (round % 8 ? 200 : (int)sizeof sent), done = 0;
            memset(sent, round + at, bytes);
            if (send(fds[at], sent, bytes, MSG_NOSIGNAL) != bytes)
                return count != 0;
            while (done < bytes) {
                ssize_t more = recv(fds[at], back + done, bytes - done, 0);
                if (more <= 0)
                    return count != 0;
                done += more;
            }
            if (memcmp(sent, back, bytes))
                return 3;
        }
    return 0;
}

// Writes anything into the memory that it shares with its server, while its connections are open.
static int scribble(int port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(port)};
    char line[400];
    unsigned seed = getpid(), found = 0;
    for (int at = 0; at < 4; at++) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(fd, (void *)&address, sizeof address) || send(fd, "hello", 5, MSG_NOSIGNAL) != 5 || recv(fd, line, 5, MSG_WAITALL) != 5)
            return 1;
    }
    FILE *maps = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, maps)) {
        unsigned long begin;
        if (!strstr(line, "tsumuji-sockets") || sscanf(line, "%lx-", &begin) != 1)
            continue;
        found = 1;
        // The header and the words of the slots, not the rings.
        volatile unsigned *words = (unsigned *)begin;
        for (int round = 0; round < 300000; round++) {
            unsigned at = rand_r(&seed) % (36 * 1024 / 4);
            words[at] = round % 3 ? (unsigned)rand_r(&seed) * 3u : (unsigned)rand_r(&seed) % 4u;
            if (round % 10000 == 0)
                usleep(1000);
        }
    }
    return !found;
}

// Tells a server that does not wait that it does, and reads nothing of what it answers: the word `is_nonblocking` of its end of the first slot, which must be set before.
static int block(int port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(port)};
    char line[400];
    volatile unsigned *word = NULL;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fd, (void *)&address, sizeof address))
        return 1;
    for (int round = 0; round < 3; round++)
        if (send(fd, "hello", 5, MSG_NOSIGNAL) != 5 || recv(fd, line, 5, MSG_WAITALL) != 5)
            return 1;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, maps)) {
        unsigned long begin;
        if (strstr(line, "tsumuji-sockets") && sscanf(line, "%lx-", &begin) == 1)
            word = (unsigned *)(begin + 4096 + 128 + 256 + 128 + 24);
    }
    if (!word || *word != 1)
        return 4;
    for (int round = 0; round < 200; round++) {
        *word = 0;
        send(fd, room, sizeof room, MSG_NOSIGNAL | MSG_DONTWAIT);
        usleep(1000);
    }
    for (;;)
        pause();
}

int main(int count, char **words)
{
    if (count == 3 && !strcmp(words[1], "serve"))
        return serve(words[2], 0, 0);
    if (count == 3 && !strcmp(words[1], "fork"))
        return serve(words[2], 1, 0);
    if (count == 3 && !strcmp(words[1], "drain"))
        return serve(words[2], 0, 1);
    if (count == 3 && !strcmp(words[1], "block"))
        return block(atoi(words[2]));
    if (count == 3 && !strcmp(words[1], "scribble"))
        return scribble(atoi(words[2]));
    if (count == 4 && !strcmp(words[1], "talk"))
        return talk(atoi(words[2]), atoi(words[3]));
    return 2;
}
