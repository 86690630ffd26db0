/* Messages over ZeroMQ's TCP transport, measured as tsumuji's own benchmarks measure theirs; one JSON line.
 *
 * usage: zmq_bench root OPERATION ITERATIONS SIZE CORE ADDRESS LEAVES
 *        zmq_bench leaf OPERATION ITERATIONS SIZE CORE CONTROL DATA
 *
 * OPERATION: pingpong or burst (one leaf; the root asks, the root sends), gather (the leaves send). The root prints the two
 * endpoints that leaves need, then, at the end, its figures. CORE: -1 leaves the process free. Blocking calls, as ZeroMQ's
 * programs use them: its own threads move the messages, and waking them is part of its time. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <zmq.h>

enum { WARM_UP = 200, LEAVES_MAX = 1024, NAME_BYTES = 256, PATIENCE_MS = 60000 };

static void must(int succeeded, const char *what)
{
    if (!succeeded) {
        fprintf(stderr, "zmq_bench: %s: %s\n", what, zmq_strerror(zmq_errno()));
        exit(1);
    }
}

static double seconds_of(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void send_bytes(void *socket, const void *bytes, size_t count)
{
    must(zmq_send(socket, bytes, count, 0) == (int)count, "send");
}

static void receive_bytes(void *socket, void *bytes, size_t count)
{
    must(zmq_recv(socket, bytes, count, 0) == (int)count, "receive");
}

static void *open_socket(void *context, int type)
{
    int patience = PATIENCE_MS, none = 0;
    void *socket = zmq_socket(context, type);
    must(socket != NULL, "socket");
    zmq_setsockopt(socket, ZMQ_RCVTIMEO, &patience, sizeof patience);
    zmq_setsockopt(socket, ZMQ_SNDTIMEO, &patience, sizeof patience);
    zmq_setsockopt(socket, ZMQ_LINGER, &none, sizeof none);
    return socket;
}

static void listen_at(void *socket, const char *address, char *endpoint)
{
    char wanted[NAME_BYTES];
    size_t bytes = NAME_BYTES;
    snprintf(wanted, sizeof wanted, "tcp://%s:*", address);
    must(zmq_bind(socket, wanted) == 0, "bind");
    must(zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, endpoint, &bytes) == 0, "endpoint");
}

struct plan {
    const char *operation;
    long iterations, warm_up;
    size_t size;
    char *message;
};

static int is(const struct plan *plan, const char *operation)
{
    return strcmp(plan->operation, operation) == 0;
}

static void root(const struct plan *plan, const char *address, int leaves)
{
    void *context = zmq_ctx_new();
    void *control = open_socket(context, ZMQ_ROUTER), *data = open_socket(context, is(plan, "gather") ? ZMQ_PULL : ZMQ_PAIR);
    char at_control[NAME_BYTES], at_data[NAME_BYTES], names[LEAVES_MAX][8], text[64];
    int name_bytes[LEAVES_MAX];
    listen_at(control, address, at_control);
    listen_at(data, address, at_data);
    printf("%s %s\n", at_control, at_data);
    fflush(stdout);
    for (int i = 0; i < leaves; i++) {
        name_bytes[i] = zmq_recv(control, names[i], sizeof names[i], 0);
        must(name_bytes[i] > 0 && name_bytes[i] <= (int)sizeof names[i], "hello");
        must(zmq_recv(control, text, sizeof text, 0) >= 0, "hello");
    }
    for (int i = 0; i < leaves; i++) {
        must(zmq_send(control, names[i], (size_t)name_bytes[i], ZMQ_SNDMORE) >= 0, "go");
        send_bytes(control, "go", 2);
    }
    double *half_us = calloc((size_t)plan->iterations, sizeof *half_us), start = 0, cpu = 0, leaves_cpu = 0;
    must(half_us != NULL, "memory");
    int is_gather = is(plan, "gather"), is_pingpong = is(plan, "pingpong");
    long messages = is_gather ? plan->iterations * leaves : plan->iterations, warm_up = is_gather ? leaves : plan->warm_up;
    for (long i = -warm_up; i < messages; i++) {
        if (i == 0) {
            start = seconds_of(CLOCK_MONOTONIC);
            cpu = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
        }
        double before = seconds_of(CLOCK_MONOTONIC);
        if (!is_gather)
            send_bytes(data, plan->message, plan->size);
        if (is_gather || is_pingpong)
            receive_bytes(data, plan->message, plan->size);
        if (is_pingpong && i >= 0)
            half_us[i] = (seconds_of(CLOCK_MONOTONIC) - before) / 2 * 1e6;
    }
    double end = seconds_of(CLOCK_MONOTONIC);
    for (int i = 0; i < leaves; i++) {
        char name[8], report[64] = {0};
        must(zmq_recv(control, name, sizeof name, 0) > 0, "report");
        must(zmq_recv(control, report, sizeof report - 1, 0) > 0, "report");
        leaves_cpu += atof(report);
    }
    if (!is_gather && !is_pingpong) /* a burst is over when all of it has arrived */
        end = seconds_of(CLOCK_MONOTONIC);
    cpu = seconds_of(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    qsort(half_us, (size_t)plan->iterations, sizeof *half_us, by_value);
    printf("{\"seconds\":%.9f,\"cpu_seconds\":%.9f,\"half_rtt_us\":{\"min\":%.4f,\"p50\":%.4f,\"p99\":%.4f,\"p999\":%.4f}}\n",
           end - start, cpu + leaves_cpu, half_us[0], half_us[plan->iterations / 2],
           half_us[(long)((double)plan->iterations * 0.99)], half_us[(long)((double)plan->iterations * 0.999)]);
    fflush(stdout);
    free(half_us);
    zmq_close(control);
    zmq_close(data);
    zmq_ctx_term(context);
}

