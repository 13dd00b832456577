/* Random faults of one rank during runs. The error of every other rank names it, and arrives in time.
 *
 * Usage: random_faults SEED TRIALS RANKS [FOLDER]. Ranks are processes in two of three trials, and threads in the others. At a random time
 * the victim ends, stops, aborts or leaves its session, between runs or, from another thread, within a run. A trial also fails if a
 * rank closes its session with another status than that of its run. Prints the number of trials.
 */
#define _DEFAULT_SOURCE
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "layer.h"

/* PATIENCE_MS bounds a trial. A timeout is generous: it tells a wait without limit from one that ends. */
enum { MAX_PEERS = 4, ROOM = 4096, LIMIT_MS = 3000, PATIENCE_MS = 60000 };

/* Faults of processes, and those of threads. Each rank of a process may have a fault of a thread, too. */
typedef enum { ABORT, FREE, CLOSE, THREAD_EXIT, THREAD_RETURN, THREAD_FAULTS, EXIT = THREAD_FAULTS, QUICK_EXIT, KILL, STOP, ABORT_PROCESS, TERMINATE, FAULTS } fault;
static const char *const NAMES[] = {"abort", "free", "close", "pthread_exit", "return", "exit", "_exit", "kill", "stop", "abort()", "terminate"};

/* The memory that the ranks of a trial share. */
typedef struct {
    pthread_barrier_t barrier;
    char gathered[MAX_PEERS][ROOM];
    volatile int has_ended[MAX_PEERS];
    volatile double fault_ms, ended_ms[MAX_PEERS];
    volatile int64_t culprit[MAX_PEERS];
    volatile int32_t run_status[MAX_PEERS], close_status[MAX_PEERS];
    char text[MAX_PEERS][512];
} board;

typedef struct {
    uint32_t rank, victim;
    fault kind;
    /* The fault happens within a run, by another thread. */
    int is_within_run;
    unsigned delay_us;
    symmc_plan *plan;
    symmc_group *group;
} rank_task;

static board *shared;
static uint32_t ranks;

static double now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

static uint32_t draw(uint64_t *random, uint32_t below) {
    *random = *random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((*random >> 33) % below);
}

static int all_gather(void *context, const void *mine, size_t bytes, void *all) {
    const uint32_t rank = *(const uint32_t *)context;
    if (bytes > ROOM) return 1;
    memcpy(shared->gathered[rank], mine, bytes);
    pthread_barrier_wait(&shared->barrier);
    for (size_t other = 0; other < ranks; other++) memcpy((char *)all + other * bytes, shared->gathered[other], bytes);
    pthread_barrier_wait(&shared->barrier);
    return 0;
}

/* A fault of the whole process. */
static void end_process(fault kind) {
    shared->fault_ms = now_ms();
    switch (kind) {
    case EXIT: exit(0);
    case QUICK_EXIT: _exit(3);
    case KILL: kill(getpid(), SIGKILL); break;
    case STOP: kill(getpid(), SIGSTOP); break;
    case TERMINATE: kill(getpid(), SIGTERM); break;
    default: abort();
    }
}

static void *end_within_run(void *argument) {
    const rank_task *task = (const rank_task *)argument;
    usleep(task->delay_us);
    end_process(task->kind);
    return NULL;
}

/* The fault of the victim between runs. */
static void fault_between_runs(const rank_task *task, symmc_session *session) {
    shared->fault_ms = now_ms();
    switch (task->kind) {
    case ABORT:
        must(symmc_session_abort(session, "the trial"));
        symmc_session_free(session);
        break;
    case CLOSE:
        must(symmc_session_close(session));
        symmc_session_free(session);
        break;
    case FREE: symmc_session_free(session); break;
    case THREAD_EXIT: pthread_exit(NULL);
    case THREAD_RETURN: break;
    default: end_process(task->kind);
    }
}

