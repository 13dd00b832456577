/* The rules at the head of symmc.h: ownership, arguments, errors, threads and cancellation. Those on forks are in leaving.c.
 *
 * The argument `log` says that SYMMC_LOG is invalid: then every function that can fail does.
 */
#define _DEFAULT_SOURCE
#include <pthread.h>
#include <unistd.h>

#include "layer.h"

#define UNSET(type) ((type *)0x5151)

static const char *const ALONE =
    "program \"alone\" ranks 1\narg %x: f32[4]\n%y: f32[4] = add %x, %x\nreturn %y\n";
static const char *const PAIR =
    "program \"pair\" ranks 2\ngroup @all world\narg %x: f32[4]\n%y: f32[4] = all_reduce %x op=sum group=@all\nreturn %y\n";

static symmc_plan *alone, *pair;

static symmc_plan *planned(const char *text) {
    symmc_program *program;
    symmc_plan *plan;
    must(symmc_program_from_text(text, &program));
    must(symmc_compile(program, NULL, &plan));
    symmc_program_free(program);
    return plan;
}

static symmc_session *opened_alone(void) {
    symmc_group *group;
    symmc_session *session;
    must(symmc_group_threads(1, &group));
    must(symmc_session_open(alone, group, NULL, &session));
    symmc_group_free(group);
    return session;
}

static void runs(symmc_session *session) {
    float x[4] = {1, 2, 3, 4}, y[4];
    must(symmc_session_write(session, "x", x, sizeof x));
    must(symmc_session_run(session));
    must(symmc_session_read(session, "y", y, sizeof y));
    expect(y[0] == 2 && y[3] == 8);
}

