/* Faults of callers give a status and a message that names the fault, and have no other effect. */
#include "layer.h"

static void refused_at(symmc_status status, symmc_status kind, const char *text, int line) {
    if (status != kind || symmc_last_error_kind() != kind || strstr(symmc_last_error(), text) == NULL) {
        fprintf(stderr, "line %d: expected kind %d and \"%s\", found %d: %s\n", line, (int)kind, text, (int)status,
                symmc_last_error());
        exit(1);
    }
}
#define refused(call, kind, text) refused_at((call), SYMMC_ERROR_##kind, (text), __LINE__)

static int fails(void *context, const void *mine, size_t bytes, void *all) {
    (void)context, (void)mine, (void)bytes, (void)all;
    return 7;
}

static int alone(void *context, const void *mine, size_t bytes, void *all) {
    (void)context;
    memcpy(all, mine, bytes);
    return 0;
}

static const char *const ONE =
    "program \"one\" ranks 1\n"
    "symbol n in 1..=8\n"
    "arg %x: f32[n]\n"
    "arg %z: f32[n]\n"
    "%y: f32[n] = add %x, %z\n"
    "return %y\n";

static void of_programs(const char *folder) {
    symmc_program *program = (symmc_program *)1;
    symmc_plan *plan;
    symmc_options *options;
    const char *missing = "/nowhere/model.pt2", *none = NULL;
    const char not_utf8[] = {(char)0xff, (char)0xfe, 0};
    const int64_t upper = 64;
    char path[4096];
    refused(symmc_program_from_text("nonsense", &program), INPUT, "program");
    expect(program == NULL);
    refused(symmc_program_from_text(NULL, &program), INPUT, "the program is NULL");
    refused(symmc_program_from_text(not_utf8, &program), INPUT, "not UTF-8");
    refused(symmc_program_from_text(ONE, NULL), INPUT, "the pointer to the result is NULL");
    refused(symmc_program_open(&missing, 1, 0, NULL, &program), INPUT, "/nowhere/model.pt2");
    refused(symmc_program_open(&none, 1, 0, NULL, &program), INPUT, "a path is NULL");
    refused(symmc_program_open(NULL, 2, 0, NULL, &program), INPUT, "paths is NULL");
    refused(symmc_program_open(NULL, 0, 0, NULL, &program), INPUT, "no path");
    refused(symmc_program_open(&missing, SIZE_MAX, 0, NULL, &program), INPUT, "more than memory can hold");
    refused(symmc_program_open(&missing, 1, 0, "/nowhere/x.safetensors", &program), INPUT, "x.safetensors");
    refused(symmc_compile(NULL, NULL, &plan), INPUT, "the handle of the program is NULL");
    expect(plan == NULL);
    refused(symmc_plan_read("/nowhere/plan.json", &plan), INPUT, "/nowhere/plan.json");
    refused(symmc_plan_write(NULL, "x"), INPUT, "the handle of the plan is NULL");
    expect(symmc_plan_ranks(NULL) == 0 && symmc_plan_report(NULL) == NULL && symmc_program_ranks(NULL) == 0);

    must(symmc_program_from_text("program \"open\" ranks ?\narg %x: f32[2]\n%y: f32[2] = add %x, %x\nreturn %y\n", &program));
    expect(symmc_program_ranks(program) == 0);
    refused(symmc_compile(program, NULL, &plan), INPUT, "the number of ranks is open");
    symmc_program_free(program);
    must(symmc_program_from_text(ONE, &program));
    must(symmc_options_create(&options));
    refused(symmc_options_set_machine(options, "abacus"), INPUT, "there is no machine abacus");
    must(symmc_options_set_buckets(options, "m", &upper, 1));
    refused(symmc_compile(program, options, &plan), INPUT, "symbol m");
    must(symmc_options_set_buckets(options, "m", NULL, 0));
    must(symmc_compile(program, options, &plan));
    snprintf(path, sizeof path, "%s/no/plan.json", folder);
    refused(symmc_plan_write(plan, path), INPUT, path);
    refused(symmc_plan_compare(NULL, 0), INPUT, "the handle of the plan is NULL");
    expect(symmc_plan_comparison(NULL) == NULL && symmc_plan_comparison(plan) == NULL);
    must(symmc_plan_compare(plan, 1));
    expect(strstr(symmc_plan_comparison(plan), "equal to its source") != NULL);
    symmc_plan_free(plan);
    symmc_options_free(options);
    symmc_program_free(program);
}

