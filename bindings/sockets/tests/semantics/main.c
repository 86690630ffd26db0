// Runs the cases: all, or those whose names begin with the words given.
#include "cases.h"
#include <stdarg.h>

static struct one_case cases[1024];
static int case_count;
// A case that takes longer has hung.
enum { CASE_SECONDS = 20 };

void add_case(const char *name, void (*run)(int), int argument)
{
    cases[case_count++] = (struct one_case){name, run, argument};
}

void say(const char *format, ...)
{
    char line[1024];
    va_list list;
    va_start(list, format);
    int bytes = vsnprintf(line, sizeof line - 1, format, list);
    va_end(list);
    if (bytes > (int)sizeof line - 2)
        bytes = sizeof line - 2;
    line[bytes++] = '\n';
    if (write(1, line, bytes) < 0)
        _exit(3);
}

const char *error_name(int error) { return error ? strerrorname_np(error) : "none"; }

void tell(const char *what, long result)
{
    if (result == -1)
        say("%s: -1 %s", what, error_name(errno));
    else
        say("%s: %ld", what, result);
}

int listening(int family, int backlog)
{
    int fd = socket(family, SOCK_STREAM, 0);
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    struct sockaddr_in four = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int bound = family == AF_INET6 ? bind(fd, (void *)&six, sizeof six) : bind(fd, (void *)&four, sizeof four);
    if (fd < 0 || bound || listen(fd, backlog))
        say("cannot listen: %s", error_name(errno));
    return fd;
}

int connecting(int listener)
{
    struct sockaddr_storage address;
    socklen_t bytes = sizeof address;
    getsockname(listener, (void *)&address, &bytes);
    int fd = socket(address.ss_family, SOCK_STREAM, 0);
    if (connect(fd, (void *)&address, bytes))
        say("cannot connect: %s", error_name(errno));
    return fd;
}

struct ends cold_pair(void)
{
    struct ends ends = {.listener = listening(AF_INET, 16)};
    ends.client = connecting(ends.listener);
    ends.server = accept(ends.listener, NULL, NULL);
    // Small pieces shall not wait for acknowledgements: kernel TCP would deliver them at times that depend on the machine.
    int on = 1;
    setsockopt(ends.client, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(ends.server, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return ends;
}

struct ends pair(void)
{
    struct ends ends = cold_pair();
    char byte = 'w';
    if (write(ends.client, &byte, 1) != 1 || read(ends.server, &byte, 1) != 1 || write(ends.server, &byte, 1) != 1 ||
        read(ends.client, &byte, 1) != 1)
        say("a new pair carries nothing: %s", error_name(errno));
    // Where both ends take longer to agree, they shall have.
    const char *pause = getenv("SEMANTICS_PAUSE_MS");
    if (pause) {
        sleep_ms(atoi(pause));
        if (write(ends.client, &byte, 1) != 1 || read(ends.server, &byte, 1) != 1 || write(ends.server, &byte, 1) != 1 ||
            read(ends.client, &byte, 1) != 1)
            say("it carries nothing any more: %s", error_name(errno));
    }
    return ends;
}

void nonblocking(int fd) { fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK); }

unsigned char pattern(size_t at) { return (unsigned char)(at * 7 + at / 251); }

void put(int fd, size_t bytes, size_t from)
{
    unsigned char *buffer = malloc(bytes);
    for (size_t at = 0; at < bytes; at++)
        buffer[at] = pattern(from + at);
    size_t done = 0;
    while (done < bytes) {
        ssize_t more = send(fd, buffer + done, bytes - done, MSG_NOSIGNAL);
        if (more <= 0) {
            say("put: %zu of %zu, %s", done, bytes, error_name(errno));
            break;
        }
        done += more;
    }
    free(buffer);
}

void get(int fd, size_t bytes, size_t from)
{
    unsigned char *buffer = malloc(bytes);
    size_t done = 0;
    while (done < bytes) {
        ssize_t more = recv(fd, buffer + done, bytes - done, 0);
        if (more <= 0) {
            say("get: %zu of %zu, %zd %s", done, bytes, more, more ? error_name(errno) : "");
            break;
        }
        done += more;
    }
    for (size_t at = 0; at < done; at++)
        if (buffer[at] != pattern(from + at)) {
            say("get: byte %zu is wrong", at);
            break;
        }
    free(buffer);
}

void sleep_ms(int ms) { usleep(ms * 1000); }
void settle(void) { sleep_ms(15); }

const char *events_text(unsigned events)
{
    static char text[128];
    snprintf(text, sizeof text, "%s%s%s%s%s%s", events & POLLIN ? " IN" : "", events & POLLOUT ? " OUT" : "",
             events & POLLPRI ? " PRI" : "", events & POLLRDHUP ? " RDHUP" : "", events & POLLHUP ? " HUP" : "",
             events & POLLERR ? " ERR" : "");
    return *text ? text + 1 : "nothing";
}

int sleeps(pid_t process, pid_t thread)
{
    char name[64], line[256], *state = NULL;
    snprintf(name, sizeof name, "/proc/%d/task/%d/stat", (int)process, (int)thread);
    FILE *file = fopen(name, "r");
    if (file && fgets(line, sizeof line, file)) {
        state = strrchr(line, ')');
    }
    int found = state && state[2] == 'S';
    if (file) {
        fclose(file);
    }
    return found;
}

int poll_one(int fd, int events, int ms)
{
    struct pollfd one = {.fd = fd, .events = events};
    int count = poll(&one, 1, ms);
    return count <= 0 ? count : one.revents;
}

void *thread_put(void *argument)
{
    int *what = argument;
    put(what[0], what[1], 0);
    return NULL;
}

static int by_name(const void *one, const void *other)
{
    return strcmp(((const struct one_case *)one)->name, ((const struct one_case *)other)->name);
}

/* Processes that a case starts end as it does: they would keep the output open for ever. */
static void limit_time(void)
{
    alarm(CASE_SECONDS);
}

int main(int count, char **words)
{
    pthread_atfork(NULL, NULL, limit_time);
    qsort(cases, case_count, sizeof *cases, by_name);
    for (int at = 0; at < case_count; at++) {
        if (count == 2 && !strcmp(words[1], "--list")) {
            say("%s", cases[at].name);
            continue;
        }
        int is_wanted = count < 2;
        for (int word = 1; word < count; word++)
            is_wanted |= !strncmp(cases[at].name, words[word], strlen(words[word]));
        if (!is_wanted)
            continue;
        say("== %s", cases[at].name);
        pid_t child = fork();
        if (child == 0) {
            cases[at].run(cases[at].argument);
            exit(0);
        }
        int status;
        while (waitpid(child, &status, 0) < 0 && errno == EINTR)
            ;
        if (WIFSIGNALED(status))
            say("ended by signal %s", sigabbrev_np(WTERMSIG(status)));
        else if (WEXITSTATUS(status))
            say("exit code %d", WEXITSTATUS(status));
    }
    return 0;
}
