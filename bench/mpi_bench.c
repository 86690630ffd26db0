/* Messages between MPI ranks, measured as tsumuji's own benchmarks measure theirs; one JSON line.
 *
 * usage: mpi_bench OPERATION ITERATIONS SIZE [CORE,CORE...]
 *
 * OPERATION: pingpong or burst (2 ranks); gather, scatter, bcast, allreduce, alltoall (2 ranks or more). Iterations follow one
 * another without a pause; an operation that the root does not see the end of is closed by one barrier, which is in the time.
 * As many CORES as ranks: rank i is bound to the i-th. CPU time is that of all ranks over the measured part.
 *
 * Compiled with -DYIELD, ranks that find nothing to do give the core away: needed where ranks outnumber cores and the library
 * spins. Open MPI has a setting for that; MPICH has none, so the call by which it looks for work over UCX is wrapped. */
#define _GNU_SOURCE
#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { WINDOW = 64, WARM_UP = 1000, WARM_UP_BYTES = 8 << 20, GROUP_WARM_UP = 3 };

#ifdef YIELD
#include <dlfcn.h>

unsigned ucp_worker_progress(void *worker);

unsigned ucp_worker_progress(void *worker)
{
    static unsigned (*progress)(void *);
    if (!progress) {
        void *found = dlsym(RTLD_NEXT, "ucp_worker_progress");
        if (!found) {
            fprintf(stderr, "mpi_bench: this MPI does not use UCX\n");
            exit(2);
        }
        memcpy(&progress, &found, sizeof progress);
    }
    unsigned done = progress(worker);
    if (!done)
        sched_yield();
    return done;
}
#endif

struct times {
    double seconds, cpu_seconds, half_us[4]; /* half_us: min, p50, p99, p99.9 of ping-pong */
};

static double cpu_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* All of it written: pages that never were are one page of zeros to the kernel, and a message sent from there, however long, is read
 * from the first-level cache. */
