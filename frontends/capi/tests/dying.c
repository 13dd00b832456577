/* A rank dies or stops in the middle of runs. The others get SYMMC_ERROR_PEER with its number before the timeout. They can free
 * their sessions, and hold no resources afterwards. The arguments are the victim's rank and `kill` or `stop`.
 */
#define _DEFAULT_SOURCE
#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "layer.h"

enum { PEOPLE = 3, ROOM = 4096, LIMIT_MS = 1500, SLACK_MS = 5000, WARM_RUNS = 20 };

static const char *const SUM =
    "program \"sum\" ranks 3\ngroup @all world\narg %x: f32[256]\n"
    "%y: f32[256] = neg %x\n%z: f32[256] = all_reduce %y op=sum group=@all\nreturn %z\n";

/* The memory that the processes share. */
typedef struct {
    pthread_barrier_t barrier;
    char said[PEOPLE][ROOM];
    volatile int runs[PEOPLE];
} board;

typedef struct {
    board *shared;
    uint32_t rank;
} teller;

static int all_gather(void *context, const void *mine, size_t bytes, void *all) {
    teller *self = (teller *)context;
    if (bytes > ROOM) return 1;
    memcpy(self->shared->said[self->rank], mine, bytes);
    pthread_barrier_wait(&self->shared->barrier);
    for (size_t rank = 0; rank < PEOPLE; rank++) memcpy((char *)all + rank * bytes, self->shared->said[rank], bytes);
    pthread_barrier_wait(&self->shared->barrier);
    return 0;
}

static double now_ms(void) {
    struct timespec now;
    expect(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

static int entries(const char *path) {
    int found = 0;
    DIR *folder = opendir(path);
    expect(folder != NULL);
    while (readdir(folder) != NULL) found++;
    closedir(folder);
    return found;
}

static int mappings(void) {
    char line[512];
    int found = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    expect(maps != NULL);
    while (fgets(line, sizeof line, maps) != NULL) found += strstr(line, "memfd:symmc") != NULL;
    fclose(maps);
    return found;
}

/* The checks of a rank whose peer died. */
static void survive(symmc_session *session, uint32_t victim, double since) {
    char name[32], text[1024];
    symmc_status status = SYMMC_OK;
    double last = since;
    while (status == SYMMC_OK) {
        last = now_ms();
        status = symmc_session_run(session);
    }
    expect(status == SYMMC_ERROR_PEER && symmc_last_error_kind() == SYMMC_ERROR_PEER);
    expect(now_ms() - last < LIMIT_MS + SLACK_MS);
    snprintf(name, sizeof name, "rank %u", (unsigned)victim);
    snprintf(text, sizeof text, "%s", symmc_last_error());
    if (strstr(text, name) == NULL) fprintf(stderr, "%s\n", text);
    expect(strstr(text, name) != NULL && symmc_last_error_culprit() == (int64_t)victim);
    /* Later calls return the same error. */
    expect(symmc_session_enqueue(session) == SYMMC_ERROR_PEER && strcmp(symmc_last_error(), text) == 0);
    expect(symmc_session_close(session) == SYMMC_ERROR_PEER);
    symmc_session_free(session);
}

static void rank_process(board *shared, uint32_t rank, uint32_t victim) {
    float x[256] = {1}, z[256];
    teller self;
    symmc_program *program;
    symmc_plan *plan;
    symmc_group *group;
    symmc_session_options *options;
    symmc_session *session;
    int descriptors, threads;
    /* Ends a test that hangs. */
    alarm(60);
    self.shared = shared;
    self.rank = rank;
    must(symmc_program_from_text(SUM, &program));
    must(symmc_compile(program, NULL, &plan));
    descriptors = entries("/proc/self/fd");
    threads = entries("/proc/self/task");
    must(symmc_group_bootstrap(rank, PEOPLE, all_gather, &self, &group));
    must(symmc_session_options_create(&options));
    must(symmc_session_options_set_limit(options, LIMIT_MS));
    must(symmc_session_open(plan, group, options, &session));
    symmc_session_options_free(options);
    must(symmc_session_bind(session, "x", x, sizeof x));
    must(symmc_session_bind(session, "out.0", z, sizeof z));
    for (int run = 0; run < WARM_RUNS; run++) {
        must(symmc_session_run(session));
        shared->runs[rank] = run + 1;
    }
    if (rank == victim)
        for (;;) must(symmc_session_run(session));
    survive(session, victim, now_ms());
    symmc_group_free(group);
    symmc_plan_free(plan);
    symmc_program_free(program);
    /* Threads that ended are counted until the system has removed them. */
    for (int i = 0; i < 200 && entries("/proc/self/task") > threads; i++) usleep(10000);
    expect(entries("/proc/self/fd") <= descriptors && entries("/proc/self/task") <= threads && mappings() == 0);
}

int main(int count, char **arguments) {
    pthread_barrierattr_t attributes;
    pid_t ranks[PEOPLE];
    int status, failed = 0, warm = 0;
    uint32_t victim;
    board *shared = (board *)mmap(NULL, sizeof(board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    expect(shared != MAP_FAILED && count == 3);
    victim = (uint32_t)atoi(arguments[1]);
    expect(victim < PEOPLE);
    expect(pthread_barrierattr_init(&attributes) == 0);
    expect(pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED) == 0);
    expect(pthread_barrier_init(&shared->barrier, &attributes, PEOPLE) == 0);
    for (uint32_t rank = 0; rank < PEOPLE; rank++) {
        ranks[rank] = fork();
        expect(ranks[rank] >= 0);
        if (ranks[rank] == 0) {
            rank_process(shared, rank, victim);
            exit(0);
        }
    }
    for (int i = 0; i < 3000 && !warm; i++) {
        usleep(10000);
        warm = 1;
        for (int rank = 0; rank < PEOPLE; rank++) warm = warm && shared->runs[rank] == WARM_RUNS;
    }
    usleep(20000);
    expect(kill(ranks[victim], strcmp(arguments[2], "stop") == 0 ? SIGSTOP : SIGKILL) == 0);
    for (uint32_t rank = 0; rank < PEOPLE; rank++) {
        if (rank == victim) continue;
        expect(waitpid(ranks[rank], &status, 0) == ranks[rank]);
        failed |= status;
    }
    kill(ranks[victim], SIGKILL);
    expect(waitpid(ranks[victim], &status, 0) == ranks[victim]);
    expect(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    munmap(shared, sizeof(board));
    if (warm && failed == 0) printf("the others went on\n");
    return !warm || failed != 0;
}
