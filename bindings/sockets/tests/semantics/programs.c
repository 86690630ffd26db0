// Programs that are executed with sockets, and what the C library does past everybody.
#include "cases.h"

static char room[65536];

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
        else
            execle("/bin/cat", "cat", NULL, environ);
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
