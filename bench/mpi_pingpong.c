/* Ping-pong and burst between two MPI ranks, printed as one JSON line per message size.
 *
 * usage: mpi_pingpong pingpong|burst ITERATIONS SIZE...
 *
 * ping-pong: half of each round trip in microseconds (min, p50, p99, p999). burst: rank 0 keeps WINDOW messages under way,
 * rank 1 answers the last one; messages and bytes a second. Both MPI libraries spin while they wait. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WINDOW = 64, WARM_UP = 1000 };

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void *allocate(size_t bytes)
{
    void *memory = calloc(bytes ? bytes : 1, 1);
    if (!memory) {
        fprintf(stderr, "mpi_pingpong: out of memory (%zu bytes)\n", bytes);
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    return memory;
}

static void pingpong(int rank, int size, long iterations)
{
    char *buffer = allocate((size_t)size);
    double *half_us = allocate((size_t)iterations * sizeof *half_us);
    long warm_up = iterations < WARM_UP ? iterations : WARM_UP;
    for (long i = -warm_up; i < iterations; i++) {
        if (rank == 0) {
            double start = MPI_Wtime();
            MPI_Send(buffer, size, MPI_BYTE, 1, 0, MPI_COMM_WORLD);
            MPI_Recv(buffer, size, MPI_BYTE, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            if (i >= 0)
                half_us[i] = (MPI_Wtime() - start) / 2 * 1e6;
        } else {
            MPI_Recv(buffer, size, MPI_BYTE, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            MPI_Send(buffer, size, MPI_BYTE, 0, 0, MPI_COMM_WORLD);
        }
    }
    if (rank == 0) {
        qsort(half_us, (size_t)iterations, sizeof *half_us, by_value);
        printf("{\"size\":%d,\"min\":%.4f,\"p50\":%.4f,\"p99\":%.4f,\"p999\":%.4f}\n", size, half_us[0],
               half_us[iterations / 2], half_us[(long)(iterations * 0.99)], half_us[(long)(iterations * 0.999)]);
        fflush(stdout);
    }
    free(half_us);
    free(buffer);
}

static void burst(int rank, int size, long messages)
{
    char *buffers = allocate((size_t)size * WINDOW), answer = 0;
    MPI_Request requests[WINDOW];
    MPI_Status statuses[WINDOW];
    MPI_Barrier(MPI_COMM_WORLD);
    double start = MPI_Wtime();
    for (long done = 0; done < messages; done += WINDOW) {
        int count = messages - done < WINDOW ? (int)(messages - done) : WINDOW;
        for (int i = 0; i < count; i++) {
            char *buffer = buffers + (size_t)i * (size_t)size;
            if (rank == 0)
                MPI_Isend(buffer, size, MPI_BYTE, 1, 0, MPI_COMM_WORLD, &requests[i]);
            else
                MPI_Irecv(buffer, size, MPI_BYTE, 0, 0, MPI_COMM_WORLD, &requests[i]);
        }
        MPI_Waitall(count, requests, statuses);
    }
    if (rank == 0) {
        MPI_Recv(&answer, 1, MPI_BYTE, 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        double seconds = MPI_Wtime() - start;
        printf("{\"size\":%d,\"messages_per_second\":%.1f,\"bytes_per_second\":%.1f}\n", size,
               (double)messages / seconds, (double)messages * size / seconds);
        fflush(stdout);
    } else {
        MPI_Send(&answer, 1, MPI_BYTE, 0, 1, MPI_COMM_WORLD);
    }
    free(buffers);
}

int main(int argc, char **argv)
{
    int rank, ranks;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    long iterations = argc > 3 ? atol(argv[2]) : 0;
    int is_pingpong = argc > 3 && strcmp(argv[1], "pingpong") == 0;
    if (ranks != 2 || iterations < 1 || !(is_pingpong || strcmp(argv[1], "burst") == 0)) {
        if (rank == 0)
            fprintf(stderr, "usage: mpiexec -n 2 mpi_pingpong pingpong|burst ITERATIONS SIZE...\n");
        MPI_Finalize();
        return 2;
    }
    for (int i = 3; i < argc; i++) {
        int size = atoi(argv[i]);
        if (size < 0)
            size = 0;
        if (is_pingpong)
            pingpong(rank, size, iterations);
        else
            burst(rank, size, iterations);
    }
    MPI_Finalize();
    return 0;
}
