/* Measures all-reduce, all-gather and all-to-all of Open MPI in the way of the example host_collectives of
 * symmc-runtime: lines of kind, bytes, ranks, "openmpi" and microseconds. Bytes are those of the tensor, or
 * of the result of an all-gather. The operand is written anew before each call, outside of the measured
 * time; the median over calls on each rank counts, and of these the largest. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank, n;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &n);
    size_t largest = (argc > 1 ? strtoul(argv[1], NULL, 10) : 16384) << 10;
    const char *names[] = {"all_reduce", "all_gather", "all_to_all"};
    float *operands = aligned_alloc(4096, 2 * largest), *results = aligned_alloc(4096, 2 * largest);
    double *times = malloc(4000 * sizeof(double));
    for (size_t bytes = 1024; bytes <= largest; bytes *= 2) {
        for (int kind = 0; kind < 3; kind++) {
            size_t operand = kind == 1 ? bytes / n : bytes, count = operand / 4;
            size_t calls = 100000000 / (bytes * n + 40000);
            calls = calls < 9 ? 9 : calls > 1000 ? 1000 : calls;
            size_t warm = calls / 4 + 2;
            for (size_t i = 0; i < calls + warm; i++) {
                float *x = operands + i % 2 * largest / 4, *y = results + i % 2 * largest / 4;
                for (size_t k = 0; k < count; k++) x[k] = (float)(i + k);
                double start = MPI_Wtime();
                switch (kind) {
                case 0: MPI_Allreduce(x, y, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); break;
                case 1: MPI_Allgather(x, count, MPI_FLOAT, y, count, MPI_FLOAT, MPI_COMM_WORLD); break;
                case 2: MPI_Alltoall(x, count / n, MPI_FLOAT, y, count / n, MPI_FLOAT, MPI_COMM_WORLD); break;
                }
                if (i >= warm) times[i - warm] = (MPI_Wtime() - start) * 1e6;
            }
            qsort(times, calls, sizeof(double), ascending);
            double median = times[calls / 2], most;
            MPI_Reduce(&median, &most, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
            if (rank == 0) printf("%s %zu %d openmpi %.3f\n", names[kind], bytes, n, most);
        }
    }
    MPI_Finalize();
    return 0;
}