static void report(const rank_task *task, symmc_session *session, symmc_status status) {
    const uint32_t rank = task->rank;
    shared->ended_ms[rank] = now_ms();
    shared->run_status[rank] = status;
    shared->culprit[rank] = symmc_last_error_culprit();
    snprintf(shared->text[rank], sizeof shared->text[rank], "%s", symmc_last_error());
    shared->close_status[rank] = session == NULL ? status : symmc_session_close(session);
    symmc_session_free(session);
    shared->has_ended[rank] = 1;
}

static void *run_rank_until_error(void *argument) {
    const rank_task *task = (const rank_task *)argument;
    const int is_victim = task->rank == task->victim;
    const double until = now_ms() + task->delay_us / 1e3;
    float x[256] = {1}, y[256];
    symmc_session_options *options;
    symmc_session *session;
    pthread_t other;
    must(symmc_session_options_create(&options));
    must(symmc_session_options_set_limit(options, LIMIT_MS));
    symmc_status status = symmc_session_open(task->plan, task->group, options, &session);
    symmc_session_options_free(options);
    if (is_victim) must(status);
    if (status == SYMMC_OK) must(symmc_session_bind(session, "x", x, sizeof x));
    if (status == SYMMC_OK) must(symmc_session_bind(session, "out.0", y, sizeof y));
    if (is_victim && task->is_within_run) expect(pthread_create(&other, NULL, end_within_run, argument) == 0);
    for (int i = 0; status == SYMMC_OK; i++) {
        if (is_victim && !task->is_within_run && now_ms() >= until) {
            fault_between_runs(task, session);
            return NULL;
        }
        status = i % 3 ? symmc_session_run(session) : symmc_session_enqueue(session);
        if (i % 3 == 0 && status == SYMMC_OK) status = symmc_session_wait(session, PATIENCE_MS);
    }
    if (!is_victim) report(task, session, status);
    return NULL;
}

static symmc_plan *planned(void) {
    char text[256];
    symmc_program *program;
    symmc_plan *plan;
    snprintf(text, sizeof text,
             "program \"faults\" ranks %u\ngroup @all world\narg %%x: f32[256]\n%%s: f32[256] = all_reduce %%x op=sum group=@all\n"
             "%%y: f32[256] = all_reduce %%s op=max group=@all\nreturn %%y\n",
             (unsigned)ranks);
    must(symmc_program_from_text(text, &program));
    must(symmc_compile(program, NULL, &plan));
    symmc_program_free(program);
    return plan;
}

static void run_process(rank_task task) {
    uint32_t rank = task.rank;
    pthread_t thread;
    alarm(PATIENCE_MS / 1000);
    task.rank = rank;
    task.plan = planned();
    must(symmc_group_bootstrap(rank, ranks, all_gather, &rank, &task.group));
    expect(pthread_create(&thread, NULL, run_rank_until_error, &task) == 0);
    expect(pthread_join(thread, NULL) == 0);
    /* A victim whose thread alone has ended stays. */
    while (rank == task.victim && (task.kind == THREAD_EXIT || task.kind == THREAD_RETURN)) pause();
    symmc_group_free(task.group);
    symmc_plan_free(task.plan);
}

static void run_threads(rank_task task) {
    symmc_group *groups[MAX_PEERS];
    rank_task tasks[MAX_PEERS];
    pthread_t threads[MAX_PEERS];
    alarm(PATIENCE_MS / 1000);
    task.plan = planned();
    must(symmc_group_threads(ranks, groups));
    for (uint32_t rank = 0; rank < ranks; rank++) {
        tasks[rank] = task;
        tasks[rank].rank = rank;
        tasks[rank].group = groups[rank];
        expect(pthread_create(&threads[rank], NULL, run_rank_until_error, &tasks[rank]) == 0);
    }
    for (uint32_t rank = 0; rank < ranks; rank++) {
        expect(pthread_join(threads[rank], NULL) == 0);
        symmc_group_free(groups[rank]);
    }
    symmc_plan_free(task.plan);
}

