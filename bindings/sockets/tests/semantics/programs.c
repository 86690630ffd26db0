// Programs that are executed with sockets, and what the C library does past everybody.
#include "cases.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>

static char room[65536];
static void on_alarm(__attribute__((unused)) int number) {}

static void exec_case(int by)
{
    struct ends ends = pair();
    put(ends.client, 20, 0);
    get(ends.server, 5, 0);
    if (fork() == 0) {
        close(ends.client);
        dup2(ends.server, 0);
        dup2(ends.server, 7);
        close(ends.server);
        dup2(7, 1);
        close(7);
        char *const words[] = {"cat", NULL};
        char *const empty[] = {"PATH=/bin:/usr/bin", NULL};
        if (by == 0)
            execv("/bin/cat", words);
        else if (by == 1)
            execvp("cat", words);
        else if (by == 2)
            execve("/bin/cat", words, empty);
        else if (by == 3)
            execl("/bin/cat", "cat", "-u", "-", "-", "-", "-", "-", "-", NULL);
        else if (by == 4)
            execlp("cat", "cat", NULL);
        else if (by == 5)
            execle("/bin/cat", "cat", NULL, environ);
        else if (by == 6)
            execveat(open("/bin", O_PATH | O_CLOEXEC), "cat", words, empty, 0);
        else if (by == 7)
            execveat(open("/bin/cat", O_PATH | O_CLOEXEC), "", words, environ, AT_EMPTY_PATH);
        else if (by == 8)
            syscall(SYS_execve, "/bin/cat", words, empty);
        else
            syscall(SYS_execveat, AT_FDCWD, "/bin/cat", words, empty, 0);
        _exit(9);
    }
    close(ends.server);
    sleep_ms(20);
    put(ends.client, 30, 20);
    get(ends.client, 45, 5);
    shutdown(ends.client, SHUT_WR);
    tell("end", recv(ends.client, room, 10, 0));
    wait(NULL);
}

__attribute__((constructor)) static void add_execs(void)
{
    add_case("exec_with_us", exec_case, 0);
    add_case("exec_by_path", exec_case, 1);
    add_case("exec_without_us", exec_case, 2);
    add_case("exec_by_list", exec_case, 3);
    add_case("exec_by_list_and_path", exec_case, 4);
    add_case("exec_by_list_and_environment", exec_case, 5);
    add_case("exec_in_a_folder", exec_case, 6);
    add_case("exec_of_a_descriptor", exec_case, 7);
    add_case("exec_by_number", exec_case, 8);
    add_case("exec_by_number_in_a_folder", exec_case, 9);
}

