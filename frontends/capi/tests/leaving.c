/* A rank that frees its session without closing it, aborts it or opens it with wrong arguments ends that of its peer at once.
 * A forked child that frees, closes or runs its copy does nothing to the session of its parent. Ranks are threads.
 */
#define _DEFAULT_SOURCE
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "layer.h"

/* Long, so that a timeout fails the test by its message. */
enum { LIMIT_MS = 120000, CHILDREN = 7 };

static const char *const SUM =
    "program \"sum\" ranks 2\ngroup @all world\narg %x: f32[8]\n"
    "%y: f32[8] = all_reduce %x op=sum group=@all\nreturn %y\n";

typedef struct {
    symmc_plan *plan;
    symmc_group *group;
    long rank;
    pthread_barrier_t *barrier;
} place;

static symmc_session *opened(const place *self, float *x, float *y) {
    symmc_session_options *options;
    symmc_session *session;
    must(symmc_session_options_create(&options));
    must(symmc_session_options_set_limit(options, LIMIT_MS));
    must(symmc_session_open(self->plan, self->group, options, &session));
    symmc_session_options_free(options);
    must(symmc_session_bind(session, "x", x, 32));
    must(symmc_session_bind(session, "out.0", y, 32));
    must(symmc_session_run(session));
    return session;
}

/* Rank 1 frees its session between two runs. */
static void *leave(void *argument) {
    const place *self = (const place *)argument;
    float x[8] = {1}, y[8];
    symmc_session *session = opened(self, x, y);
    if (self->rank == 1) {
        symmc_session_free(session);
        return NULL;
    }
    expect(symmc_session_run(session) == SYMMC_ERROR_PEER);
    expect(symmc_last_error_culprit() == 1 && symmc_last_error_rank() == 1);
    expect(symmc_last_error_reporter() == 0);
    if (strstr(symmc_last_error(), "rank 1 closed its session after 1 run") == NULL) {
        fprintf(stderr, "%s\n", symmc_last_error());
        exit(1);
    }
    expect(symmc_session_close(session) == SYMMC_ERROR_PEER);
    symmc_session_free(session);
    return NULL;
}

/* Each rank in turn aborts its session between two runs, and during a run of its peer. */
static void *abort_session(void *argument) {
    const place *self = (const place *)argument;
    float x[8] = {1}, y[8];
    expect(symmc_session_abort(NULL, "nothing") == SYMMC_ERROR_INPUT);
    for (int turn = 0; turn < 4; turn++) {
        int victim = turn % 2;
        const char *reason = turn < 2 ? "the scheduler gave up" : NULL;
        const char *said = reason ? reason : "no reason was given";
        symmc_session *session = opened(self, x, y);
        if (self->rank == victim) {
            must(symmc_session_abort(session, reason));
        } else {
            expect(symmc_session_run(session) == SYMMC_ERROR_PEER);
            expect(symmc_last_error_culprit() == victim);
            expect(strstr(symmc_last_error(), "aborted its session") != NULL);
            if (strstr(symmc_last_error(), said) == NULL) {
                fprintf(stderr, "%s\n", symmc_last_error());
                exit(1);
            }
        }
        symmc_session_free(session);
    }
    return NULL;
}

/* Each rank in turn opens a session with a wrong argument: all ranks get an error that names the rank and the reason, and
 * the next session opens. */
