// Cases of TCP semantics. Each runs in a process of its own and writes down what it saw; the test compares what is seen over kernel TCP with what is
// seen over ours. A case says nothing that kernel TCP does not say every time.
#ifndef CASES_H
#define CASES_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

struct one_case {
    const char *name;
    void (*run)(int argument);
    int argument;
};
void add_case(const char *name, void (*run)(int), int argument);
// A case without an argument.
#define CASE(name)                                                             \
    static void case_##name(int);                                              \
    __attribute__((constructor)) static void add_##name(void) { add_case(#name, case_##name, 0); } \
    static void case_##name(__attribute__((unused)) int argument)

// Two ends of a connection in this process, on which a byte went each way (so that it is carried if it can be).
struct ends {
    int client, server, listener;
};
// Writes down one line.
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
// A result, with errno's name if it is -1.
void tell(const char *what, long result);
const char *error_name(int error);
// Of IPv4, or with `family` AF_INET6 of IPv6.
int listening(int family, int backlog);
int connecting(int listener);
struct ends cold_pair(void);
struct ends pair(void);
void nonblocking(int fd);
// Writes or reads exactly so many bytes of a known pattern; says what went wrong.
void put(int fd, size_t bytes, size_t from);
void get(int fd, size_t bytes, size_t from);
unsigned char pattern(size_t at);
void sleep_ms(int ms);
// Whether that thread of that process sleeps, as it does in a call that waits.
int sleeps(pid_t process, pid_t thread);
// Events of poll, as text.
const char *events_text(unsigned events);
int poll_one(int fd, int events, int ms);
// An epoll instance with one descriptor in it, which is its data, too; and `epoll_ctl`.
int instance(int fd, unsigned events);
int change(int epoll, int operation, int fd, unsigned events);
// Until the other end's words have arrived: kernel TCP needs a moment for some.
void settle(void);
void *thread_put(void *argument);
#endif