static void of_groups(void) {
    symmc_group *group = NULL;
    refused(symmc_group_threads(2, NULL), INPUT, "NULL");
    refused(symmc_group_threads(0, &group), INPUT, "found 0");
    refused(symmc_group_threads(UINT32_MAX, &group), INPUT, "found 4294967295");
    refused(symmc_group_from_environment(&group), INPUT, "the environment names no rank");
    refused(symmc_group_bootstrap(0, 1, NULL, NULL, &group), INPUT, "all_gather is NULL");
    refused(symmc_group_bootstrap(2, 2, alone, NULL, &group), INPUT, "rank 2 of 2");
    refused(symmc_group_bootstrap(0, 1, fails, NULL, &group), INPUT, "all_gather returned 7");
    expect(group == NULL && symmc_group_rank(NULL) == 0 && symmc_group_ranks(NULL) == 0);
}

static void of_sessions(void) {
    symmc_program *program;
    symmc_plan *plan;
    symmc_group *group;
    symmc_session *session;
    symmc_value value;
    symmc_memory memory;
    size_t count;
    int done;
    symmc_buffer *buffer = NULL;
    float x[9] = {1}, y[8] = {0};
    must(symmc_program_from_text(ONE, &program));
    must(symmc_compile(program, NULL, &plan));
    symmc_program_free(program);
    must(symmc_group_bootstrap(0, 1, alone, NULL, &group));
    refused(symmc_session_open(NULL, group, NULL, &session), INPUT, "the handle of the plan is NULL");
    refused(symmc_session_open(plan, NULL, NULL, &session), INPUT, "the handle of the group is NULL");
    refused(symmc_session_open(plan, group, NULL, NULL), INPUT, "the pointer to the result is NULL");
    must(symmc_session_open(plan, group, NULL, &session));
    symmc_plan_free(plan);
    symmc_group_free(group);

    refused(symmc_session_run(session), INPUT, "sizes");
    refused(symmc_session_count(session, SYMMC_OUTPUT, &count), INPUT, "set n");
    refused(symmc_session_set(session, NULL, NULL, 1), INPUT, "symbols is NULL");
    set_rows(session, 8);
    refused(symmc_session_run(session), INPUT, "has no data");
    {
        const char *m = "m", *n = "n";
        const int64_t nine = 9;
        refused(symmc_session_set(session, &m, &nine, 1), INPUT, "no symbol m");
        const int64_t numbers[] = {9, 0, -1, INT64_MIN, INT64_MAX};
        for (int i = 0; i < 5; i++) refused(symmc_session_set(session, &n, &numbers[i], 1), INPUT, "n=");
        refused(symmc_session_set(session, &n, NULL, 1), INPUT, "values is NULL");
        refused(symmc_session_set(session, &n, &nine, SIZE_MAX), INPUT, "more than memory can hold");
        refused(symmc_session_set(session, NULL, NULL, 1), INPUT, "symbols is NULL");
        must(symmc_session_set(session, NULL, NULL, 0));
    }
    refused(symmc_session_count(session, 9, &count), INPUT, "no kind 9");
    refused(symmc_session_value(session, SYMMC_ARGUMENT, 2, &value), INPUT, "no value 2");
    must(symmc_session_value(session, SYMMC_ARGUMENT, 1, &value));
    expect(strcmp(value.name, "z") == 0 && value.source == NULL && value.replaces == NULL);
    expect(value.axes == 1 && value.extents[0] == 8 && value.bytes == 32 && value.dtype == SYMMC_F32);
    refused(symmc_session_address(session, "q", &memory), INPUT, "no input or output q");
    refused(symmc_session_address(session, NULL, &memory), INPUT, "the name is NULL");
    refused(symmc_session_bind(session, "x", NULL, 32), INPUT, "has no address");
    refused(symmc_session_bind(session, "x", (char *)x + 1, 32), INPUT, "not aligned");
    refused(symmc_session_bind(session, NULL, x, 32), INPUT, "the name is NULL");
    refused(symmc_session_bind(session, "", x, 32), INPUT, "no input or output");
    refused(symmc_session_bind(session, "in.99999999999999999999", x, 32), INPUT, "no input or output");
    refused(symmc_session_bind(session, "out.1", x, 32), INPUT, "no input or output");
    refused(symmc_session_bind(session, "x", x, SIZE_MAX), INPUT, "ends after the last address");
    refused(symmc_session_unbind(session, "w.q"), INPUT, "no input or output");
    must(symmc_session_write(session, "z", x, 32));
    must(symmc_session_bind(session, "x", x, 28));
    refused(symmc_session_run(session), INPUT, "too small: expected 32 bytes");
    refused(symmc_session_write(session, "x", y, 32), INPUT, "too small: expected 32 bytes");
    refused(symmc_session_read(session, "x", y, 32), INPUT, "too small: expected 32 bytes");
    refused(symmc_session_address(session, "x", &memory), INPUT, "too small: expected 32 bytes");
    must(symmc_session_bind(session, "x", x, 32));
    must(symmc_session_bind(session, "y", x + 1, 32));
    refused(symmc_session_run(session), INPUT, "overlaps");
    must(symmc_session_unbind(session, "y"));
    refused(symmc_session_write(session, "z", x, 31), INPUT, "expected 32 bytes, found 31");
    refused(symmc_session_write(session, "y", x, 32), INPUT, "only inputs can be written");
    refused(symmc_session_write(session, "z", NULL, 32), INPUT, "the data is NULL");
    refused(symmc_session_write(session, "z", x, SIZE_MAX), INPUT, "more than memory can hold");
    must(symmc_session_run(session));
    refused(symmc_session_read(session, "y", y, 28), INPUT, "32 bytes");
    refused(symmc_session_read(session, "y", NULL, 32), INPUT, "NULL");
    refused(symmc_session_poll(session, NULL), INPUT, "NULL");
    refused(symmc_session_taken(session, NULL), INPUT, "NULL");
    refused(symmc_session_enqueue_on(session, x), INPUT, "sessions of the host have no streams");
    refused(symmc_session_read(session, "y", y, SIZE_MAX), INPUT, "32 bytes");
    must(symmc_session_wait(session, UINT64_MAX));
    must(symmc_session_read(session, "y", y, sizeof y));
    expect(y[0] == 2.0f && y[7] == 0.0f);
    must(symmc_session_poll(session, &done));
    refused(symmc_session_share_weights(session, NULL), INPUT, "the handle of the weights is NULL");
    /* Buffers outlive the sessions that allocated or bound them. */
    refused(symmc_session_allocate(session, SIZE_MAX, &buffer), RESOURCES, "cannot be allocated");
    refused(symmc_session_allocate(NULL, 8, &buffer), INPUT, "the handle of the session is NULL");
    expect(buffer == NULL && symmc_buffer_address(NULL) == NULL && symmc_buffer_bytes(NULL) == 0);
    must(symmc_session_allocate(session, 0, &buffer));
    symmc_buffer_free(buffer);
    must(symmc_session_allocate(session, 32, &buffer));
    expect(symmc_buffer_bytes(buffer) == 32 && (size_t)symmc_buffer_address(buffer) % 256 == 0);
    refused(symmc_buffer_write(NULL, 0, x, 4), INPUT, "the handle of the buffer is NULL");
    refused(symmc_buffer_write(buffer, 32, x, 4), INPUT, "found 4 bytes from 32");
    refused(symmc_buffer_write(buffer, SIZE_MAX, x, 4), INPUT, "bytes from");
    refused(symmc_buffer_write(buffer, 0, NULL, 4), INPUT, "the data is NULL");
    refused(symmc_buffer_read(buffer, 0, NULL, 4), INPUT, "NULL");
    refused(symmc_buffer_read(buffer, 0, y, SIZE_MAX), INPUT, "bytes from");
    refused(symmc_session_bind_buffer(session, "x", NULL), INPUT, "the handle of the buffer is NULL");
    refused(symmc_session_bind_buffer(session, "q", buffer), INPUT, "no input or output q");
    must(symmc_session_bind_buffer(session, "x", buffer));
    must(symmc_buffer_write(buffer, 4, x, 4));
    symmc_buffer_free(buffer);
    must(symmc_session_run(session));
    must(symmc_session_read(session, "y", y, sizeof y));
    expect(y[0] == 1.0f && y[1] == 1.0f);

    /* While memory is released, calls that need it fail with an error that names it. */
    must(symmc_session_release(session));
    refused(symmc_session_run(session), INPUT, "resume the session first");
    must(symmc_session_release(session));
    must(symmc_session_resume(session));
    must(symmc_session_resume(session));
    must(symmc_session_run(session));
    must(symmc_session_close(session));
    symmc_session_free(session);
    refused(symmc_session_run(NULL), INPUT, "the handle of the session is NULL");
    refused(symmc_session_close(NULL), INPUT, "the handle of the session is NULL");
    refused(symmc_session_enqueue_on(NULL, x), INPUT, "the handle of the session is NULL");
    refused(symmc_session_taken(NULL, NULL), INPUT, "the handle of the session is NULL");
    refused(symmc_session_recordings(NULL, NULL, NULL, NULL), INPUT, "the handle of the session is NULL");
    expect(symmc_session_rank(NULL) == 0);
    symmc_session_free(NULL);
    symmc_group_free(NULL);
    symmc_plan_free(NULL);
    symmc_program_free(NULL);
    symmc_options_free(NULL);
    symmc_weights_free(NULL);
    symmc_buffer_free(NULL);
    symmc_session_options_free(NULL);
}

