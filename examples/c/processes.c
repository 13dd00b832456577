/* Host ranks as processes.
 *
 *     cc -Ifrontends/capi/include examples/c/processes.c -Ltarget/release -lsymmc -Wl,-rpath,$PWD/target/release -pthread -o processes
 *     ./processes plan.json
 *     torchrun --nproc-per-node 2 --no-python ./processes plan.json
 *
 * Under a launcher this process is one rank, which the environment names. Otherwise it forks the ranks before it uses symmc. They
 * find each other through a function of this program that gathers bytes of all ranks, here in shared memory. Rank 0 compiles the
 * plan and writes it to the file. The other rank reads it from there.
 */
#define _DEFAULT_SOURCE
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "layer.h"

enum { ROOM = 4096 };

/* The memory that the processes share. */
typedef struct {
    pthread_barrier_t barrier;
    char bytes[RANKS][ROOM];
} board;

/* The context of one process for its function. */
typedef struct {
    board *shared;
    uint32_t rank;
} gather_context;

static int all_gather(void *context, const void *mine, size_t bytes, void *all) {
    gather_context *self = (gather_context *)context;
    if (bytes > ROOM) return 1;
    memcpy(self->shared->bytes[self->rank], mine, bytes);
    pthread_barrier_wait(&self->shared->barrier);
    for (size_t rank = 0; rank < RANKS; rank++) memcpy((char *)all + rank * bytes, self->shared->bytes[rank], bytes);
    /* The bytes stay until all processes have copied them. */
    pthread_barrier_wait(&self->shared->barrier);
    return 0;
}

static void forked_rank(board *shared, uint32_t rank, const char *path) {
    gather_context self;
    char nothing[RANKS];
    symmc_group *group;
    symmc_plan *plan;
    self.shared = shared;
    self.rank = rank;
    if (rank == 0) {
        plan = compiled();
        must(symmc_plan_write(plan, path));
        expect(all_gather(&self, "", 1, nothing) == 0);
    } else {
        expect(all_gather(&self, "", 1, nothing) == 0);
        must(symmc_plan_read(path, &plan));
    }
    must(symmc_group_bootstrap(rank, RANKS, all_gather, &self, &group));
    run_rank(plan, group);
    symmc_group_free(group);
    symmc_plan_free(plan);
}

static int forked(const char *path) {
    pthread_barrierattr_t attributes;
    pid_t ranks[RANKS];
    int status, failed = 0;
    board *shared = (board *)mmap(NULL, sizeof(board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    expect(shared != MAP_FAILED);
    expect(pthread_barrierattr_init(&attributes) == 0);
    expect(pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED) == 0);
    expect(pthread_barrier_init(&shared->barrier, &attributes, RANKS) == 0);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        ranks[rank] = fork();
        expect(ranks[rank] >= 0);
        if (ranks[rank] == 0) {
            forked_rank(shared, rank, path);
            exit(0);
        }
    }
    for (int rank = 0; rank < RANKS; rank++) {
        expect(waitpid(ranks[rank], &status, 0) == ranks[rank]);
        failed |= status;
    }
    munmap(shared, sizeof(board));
    if (failed == 0) printf("%d processes agree\n", RANKS);
    return failed != 0;
}

int main(int count, char **arguments) {
    symmc_group *group;
    if (count != 2) {
        fprintf(stderr, "expected the path of a file for the plan\n");
        return 2;
    }
    if (getenv("WORLD_SIZE") == NULL) return forked(arguments[1]);
    must(symmc_group_from_environment(&group));
    /* Equal programs and options give equal plans: each rank may compile its own. */
    symmc_plan *plan = compiled();
    run_rank(plan, group);
    if (symmc_group_rank(group) == 0) printf("%u processes agree\n", symmc_group_ranks(group));
    symmc_group_free(group);
    symmc_plan_free(plan);
    return 0;
}