static void leaf(const struct plan *plan, const char *at_control, const char *at_data)
{
    void *context = zmq_ctx_new();
    void *control = open_socket(context, ZMQ_DEALER), *data = open_socket(context, is(plan, "gather") ? ZMQ_PUSH : ZMQ_PAIR);
    int patience = PATIENCE_MS, is_gather = is(plan, "gather"), is_pingpong = is(plan, "pingpong");
    char text[64];
    zmq_setsockopt(control, ZMQ_LINGER, &patience, sizeof patience);
    zmq_setsockopt(data, ZMQ_LINGER, &patience, sizeof patience);
    must(zmq_connect(data, at_data) == 0 && zmq_connect(control, at_control) == 0, "connect");
    send_bytes(control, "hello", 5);
    must(zmq_recv(control, text, sizeof text, 0) == 2, "go");
    double cpu = 0;
    for (long i = is_gather ? -1 : -plan->warm_up; i < plan->iterations; i++) {
        if (i == 0)
            cpu = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
        if (!is_gather)
            receive_bytes(data, plan->message, plan->size);
        if (is_gather || is_pingpong)
            send_bytes(data, plan->message, plan->size);
    }
    int bytes = snprintf(text, sizeof text, "%.9f", seconds_of(CLOCK_PROCESS_CPUTIME_ID) - cpu);
    send_bytes(control, text, (size_t)bytes);
    zmq_close(control);
    zmq_close(data);
    zmq_ctx_term(context); /* returns when all has left */
}

int main(int argc, char **argv)
{
    if (argc != 8 || !(strcmp(argv[1], "root") == 0 || strcmp(argv[1], "leaf") == 0)) {
        fprintf(stderr, "usage: zmq_bench root|leaf pingpong|burst|gather ITERATIONS SIZE CORE ADDRESS|CONTROL LEAVES|DATA\n");
        return 2;
    }
    struct plan plan = {.operation = argv[2], .iterations = atol(argv[3]), .size = strtoul(argv[4], NULL, 10)};
    plan.warm_up = plan.iterations < WARM_UP ? plan.iterations : WARM_UP;
    plan.message = malloc(plan.size ? plan.size : 1);
    must(plan.message != NULL && plan.iterations > 0, "plan");
    memset(plan.message, 0x5a, plan.size); /* pages never written are one page of zeros to the kernel: no memory to read */
    int core = atoi(argv[5]);
    if (core >= 0) {
        cpu_set_t set;
        CPU_ZERO(&set);
        CPU_SET((size_t)core, &set);
        sched_setaffinity(0, sizeof set, &set); /* unbound figures are worse, not wrong */
    }
    if (strcmp(argv[1], "root") == 0) {
        int leaves = atoi(argv[7]);
        if (leaves < 1 || leaves > LEAVES_MAX) {
            fprintf(stderr, "zmq_bench: 1 to %d leaves\n", LEAVES_MAX);
            return 2;
        }
        root(&plan, argv[6], leaves);
    } else {
        leaf(&plan, argv[6], argv[7]);
    }
    free(plan.message);
    return 0;
}