/* Options of sessions, and GPUs on machines without any. */
static void of_options(void) {
    symmc_session_options *options;
    symmc_session_memory memory, taken;
    symmc_buffer *buffer = NULL;
    symmc_program *program;
    symmc_session *session;
    symmc_group *group;
    symmc_plan *plan;
    const uint32_t ranks[] = {0};
    symmc_status status;
    int something = 0;
    must(symmc_program_from_text(ONE, &program));
    must(symmc_compile(program, NULL, &plan));
    refused(symmc_session_options_create(NULL), INPUT, "the pointer to the result is NULL");
    must(symmc_session_options_create(&options));
    refused(symmc_session_options_set_limit(NULL, 1), INPUT, "the handle of the options of the session is NULL");
    refused(symmc_session_options_set_stream(options, &something), INPUT, "call symmc_session_options_set_gpu first");
    refused(symmc_session_options_set_communicator(options, &something, ranks, 1), INPUT, "call symmc_session_options_set_gpu first");
    refused(symmc_session_options_set_communicator(options, &something, NULL, 0), INPUT, "has no ranks");
    refused(symmc_session_options_set_communicator(options, &something, NULL, 2), INPUT, "ranks is NULL");
    refused(symmc_session_options_set_arena(options, SYMMC_ARENA_NCCL), INPUT, "call symmc_session_options_set_gpu first");
    refused(symmc_session_options_set_products(options, SYMMC_PRODUCTS_HEURISTIC), INPUT, "call symmc_session_options_set_gpu first");
    refused(symmc_session_options_set_kept(options, 2), INPUT, "call symmc_session_options_set_gpu first");
    refused(symmc_plan_get_memory(NULL, 0, NULL, &memory), INPUT, "the handle of the plan is NULL");
    refused(symmc_plan_get_memory(plan, 0, NULL, NULL), INPUT, "NULL");
    refused(symmc_plan_get_memory(plan, 1, options, &memory), INPUT, "rank 1");
    must(symmc_plan_get_memory(plan, 0, options, &memory));
    expect(memory.ordinary + memory.symmetric + memory.flags > 0 && memory.held >= 96);

    /* The largest timeout, and symmetric memory of the caller. */
    must(symmc_session_options_set_limit(options, UINT64_MAX));
    must(symmc_session_options_set_symmetric(options, SIZE_MAX));
    refused(symmc_plan_get_memory(plan, 0, options, &memory), RESOURCES, "overflows");
    must(symmc_group_bootstrap(0, 1, alone, NULL, &group));
    expect(symmc_session_open(plan, group, options, &session) == SYMMC_ERROR_RESOURCES);
    symmc_group_free(group);
    must(symmc_session_options_set_symmetric(options, 5000));
    must(symmc_plan_get_memory(plan, 0, options, &memory));
    must(symmc_group_bootstrap(0, 1, alone, NULL, &group));
    must(symmc_session_open(plan, group, options, &session));
    must(symmc_session_taken(session, &taken));
    uint64_t evicted = 1;
    must(symmc_session_recordings(session, NULL, NULL, &evicted));
    expect(evicted == 0);
    expect(taken.symmetric == memory.symmetric && taken.symmetric >= 5000);
    must(symmc_session_allocate_symmetric(session, 4000, &buffer));
    must(symmc_buffer_write(buffer, 3996, &something, 4));
    symmc_buffer_free(buffer);
    refused(symmc_session_allocate_symmetric(session, 1 << 20, &buffer), INPUT, "when the session is opened");
    refused(symmc_session_allocate_symmetric(NULL, 8, &buffer), INPUT, "the handle of the session is NULL");
    refused(symmc_session_release(session), INPUT, "cannot be released");
    must(symmc_session_close(session));
    symmc_session_free(session);
    must(symmc_session_options_set_symmetric(options, 0));
    must(symmc_session_options_set_limit(options, 0));

    status = symmc_session_options_set_gpu(options, 4000);
    if (status == SYMMC_ERROR_UNSUPPORTED) {
        expect(strstr(symmc_last_error(), "without support for GPUs") != NULL);
    } else {
        must(status);
        refused(symmc_session_options_set_arena(options, 2), INPUT, "found 2");
        refused(symmc_session_options_set_products(options, -1), INPUT, "found -1");
        must(symmc_session_options_set_arena(options, SYMMC_ARENA_NCCL));
        must(symmc_session_options_set_products(options, SYMMC_PRODUCTS_HEURISTIC));
        must(symmc_session_options_set_kept(options, 0));
        must(symmc_session_options_set_communicator(options, &something, ranks, 1));
        must(symmc_session_options_set_communicator(options, NULL, NULL, 0));
        must(symmc_session_options_set_stream(options, NULL));
        must(symmc_plan_get_memory(plan, 0, options, &memory));
        expect(memory.symmetric >= 1 << 20);
        status = symmc_session_open(plan, group, options, &session);
        expect(status != SYMMC_OK && status != SYMMC_ERROR_DEFECT && session == NULL);
        expect(strlen(symmc_last_error()) > 10);
    }
    /* Its group member is still usable. */
    must(symmc_session_open(plan, group, NULL, &session));
    must(symmc_session_close(session));
    symmc_session_free(session);
    symmc_session_options_free(options);
    symmc_group_free(group);
    symmc_plan_free(plan);
    symmc_program_free(program);
}

int main(int count, char **arguments) {
    expect(count == 2 && symmc_last_error_kind() == SYMMC_OK && symmc_last_error()[0] == '\0');
    expect(symmc_last_error_rank() == -1 && symmc_last_error_step() == -1);
    expect(symmc_last_error_node() == NULL && symmc_last_error_op() == NULL);
    of_programs(arguments[1]);
    of_groups();
    of_sessions();
    of_options();
    printf("all refused\n");
    return 0;
}
