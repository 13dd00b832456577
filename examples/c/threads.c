/* Host ranks as threads of one process.
 *
 *     cc -Ifrontends/capi/include examples/c/threads.c -Ltarget/release -lsymmc -Wl,-rpath,$PWD/target/release -pthread -o threads
 *
 * All threads read the plan. The group member and the session of a rank belong to its thread.
 */
#include <pthread.h>

#include "layer.h"

typedef struct {
    const symmc_plan *plan;
    symmc_group *group;
} rank_arguments;

static void *rank_thread(void *argument) {
    const rank_arguments *rank = (const rank_arguments *)argument;
    run_rank(rank->plan, rank->group);
    return NULL;
}

int main(void) {
    symmc_group *groups[RANKS];
    rank_arguments arguments[RANKS];
    pthread_t threads[RANKS];
    symmc_session_memory memory;
    expect(symmc_abi_version() == SYMMC_ABI_VERSION);
    symmc_plan *plan = compiled();
    expect(symmc_plan_ranks(plan) == RANKS);
    must(symmc_plan_get_memory(plan, 0, NULL, &memory));
    printf("%s", symmc_plan_report(plan));
    printf("a rank uses %llu bytes, and at most %llu for inputs and outputs that are not bound\n",
           (unsigned long long)(memory.ordinary + memory.symmetric + memory.flags + memory.scratch),
           (unsigned long long)memory.held);

    must(symmc_group_threads(RANKS, groups));
    for (int i = 0; i < RANKS; i++) {
        arguments[i].plan = plan;
        arguments[i].group = groups[i];
        expect(pthread_create(&threads[i], NULL, rank_thread, &arguments[i]) == 0);
    }
    for (int i = 0; i < RANKS; i++) {
        expect(pthread_join(threads[i], NULL) == 0);
        symmc_group_free(groups[i]);
    }
    symmc_plan_free(plan);
    printf("%d threads agree\n", RANKS);
    return 0;
}