static void *open_wrongly(void *argument) {
    const place *self = (const place *)argument;
    float x[8] = {1}, y[8];
    for (int turn = 0; turn < 4; turn++) {
        int victim = turn % 2, is_mine = self->rank == victim;
        const char *said = turn < 2 ? "the handle of the plan is NULL" : "the pointer to the result is NULL";
        symmc_session *session = NULL, **out = turn >= 2 && is_mine ? NULL : &session;
        symmc_session_options *options;
        must(symmc_session_options_create(&options));
        must(symmc_session_options_set_limit(options, LIMIT_MS));
        symmc_plan *plan = turn < 2 && is_mine ? NULL : self->plan;
        expect(symmc_session_open(plan, self->group, options, out) == SYMMC_ERROR_INPUT && session == NULL);
        expect(symmc_last_error_culprit() == victim);
        if (strstr(symmc_last_error(), said) == NULL) {
            fprintf(stderr, "%s\n", symmc_last_error());
            exit(1);
        }
        symmc_session_options_free(options);
        session = opened(self, x, y);
        must(symmc_session_close(session));
        symmc_session_free(session);
    }
    return NULL;
}

/* The calls of a child on the copy of a session. Returns 0 if each is refused as expected. */
static int misuse(symmc_session *session, const place *self, int what) {
    symmc_session *other;
    int done;
    symmc_status status = SYMMC_ERROR_INPUT;
    switch (what) {
    case 0: status = symmc_session_run(session); break;
    case 1: symmc_session_free(session); return 0;
    case 2: exit(0);
    case 3:
        status = symmc_session_close(session);
        if (status == SYMMC_ERROR_INPUT && strstr(symmc_last_error(), "fork") != NULL) symmc_session_free(session);
        break;
    case 4: status = symmc_session_poll(session, &done); break;
    case 5: status = symmc_session_open(self->plan, self->group, NULL, &other); break;
    default: symmc_group_free(self->group); return 0;
    }
    return status != SYMMC_ERROR_INPUT || strstr(symmc_last_error(), "fork") == NULL;
}

/* Children misuse copies of sessions between runs of their parents. One of the sessions has runs in progress. */
static void *fork_children(void *argument) {
    const place *self = (const place *)argument;
    float x[8] = {1}, y[8];
    symmc_session *session = opened(self, x, y);
    for (int what = 0; what < CHILDREN; what++) {
        pthread_barrier_wait(self->barrier);
        if (self->rank == what % 2) {
            int status;
            pid_t child = fork();
            expect(child >= 0);
            if (child == 0) {
                alarm(60);
                _exit(misuse(session, self, what));
            }
            expect(waitpid(child, &status, 0) == child);
            if (status != 0) fprintf(stderr, "child %d: %d\n", what, status);
            expect(status == 0);
        }
        pthread_barrier_wait(self->barrier);
        must(symmc_session_enqueue(session));
        must(symmc_session_run(session));
    }
    expect(y[0] == 2);
    must(symmc_session_close(session));
    symmc_session_free(session);
    return NULL;
}

static void on_two_threads(symmc_plan *plan, void *(*work)(void *)) {
    pthread_barrier_t barrier;
    pthread_t threads[2];
    symmc_group *groups[2];
    place places[2];
    expect(pthread_barrier_init(&barrier, NULL, 2) == 0);
    must(symmc_group_threads(2, groups));
    for (long rank = 0; rank < 2; rank++) {
        places[rank].plan = plan;
        places[rank].group = groups[rank];
        places[rank].rank = rank;
        places[rank].barrier = &barrier;
        expect(pthread_create(&threads[rank], NULL, work, &places[rank]) == 0);
    }
    for (int rank = 0; rank < 2; rank++) expect(pthread_join(threads[rank], NULL) == 0);
    for (int rank = 0; rank < 2; rank++) symmc_group_free(groups[rank]);
    pthread_barrier_destroy(&barrier);
}

int main(void) {
    symmc_program *program;
    symmc_plan *plan;
    setvbuf(stdout, NULL, _IONBF, 0);
    must(symmc_program_from_text(SUM, &program));
    must(symmc_compile(program, NULL, &plan));
    on_two_threads(plan, leave);
    on_two_threads(plan, abort_session);
    on_two_threads(plan, open_wrongly);
    on_two_threads(plan, fork_children);
    symmc_plan_free(plan);
    symmc_program_free(program);
    printf("all left\n");
    return 0;
}