static void *allocate(size_t bytes)
{
    void *memory = malloc(bytes ? bytes : 1);
    if (!memory) {
        fprintf(stderr, "mpi_bench: out of memory (%zu bytes)\n", bytes);
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    memset(memory, 0x5a, bytes);
    return memory;
}

static struct times pingpong(int rank, int size, long iterations)
{
    struct times times = {0};
    char *buffer = allocate((size_t)size);
    double *half_us = allocate((size_t)iterations * sizeof *half_us), start = 0, cpu = 0;
    long warm_up = size ? WARM_UP_BYTES / size : WARM_UP;
    warm_up = warm_up > WARM_UP ? WARM_UP : warm_up < 2 ? 2 : warm_up;
    for (long i = -warm_up; i < iterations; i++) {
        if (i == 0) {
            start = MPI_Wtime();
            cpu = cpu_now();
        }
        if (rank == 0) {
            double before = MPI_Wtime();
            MPI_Send(buffer, size, MPI_BYTE, 1, 0, MPI_COMM_WORLD);
            MPI_Recv(buffer, size, MPI_BYTE, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            if (i >= 0)
                half_us[i] = (MPI_Wtime() - before) / 2 * 1e6;
        } else {
            MPI_Recv(buffer, size, MPI_BYTE, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            MPI_Send(buffer, size, MPI_BYTE, 0, 0, MPI_COMM_WORLD);
        }
    }
    times.seconds = MPI_Wtime() - start;
    times.cpu_seconds = cpu_now() - cpu;
    qsort(half_us, (size_t)iterations, sizeof *half_us, by_value);
    times.half_us[0] = half_us[0];
    times.half_us[1] = half_us[iterations / 2];
    times.half_us[2] = half_us[(long)((double)iterations * 0.99)];
    times.half_us[3] = half_us[(long)((double)iterations * 0.999)];
    free(half_us);
    free(buffer);
    return times;
}

/* As the usual bandwidth tests do, every message is sent from one buffer and received into one: the caches favour that. */
static struct times burst(int rank, int size, long messages)
{
    struct times times = {0};
    char *buffer = allocate((size_t)size), answer = 0;
    MPI_Request requests[WINDOW];
    MPI_Status statuses[WINDOW];
    double start = 0, cpu = 0;
    for (long done = -(messages < WINDOW ? messages : WINDOW); done < messages;) {
        long end = done < 0 ? 0 : messages;
        if (done == 0) {
            MPI_Barrier(MPI_COMM_WORLD);
            start = MPI_Wtime();
            cpu = cpu_now();
        }
        int count = end - done < WINDOW ? (int)(end - done) : WINDOW;
        for (int i = 0; i < count; i++) {
            if (rank == 0)
                MPI_Isend(buffer, size, MPI_BYTE, 1, 0, MPI_COMM_WORLD, &requests[i]);
            else
                MPI_Irecv(buffer, size, MPI_BYTE, 0, 0, MPI_COMM_WORLD, &requests[i]);
        }
        MPI_Waitall(count, requests, statuses);
        done += count;
    }
    if (rank == 0)
        MPI_Recv(&answer, 1, MPI_BYTE, 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    else
        MPI_Send(&answer, 1, MPI_BYTE, 0, 1, MPI_COMM_WORLD);
    times.seconds = MPI_Wtime() - start;
    times.cpu_seconds = cpu_now() - cpu;
    free(buffer);
    return times;
}

enum operation { GATHER, SCATTER, BCAST, ALLREDUCE, ALLTOALL, OPERATIONS };
static const char *const names[OPERATIONS] = {"gather", "scatter", "bcast", "allreduce", "alltoall"};

static void once(enum operation what, void *from, void *to, int size)
{
    switch (what) {
    case GATHER: MPI_Gather(from, size, MPI_BYTE, to, size, MPI_BYTE, 0, MPI_COMM_WORLD); break;
    case SCATTER: MPI_Scatter(to, size, MPI_BYTE, from, size, MPI_BYTE, 0, MPI_COMM_WORLD); break;
    case BCAST: MPI_Bcast(from, size, MPI_BYTE, 0, MPI_COMM_WORLD); break;
    case ALLREDUCE:
        if (size % (int)sizeof(double) == 0)
            MPI_Allreduce(from, to, size / (int)sizeof(double), MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        else
            MPI_Allreduce(from, to, size / (int)sizeof(float), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        break;
    case ALLTOALL: MPI_Alltoall(from, size, MPI_BYTE, to, size, MPI_BYTE, MPI_COMM_WORLD); break;
    case OPERATIONS: break;
    }
}

static struct times group(enum operation what, int ranks, int size, long iterations)
{
    struct times times = {0};
    size_t blocks = what == BCAST || what == ALLREDUCE ? 1 : (size_t)ranks;
    char *from = allocate((what == ALLTOALL ? blocks : 1) * (size_t)size), *to = allocate(blocks * (size_t)size);
    for (int i = 0; i < GROUP_WARM_UP; i++)
        once(what, from, to, size);
    MPI_Barrier(MPI_COMM_WORLD);
    double start = MPI_Wtime(), cpu = cpu_now();
    for (long i = 0; i < iterations; i++)
        once(what, from, to, size);
    if (what == SCATTER || what == BCAST)
        MPI_Barrier(MPI_COMM_WORLD);
    times.seconds = MPI_Wtime() - start;
    times.cpu_seconds = cpu_now() - cpu;
    free(from);
    free(to);
    return times;
}

/* Binds this process to the `rank`-th of the comma-separated cores; where there are fewer, it stays free. */
static void bind_to(int rank, const char *cores)
{
    for (; rank > 0 && cores; rank--) {
        cores = strchr(cores, ',');
        cores = cores ? cores + 1 : NULL;
    }
    if (cores && *cores) {
        cpu_set_t set;
        CPU_ZERO(&set);
        CPU_SET((size_t)atoi(cores), &set);
        sched_setaffinity(0, sizeof set, &set); /* unbound figures are worse, not wrong */
    }
}

/* Ends well, once all ranks are here. MPICH over UCX may wait for ever in MPI_Finalize: one rank flushes what another, already
 * waiting for the process manager, no longer takes. What was measured is printed by then, so a rank of MPICH just goes; its
 * launcher may complain of that. */
static _Noreturn void finish(void)
{
    fflush(stdout);
#ifdef MPICH_VERSION
    _exit(0);
#else
    MPI_Finalize();
    exit(0);
#endif
}

int main(int argc, char **argv)
{
    int rank, ranks, what = OPERATIONS;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    long iterations = argc > 3 ? atol(argv[2]) : 0;
    int size = argc > 3 ? atoi(argv[3]) : -1, is_pair = 0;
    if (argc > 3) {
        is_pair = strcmp(argv[1], "pingpong") == 0 || strcmp(argv[1], "burst") == 0;
        for (what = 0; what < OPERATIONS && strcmp(argv[1], names[what]) != 0;)
            what++;
    }
    if (iterations < 1 || size < 0 || ranks < 2 || (is_pair ? ranks != 2 : what == OPERATIONS)) {
        if (rank == 0)
            fprintf(stderr, "usage: mpiexec -n N mpi_bench pingpong|burst|gather|scatter|bcast|allreduce|alltoall ITERATIONS "
                            "SIZE [CORES] (pingpong and burst: N = 2)\n");
        MPI_Finalize();
        return 2;
    }
    bind_to(rank, argc > 4 ? argv[4] : NULL);
    struct times times = !is_pair                ? group((enum operation)what, ranks, size, iterations)
                         : argv[1][0] == 'p' ? pingpong(rank, size, iterations)
                                             : burst(rank, size, iterations);
    double cpu_seconds = 0;
    MPI_Reduce(&times.cpu_seconds, &cpu_seconds, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0) {
        printf("{\"size\":%d,\"seconds\":%.9f,\"cpu_seconds\":%.9f,"
               "\"half_rtt_us\":{\"min\":%.4f,\"p50\":%.4f,\"p99\":%.4f,\"p999\":%.4f}}\n",
               size, times.seconds, cpu_seconds, times.half_us[0], times.half_us[1], times.half_us[2], times.half_us[3]);
        fflush(stdout);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    finish();
}