CASE(spawn)
{
    struct ends ends = pair();
    put(ends.client, 20, 0);
    get(ends.server, 5, 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    // The other end answers from a process of its own.
    pid_t client = fork(), child;
    if (client == 0) {
        close(ends.server);
        get(ends.client, 15, 5);
        put(ends.client, 30, 20);
        get(ends.client, 30, 20);
        shutdown(ends.client, SHUT_WR);
        tell("end", recv(ends.client, room, 10, 0));
        _exit(0);
    }
    close(ends.client);
    posix_spawn_file_actions_adddup2(&actions, ends.server, 0);
    posix_spawn_file_actions_adddup2(&actions, ends.server, 1);
    posix_spawn_file_actions_addclose(&actions, ends.server);
    char *const words[] = {"cat", NULL};
    tell("spawn", posix_spawnp(&child, "cat", &actions, NULL, words, environ));
    close(ends.server);
    waitpid(child, NULL, 0);
    waitpid(client, NULL, 0);
}

// The C library writes standard output past everybody, and so do programs that `system` starts.
CASE(copy_to_standard_output)
{
    struct ends ends = pair();
    int out = dup(1), channel[2];
    if (pipe(channel))
        return;
    pid_t client = fork();
    if (client == 0) {
        close(ends.server);
        char line[100] = "";
        recv(ends.client, line, 20, MSG_WAITALL);
        say("%s", line);
        put(ends.client, 10, 0);
        tell("end", recv(ends.client, line, 10, 0));
        _exit(0);
    }
    close(ends.client);
    dup2(ends.server, 1);
    printf("printed\n");
    fflush(stdout);
    int result = system("echo by system");
    dprintf(1, "a");
    (void)!write(1, "b", 1);
    get(1, 10, 0);
    dup2(out, 1);
    close(ends.server);
    waitpid(client, NULL, 0);
    tell("system", result);
}

CASE(copy_to_standard_input)
{
    struct ends ends = pair();
    pid_t client = fork();
    if (client == 0) {
        close(ends.server);
        (void)!write(ends.client, "one\ntwo\n", 8);
        sleep_ms(50);
        (void)!write(ends.client, "three\n", 6);
        char byte;
        tell("end", recv(ends.client, &byte, 1, 0));
        _exit(0);
    }
    close(ends.client);
    sleep_ms(20);
    dup2(ends.server, 0);
    close(ends.server);
    char line[100];
    for (int at = 0; at < 3; at++)
        say("%s", fgets(line, sizeof line, stdin) ? line : "nothing");
    close(0);
    waitpid(client, NULL, 0);
}

CASE(exec_redirects)
{
    struct ends ends = pair();
    pid_t child = fork();
    if (child == 0) {
        close(ends.client);
        dup2(ends.server, 7);
        close(ends.server);
        execl("/bin/sh", "sh", "-c", "cat <&7 >&7; echo end >&7", NULL);
        _exit(9);
    }
    close(ends.server);
    sleep_ms(20);
    put(ends.client, 30, 0);
    get(ends.client, 30, 0);
    shutdown(ends.client, SHUT_WR);
    char line[4];
    tell("last words", recv(ends.client, line, 4, MSG_WAITALL));
    waitpid(child, NULL, 0);
}

CASE(exec_closes)
{
    struct ends ends = pair();
    fcntl(ends.server, F_SETFD, FD_CLOEXEC);
    fcntl(ends.client, F_SETFD, FD_CLOEXEC);
    pid_t child = fork();
    if (child == 0) {
        close(ends.client);
        execlp("sleep", "sleep", "0.3", NULL);
        _exit(9);
    }
    close(ends.server);
    tell("end", recv(ends.client, room, 10, 0));
    tell("sleeps on", waitpid(child, NULL, WNOHANG));
    waitpid(child, NULL, 0);
}

CASE(exec_fails)
{
    struct ends ends = pair();
    char *const words[] = {"none", NULL};
    tell("exec", execv("/nonexistent/none", words));
    put(ends.client, 10, 0);
    get(ends.server, 10, 0);
}

CASE(system_leaves_sockets_alone)
{
    struct ends ends = pair();
    tell("system", system("true"));
    FILE *file = popen("echo x", "r");
    tell("popen", fgetc(file));
    pclose(file);
    put(ends.client, 10, 0);
    get(ends.server, 10, 0);
}

// A program that was spawned holds the descriptor: its connection has no end yet, and a call for it waits as for any other.
static void hold_case(int by)
{
    struct ends ends = pair();
    char *const words[] = {"sleep", "0.4", NULL};
    pid_t child;
    put(ends.server, 10, 0);
    get(ends.client, 10, 0);
    fcntl(ends.client, F_SETFD, FD_CLOEXEC);
    tell("spawn", posix_spawnp(&child, "sleep", NULL, NULL, words, environ));
    close(ends.server);
    struct timeval time = {0, 50000};
    if (by == 0)
        setsockopt(ends.client, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
    if (by == 1) {
        struct sigaction action = {.sa_handler = on_alarm};
        // Again and again, for the first may come before the call.
        struct itimerval timer = {{0, 50000}, {0, 50000}};
        sigaction(SIGALRM, &action, NULL);
        setitimer(ITIMER_REAL, &timer, NULL);
    }
    struct rusage before, after;
    getrusage(RUSAGE_SELF, &before);
    tell("read", recv(ends.client, room, 10, 0));
    setitimer(ITIMER_REAL, &(struct itimerval){0}, NULL);
    getrusage(RUSAGE_SELF, &after);
    // It sleeps meanwhile.
    long us = (after.ru_utime.tv_sec - before.ru_utime.tv_sec) * 1000000 + after.ru_utime.tv_usec - before.ru_utime.tv_usec;
    us += (after.ru_stime.tv_sec - before.ru_stime.tv_sec) * 1000000 + after.ru_stime.tv_usec - before.ru_stime.tv_usec;
    say("%s", us < (by == 2 ? 150000 : 40000) ? "asleep" : "busy");
    waitpid(child, NULL, 0);
    time.tv_sec = 5;
    setsockopt(ends.client, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
    tell("end", recv(ends.client, room, 10, 0));
}

__attribute__((constructor)) static void add_holds(void)
{
    add_case("spawn_child_holds_it_until_a_time", hold_case, 0);
    add_case("spawn_child_holds_it_until_a_signal", hold_case, 1);
    add_case("spawn_child_holds_it", hold_case, 2);
}

// Other ends that make no calls hold up a program together, not one after the other: the time of a case is enough for a few only.
CASE(exec_with_silent_ends)
{
    enum { ENDS = 30 };
    int channel[2], clients[ENDS];
    char *const words[] = {"echo", "executed", NULL}, *const empty[] = {NULL};
    if (pipe(channel))
        return;
    for (int at = 0; at < ENDS; at++) {
        struct ends ends = pair();
        clients[at] = ends.client;
        // The other end stays in a process that sleeps.
        fcntl(ends.server, F_SETFD, FD_CLOEXEC);
        close(ends.listener);
    }
    if (fork() == 0) {
        for (int at = 0; at < ENDS; at++)
            close(clients[at]);
        close(channel[1]);
        (void)!read(channel[0], room, 1);
        _exit(0);
    }
    fcntl(channel[1], F_SETFD, FD_CLOEXEC);
    execve("/bin/echo", words, empty);
}

// What both ends of a connection have not read is all there for a program that gets both, and for a process that confines itself before.
static void both_case(int is_confined)
{
    struct ends ends = pair();
    put(ends.client, 50000, 0);
    put(ends.server, 30000, 7);
    get(ends.server, 100, 0);
    if (is_confined) {
        struct sock_filter allow = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
        struct sock_fprog program = {1, &allow};
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        tell("confined", prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0));
        get(ends.server, 100, 100);
        get(ends.client, 100, 7);
        put(ends.client, 10, 50000);
    }
    int to_server = is_confined ? 49810 : 49900, to_client = is_confined ? 29900 : 30000;
    char text[200];
    snprintf(text, sizeof text, "timeout 5 head -c %d <&%d | cksum; timeout 5 head -c %d <&%d | cksum", to_server, ends.server,
             to_client, ends.client);
    char *const words[] = {"sh", "-c", text, NULL}, *const empty[] = {"PATH=/bin:/usr/bin", NULL};
    execve("/bin/sh", words, empty);
}

__attribute__((constructor)) static void add_boths(void)
{
    add_case("exec_both_ends_without_us", both_case, 0);
    add_case("exec_both_ends_confined", both_case, 1);
}

// A child by `vfork` uses a connection and closes its descriptors, and leaves its parent's as they are.
CASE(fork_by_vfork)
{
    struct ends ends = pair();
    put(ends.client, 10, 0);
    pid_t child = vfork();
    if (child == 0) {
        ssize_t bytes = recv(ends.server, room, 10, MSG_WAITALL);
        if (write(ends.server, room, bytes) != bytes)
            _exit(9);
        close(ends.client);
        close(ends.server);
        _exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    tell("exit code", WEXITSTATUS(status));
    get(ends.client, 10, 0);
    put(ends.client, 10, 0);
    get(ends.server, 10, 0);
    close(ends.server);
    tell("end", recv(ends.client, room, 10, 0));
}

// A server that has become a daemon: with its standard streams (1), and without; one that was told of data by `poll` (2).
static void daemon_case(int how)
{
    int by = how & 1;
    int listener = listening(AF_INET, 16);
    pid_t child = fork();
    if (child == 0) {
        int early = accept(listener, NULL, NULL);
        if (how & 2)
            poll_one(early, POLLIN, 5000);
        get(early, 10, 0);
        // One that it got as its standard input, and another.
        if (by == 0)
            dup2(early, 0);
        if (daemon(1, by))
            _exit(9);
        int late = accept(listener, NULL, NULL);
        put(early, 20, 0);
        get(late, 20, 0);
        put(late, 10, 0);
        _exit(0);
    }
    int early = connecting(listener);
    if (how & 2)
        settle();
    put(early, 10, 0);
    int status;
    waitpid(child, &status, 0);
    tell("exit code", WEXITSTATUS(status));
    int late = connecting(listener);
    put(late, 20, 0);
    get(early, 20, 0);
    get(late, 10, 0);
    tell("end", recv(early, room, 10, 0));
    tell("end", recv(late, room, 10, 0));
}

__attribute__((constructor)) static void add_daemons(void)
{
    add_case("fork_daemon", daemon_case, 0);
    add_case("fork_daemon_with_streams", daemon_case, 1);
    add_case("fork_daemon_told_by_poll", daemon_case, 2);
    add_case("fork_daemon_with_streams_told_by_poll", daemon_case, 3);
}

// A descriptor that goes to another process by the call for many messages, as the second of them.
CASE(pass_descriptor_with_data_by_sendmmsg)
{
    struct ends ends = pair();
    int channel[2];
    socketpair(AF_UNIX, SOCK_DGRAM, 0, channel);
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {.header = {.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS}};
    memcpy(CMSG_DATA(&control.header), &ends.server, sizeof(int));
    char bytes[2];
    struct iovec part = {bytes, 1};
    struct mmsghdr messages[2] = {
        {.msg_hdr = {.msg_iov = &part, .msg_iovlen = 1}},
        {.msg_hdr = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control}},
    };
    pid_t child = fork();
    if (child == 0) {
        close(ends.server);
        put(ends.client, 1000, 0);
        get(ends.client, 1000, 0);
        _exit(0);
    }
    close(ends.client);
    tell("passed", sendmmsg(channel[0], messages, 2, 0));
    close(ends.server);
    tell("received", recvmsg(channel[1], &messages[0].msg_hdr, 0));
    tell("received", recvmsg(channel[1], &messages[1].msg_hdr, 0));
    int fd;
    memcpy(&fd, CMSG_DATA(&control.header), sizeof fd);
    get(fd, 1000, 0);
    put(fd, 1000, 0);
    waitpid(child, NULL, 0);
}