/* An error with this status and text, and the handle that the call was to create. */
static void is_null_at(symmc_status status, symmc_status expected, const char *text, const void *handle, int line) {
    if (status != expected || symmc_last_error_kind() != expected || strstr(symmc_last_error(), text) == NULL || handle) {
        fprintf(stderr, "line %d: expected status %d, \"%s\" and NULL, found %d: %s and %p\n", line, (int)expected, text, (int)status,
                symmc_last_error(), handle);
        _exit(1);
    }
}
#define is_null(call, status, text, handle)                                         \
    do {                                                                            \
        const symmc_status found_ = (call);                                         \
        is_null_at(found_, SYMMC_ERROR_##status, (text), (handle), __LINE__);       \
    } while (0)

/* Errors: every function that creates a handle, with invalid arguments. `text` is in all messages; `session` is open, or NULL. */
static void create_invalid(symmc_session *session, const char *text) {
    const char *path = "/nowhere/program.symm";
    symmc_program *program = UNSET(symmc_program);
    symmc_weights *weights = UNSET(symmc_weights);
    symmc_options *options = UNSET(symmc_options);
    symmc_session_options *session_options = UNSET(symmc_session_options);
    symmc_plan *plan = UNSET(symmc_plan);
    symmc_group *groups[2] = {UNSET(symmc_group), UNSET(symmc_group)}, *group = UNSET(symmc_group);
    symmc_session *other = UNSET(symmc_session);
    symmc_buffer *buffers[2] = {UNSET(symmc_buffer), UNSET(symmc_buffer)};
    const int has_log_error = text[0] != 0;
    is_null(symmc_program_from_text("?", &program), INPUT, text, program);
    program = UNSET(symmc_program);
    is_null(symmc_program_from_text(NULL, &program), INPUT, text, program);
    program = UNSET(symmc_program);
    is_null(symmc_program_open(&path, 1, 0, NULL, &program), INPUT, text, program);
    program = UNSET(symmc_program);
    is_null(symmc_program_open(NULL, 3, 0, NULL, &program), INPUT, text, program);
    is_null(symmc_weights_open(NULL, 0, NULL, &weights), INPUT, text, weights);
    is_null(symmc_compile(NULL, NULL, &plan), INPUT, text, plan);
    plan = UNSET(symmc_plan);
    is_null(symmc_plan_read("/nowhere/plan.json", &plan), INPUT, text, plan);
    is_null(symmc_group_from_environment(&group), INPUT, text, group);
    group = UNSET(symmc_group);
    is_null(symmc_group_bootstrap(0, 1, NULL, NULL, &group), INPUT, text, group);
    is_null(symmc_session_open(NULL, NULL, NULL, &other), INPUT, text, other);
    other = UNSET(symmc_session);
    is_null(symmc_session_open(alone, NULL, NULL, &other), INPUT, text, other);
    is_null(symmc_session_allocate(NULL, 8, &buffers[0]), INPUT, text, buffers[0]);
    is_null(symmc_session_allocate_symmetric(NULL, 8, &buffers[1]), INPUT, text, buffers[1]);
    if (session != NULL) {
        buffers[0] = buffers[1] = UNSET(symmc_buffer);
        is_null(symmc_session_allocate(session, SIZE_MAX / 2, &buffers[0]), RESOURCES, text, buffers[0]);
        is_null(symmc_session_allocate_symmetric(session, 1 << 20, &buffers[1]), INPUT, text, buffers[1]);
        must(symmc_group_threads(1, &group));
        other = UNSET(symmc_session);
        is_null(symmc_session_open(pair, group, NULL, &other), INPUT, text, other);
        symmc_group_free(group);
    }
    if (has_log_error) {
        is_null(symmc_options_create(&options), INPUT, text, options);
        is_null(symmc_session_options_create(&session_options), INPUT, text, session_options);
        is_null(symmc_group_threads(2, groups), INPUT, text, groups[0]);
        is_null(SYMMC_ERROR_INPUT, INPUT, text, groups[1]);
    }
    /* Without a valid number of ranks no pointer is known to be writable. */
    groups[0] = UNSET(symmc_group);
    expect(symmc_group_threads(0, groups) == SYMMC_ERROR_INPUT && groups[0] == UNSET(symmc_group));
    expect(symmc_group_threads(1025, groups) == SYMMC_ERROR_INPUT && groups[0] == UNSET(symmc_group));
}

/* Ownership: only free releases a handle, and calls after the end are errors. */
static void end_and_free(void) {
    for (int is_abort = 0; is_abort < 2; is_abort++) {
        symmc_session *session = opened_alone();
        symmc_buffer *buffer, *unmade = UNSET(symmc_buffer);
        symmc_memory memory;
        symmc_value value;
        symmc_session_memory taken;
        float x[4] = {0};
        int done = 7;
        size_t count = 7;
        const char *by = is_abort ? "symmc_session_abort was called" : "symmc_session_close was called";
        must(symmc_session_allocate(session, 16, &buffer));
        must(symmc_session_bind_buffer(session, "x", buffer));
        must(is_abort ? symmc_session_abort(session, "the test") : symmc_session_close(session));
        is_null(symmc_session_close(session), INPUT, by, NULL);
        is_null(symmc_session_abort(session, NULL), INPUT, by, NULL);
        is_null(symmc_session_set(session, NULL, NULL, 0), INPUT, by, NULL);
        is_null(symmc_session_count(session, SYMMC_ARGUMENT, &count), INPUT, by, NULL);
        is_null(symmc_session_value(session, SYMMC_ARGUMENT, 0, &value), INPUT, by, NULL);
        is_null(symmc_session_address(session, "x", &memory), INPUT, by, NULL);
        is_null(symmc_session_bind(session, "x", x, sizeof x), INPUT, by, NULL);
        is_null(symmc_session_bind_buffer(session, "x", buffer), INPUT, by, NULL);
        is_null(symmc_session_unbind(session, "x"), INPUT, by, NULL);
        is_null(symmc_session_share_weights(session, NULL), INPUT, by, NULL);
        is_null(symmc_session_write(session, "x", x, sizeof x), INPUT, by, NULL);
        is_null(symmc_session_read(session, "y", x, sizeof x), INPUT, by, NULL);
        is_null(symmc_session_run(session), INPUT, by, NULL);
        is_null(symmc_session_enqueue(session), INPUT, by, NULL);
        is_null(symmc_session_enqueue_on(session, NULL), INPUT, by, NULL);
        is_null(symmc_session_taken(session, &taken), INPUT, by, NULL);
        is_null(symmc_session_recordings(session, NULL, NULL, NULL), INPUT, by, NULL);
        is_null(symmc_session_poll(session, &done), INPUT, by, NULL);
        is_null(symmc_session_wait(session, 1), INPUT, by, NULL);
        is_null(symmc_session_release(session), INPUT, by, NULL);
        is_null(symmc_session_resume(session), INPUT, by, NULL);
        is_null(symmc_session_allocate(session, 8, &unmade), INPUT, by, unmade);
        unmade = UNSET(symmc_buffer);
        is_null(symmc_session_allocate_symmetric(session, 8, &unmade), INPUT, by, unmade);
        expect(done == 7 && count == 7 && symmc_session_rank(session) == 0);
        symmc_session_free(session);
        /* The buffer belongs to the caller. */
        must(symmc_buffer_write(buffer, 0, x, sizeof x));
        symmc_buffer_free(buffer);
    }
}

/* Arguments: unaligned arrays and results are not touched; bytes need no alignment. */
static void unaligned(void) {
    symmc_session *session = opened_alone();
    symmc_options *options;
    symmc_session_options *session_options;
    char bytes[256], before[256];
    const char *name = "n";
    char *odd = bytes + 1;
    int64_t one = 1;
    void *odd_pointer = odd;
    memset(bytes, 0x51, sizeof bytes);
    memcpy(before, bytes, sizeof bytes);
    while ((size_t)odd % 8 != 1) odd++;
    odd_pointer = odd;
    must(symmc_options_create(&options));
    must(symmc_session_options_create(&session_options));
#define refused(call) is_null((call), INPUT, "expected a multiple of", NULL)
    refused(symmc_session_set(session, &name, (const int64_t *)odd_pointer, 1));
    refused(symmc_session_set(session, (const char *const *)odd_pointer, &one, 1));
    refused(symmc_options_set_buckets(options, "n", (const int64_t *)odd_pointer, 2));
    refused(symmc_session_options_set_communicator(session_options, bytes, (const uint32_t *)odd_pointer, 2));
    refused(symmc_program_open((const char *const *)odd_pointer, 1, 0, NULL, (symmc_program **)&odd_pointer));
    odd_pointer = odd;
    refused(symmc_program_from_text(ALONE, (symmc_program **)odd_pointer));
    refused(symmc_options_create((symmc_options **)odd_pointer));
    refused(symmc_session_options_create((symmc_session_options **)odd_pointer));
    refused(symmc_group_threads(2, (symmc_group **)odd_pointer));
    refused(symmc_session_allocate(session, 8, (symmc_buffer **)odd_pointer));
    refused(symmc_session_count(session, SYMMC_ARGUMENT, (size_t *)odd_pointer));
    refused(symmc_session_value(session, SYMMC_ARGUMENT, 0, (symmc_value *)odd_pointer));
    refused(symmc_session_address(session, "x", (symmc_memory *)odd_pointer));
    refused(symmc_session_taken(session, (symmc_session_memory *)odd_pointer));
    refused(symmc_plan_get_memory(alone, 0, NULL, (symmc_session_memory *)odd_pointer));
    refused(symmc_session_recordings(session, NULL, (uint64_t *)odd_pointer, NULL));
    refused(symmc_session_poll(session, (int *)odd_pointer));
#undef refused
    expect(memcmp(bytes, before, sizeof bytes) == 0);
    must(symmc_session_write(session, "x", odd, 16));
    must(symmc_session_read(session, "x", odd, 16));
    runs(session);
    symmc_options_free(options);
    symmc_session_options_free(session_options);
    symmc_session_free(session);
}

/* Threads: calls in destructors of keys and static objects, and in atexit handlers, after errors of the same thread. */

/* The sessions of rank 0 whose peers aborted: of a thread that ends, an atexit handler, a static object, a destructor of the
 * program, and an object of a thread. */
enum { LATE = 5 };
static symmc_session *failed[LATE];
static char first_error[512];
static pthread_key_t key;

static pthread_barrier_t is_written;

static void *abort_peer(void *group) {
    symmc_session *session;
    must(symmc_session_open(pair, (symmc_group *)group, NULL, &session));
    pthread_barrier_wait(&is_written);
    must(symmc_session_abort(session, "out of memory"));
    symmc_session_free(session);
    return NULL;
}

static symmc_session *opened_with_failed_peer(void) {
    symmc_group *groups[2];
    symmc_session *session;
    pthread_t peer;
    const float x[4] = {1};
    must(symmc_group_threads(2, groups));
    expect(pthread_barrier_init(&is_written, NULL, 2) == 0);
    expect(pthread_create(&peer, NULL, abort_peer, groups[1]) == 0);
    must(symmc_session_open(pair, groups[0], NULL, &session));
    must(symmc_session_write(session, "x", x, sizeof x));
    pthread_barrier_wait(&is_written);
    expect(pthread_join(peer, NULL) == 0);
    pthread_barrier_destroy(&is_written);
    symmc_group_free(groups[0]);
    symmc_group_free(groups[1]);
    return session;
}

/* The last error before the end of the thread. */
static void fail_first(void) {
    symmc_program *program;
    expect(symmc_program_from_text("?", &program) == SYMMC_ERROR_INPUT);
    snprintf(first_error, sizeof first_error, "%s", symmc_last_error());
}

static void call_late(symmc_session *session, int is_first) {
    /* The destructor of the object of a thread runs before the end of the storage of symmc. */
    const int is_whole = session == failed[4];
    char path[4096] = "/nowhere";
    symmc_plan *plan;
    alarm(60);
    expect(!is_first || strcmp(symmc_last_error(), first_error) == 0);
    expect(symmc_last_error_kind() != SYMMC_OK && symmc_last_error_rank() == symmc_last_error_culprit());
    expect(symmc_session_run(session) == SYMMC_ERROR_PEER && strstr(symmc_last_error(), "out of memory") != NULL);
    expect(symmc_last_error_culprit() == 1 && symmc_last_error_reporter() == 1 && symmc_last_error_step() == -1);
    expect(symmc_session_close(session) == SYMMC_ERROR_PEER && strstr(symmc_last_error(), "out of memory") != NULL);
    symmc_session_free(session);
    expect(symmc_last_error_node() == NULL && symmc_last_error_op() == NULL);
    /* A message with characters of several bytes. */
    while (strlen(path) + 4 < sizeof path) strcat(path, "/\xe2\x86\x92");
    expect(symmc_plan_read(path, &plan) == SYMMC_ERROR_INPUT && plan == NULL);
    expect(strlen(symmc_last_error()) >= 500 && (is_whole || strlen(symmc_last_error()) <= 511));
    symmc_session *own = opened_alone();
    create_invalid(own, "");
    runs(own);
    must(symmc_session_close(own));
    symmc_session_free(own);
    end_and_free();
    symmc_plan_free(planned(PAIR));
}

static void in_key(void *session) {
    call_late((symmc_session *)session, 1);
    printf("key\n");
}

static void at_exit(void) {
    if (failed[1] == NULL) return;
    call_late(failed[1], 1);
    printf("atexit\n");
}

#ifdef __cplusplus
struct engine {
    int number;
    ~engine() {
        if (failed[number] != NULL) call_late(failed[number], 0);
    }
};
static engine engine_of_process = {2};
static thread_local engine engine_of_thread = {4};
#endif

static void *end_thread(void *argument) {
    (void)argument;
    fail_first();
    expect(pthread_setspecific(key, failed[0]) == 0);
    return NULL;
}

static void *end_thread_with_object(void *argument) {
    (void)argument;
    fail_first();
#ifdef __cplusplus
    /* The first use constructs it. */
    expect(engine_of_thread.number == 4);
#endif
    return NULL;
}

__attribute__((destructor)) static void in_destructor(void) {
    if (failed[3] == NULL) return;
#ifndef __cplusplus
    call_late(failed[2], 0);
    symmc_session_free(failed[4]);
#endif
    call_late(failed[3], 0);
    printf("destructor\n");
    fflush(stdout);
}

/* Cancellation: a thread that is cancelled in a call ends after it. */
static symmc_group *pairs[2];
static int has_returned;

static void *open_pair(void *argument) {
    const long rank = (symmc_session **)argument - failed;
    const float x[4] = {1, 2, 3, 4};
    must(symmc_session_open(pair, pairs[rank], NULL, &failed[rank]));
    must(symmc_session_write(failed[rank], "x", x, sizeof x));
    return NULL;
}

static void *wait_for_peer(void *session) {
    has_returned = symmc_session_run((symmc_session *)session) == SYMMC_ERROR_PEER;
    pthread_testcancel();
    has_returned = 0;
    return NULL;
}

static void cancel_waiting(void) {
    pthread_t threads[2];
    void *result;
    must(symmc_group_threads(2, pairs));
    for (int rank = 0; rank < 2; rank++) expect(pthread_create(&threads[rank], NULL, open_pair, &failed[rank]) == 0);
    for (int rank = 0; rank < 2; rank++) expect(pthread_join(threads[rank], NULL) == 0);
    expect(pthread_create(&threads[0], NULL, wait_for_peer, failed[0]) == 0);
    usleep(50000);
    expect(pthread_cancel(threads[0]) == 0);
    usleep(50000);
    must(symmc_session_abort(failed[1], "the wait is over"));
    expect(pthread_join(threads[0], &result) == 0);
    expect(result == PTHREAD_CANCELED && has_returned);
    for (int rank = 0; rank < 2; rank++) {
        symmc_session_free(failed[rank]);
        symmc_group_free(pairs[rank]);
        failed[rank] = NULL;
    }
}

int main(int count, char **arguments) {
    pthread_t thread;
    alarm(120);
    if (count == 2 && strcmp(arguments[1], "log") == 0) {
        create_invalid(NULL, "SYMMC_LOG: unknown level");
        printf("all NULL\n");
        return 0;
    }
    alone = planned(ALONE);
    pair = planned(PAIR);
    symmc_session *session = opened_alone();
    create_invalid(session, "");
    symmc_session_free(session);
    end_and_free();
    unaligned();
    cancel_waiting();
    for (int i = 0; i < LATE; i++) failed[i] = opened_with_failed_peer();
    expect(pthread_key_create(&key, in_key) == 0);
    expect(pthread_create(&thread, NULL, end_thread, NULL) == 0);
    expect(pthread_join(thread, NULL) == 0);
    expect(pthread_create(&thread, NULL, end_thread_with_object, NULL) == 0);
    expect(pthread_join(thread, NULL) == 0);
    fail_first();
    expect(atexit(at_exit) == 0);
    return 0;
}