/* Runs a trial in child processes, so that symmc is never used in this one. Returns whether all was right. */
static int is_right(rank_task task, int are_threads) {
    pthread_barrierattr_t attributes;
    pid_t children[MAX_PEERS];
    const uint32_t processes = are_threads ? 1 : ranks;
    int is_complete = 0, right = 1;
    memset(shared, 0, sizeof *shared);
    pthread_barrierattr_init(&attributes);
    pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    expect(pthread_barrier_init(&shared->barrier, &attributes, ranks) == 0);
    for (uint32_t child = 0; child < processes; child++) {
        children[child] = fork();
        expect(children[child] >= 0);
        if (children[child] == 0) {
            task.rank = child;
            if (are_threads) run_threads(task);
            else run_process(task);
            exit(0);
        }
    }
    for (const double begun = now_ms(); !is_complete && now_ms() - begun < PATIENCE_MS; usleep(2000)) {
        is_complete = 1;
        for (uint32_t rank = 0; rank < ranks; rank++) is_complete = is_complete && (rank == task.victim || shared->has_ended[rank]);
    }
    for (uint32_t child = 0; child < processes; child++) {
        int status;
        if (!is_complete || (!are_threads && child == task.victim)) kill(children[child], SIGKILL);
        expect(waitpid(children[child], &status, 0) == children[child]);
        if (status != 0 && (are_threads || child != task.victim)) right = 0;
    }
    for (uint32_t rank = 0; rank < ranks; rank++) {
        if (rank == task.victim) continue;
        right = right && shared->has_ended[rank] && shared->run_status[rank] == SYMMC_ERROR_PEER;
        right = right && shared->close_status[rank] == SYMMC_ERROR_PEER && shared->culprit[rank] == (int64_t)task.victim;
    }
    for (uint32_t rank = 0; rank < ranks && !right; rank++)
        fprintf(stderr, "rank %u: ended %d after %.0f ms, status %d, close %d, culprit %lld: %s\n", (unsigned)rank, shared->has_ended[rank],
                shared->ended_ms[rank] - shared->fault_ms, (int)shared->run_status[rank], (int)shared->close_status[rank],
                (long long)shared->culprit[rank], shared->text[rank]);
    return right;
}

int main(int count, char **arguments) {
    unsigned long trials, wrong = 0;
    uint64_t seed;
    double slowest = 0;
    expect(count >= 4);
    seed = strtoull(arguments[1], NULL, 10);
    trials = strtoul(arguments[2], NULL, 10);
    ranks = (uint32_t)atoi(arguments[3]);
    expect(ranks >= 2 && ranks <= MAX_PEERS);
    shared = (board *)mmap(NULL, sizeof(board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    expect(shared != MAP_FAILED);
    for (unsigned long trial = 0; trial < trials; trial++, seed++) {
        uint64_t random = seed * 0x9e3779b97f4a7c15u;
        rank_task task;
        const int are_threads = (draw(&random, 2), draw(&random, 3) == 0);
        memset(&task, 0, sizeof task);
        task.victim = draw(&random, ranks);
        task.kind = (fault)draw(&random, are_threads ? THREAD_FAULTS : FAULTS);
        task.is_within_run = task.kind >= THREAD_FAULTS && draw(&random, 2);
        task.delay_us = draw(&random, 2) ? draw(&random, 100) : draw(&random, 60000);
        if (!is_right(task, are_threads)) {
            wrong++;
            fprintf(stderr, "seed %llu: rank %u of %u %s, %s of the victim %s after %u us\n", (unsigned long long)seed, (unsigned)task.victim,
                    (unsigned)ranks, are_threads ? "threads" : "processes", NAMES[task.kind], task.is_within_run ? "within a run" : "between runs",
                    task.delay_us);
        }
        for (uint32_t rank = 0; rank < ranks; rank++)
            if (rank != task.victim && shared->ended_ms[rank] - shared->fault_ms > slowest) slowest = shared->ended_ms[rank] - shared->fault_ms;
    }
    printf("%lu faults among %u ranks, %lu wrong\n", trials, (unsigned)ranks, wrong);
    fprintf(stderr, "the slowest error came %.0f ms after its fault\n", slowest);
    return wrong != 0;
}
