/* Unusual but valid calls, and calls with unusual faults. None may end the process or be reported as a defect of symmc.
 * The argument is a folder for files.
 */
#define _DEFAULT_SOURCE
#include <pthread.h>
#include <unistd.h>

#include "layer.h"

static void fails_at(symmc_status status, const char *what, int line) {
    if (status == SYMMC_OK || status == SYMMC_ERROR_DEFECT || strlen(symmc_last_error()) < 4) {
        fprintf(stderr, "line %d: %s: expected an error of the caller, found %d: %s\n", line, what, (int)status, symmc_last_error());
        exit(1);
    }
}
#define fails(call) fails_at((call), #call, __LINE__)

static int alone(void *context, const void *mine, size_t bytes, void *all) {
    (void)context;
    memcpy(all, mine, bytes);
    return 0;
}

static int garbage(void *context, const void *mine, size_t bytes, void *all) {
    (void)mine;
    memset(all, 0xa5, bytes * *(size_t *)context);
    return 0;
}

static symmc_plan *planned(const char *text) {
    symmc_program *program;
    symmc_plan *plan;
    must(symmc_program_from_text(text, &program));
    must(symmc_compile(program, NULL, &plan));
    symmc_program_free(program);
    return plan;
}

static symmc_session *opened(const symmc_plan *plan) {
    symmc_session *session;
    symmc_group *group;
    must(symmc_group_bootstrap(0, 1, alone, NULL, &group));
    must(symmc_session_open(plan, group, NULL, &session));
    symmc_group_free(group);
    return session;
}

/* Extents of zero: memory may be NULL then, and a run does nothing. */
static void nothing(void) {
    symmc_plan *plan = planned("program \"empty\" ranks 1\nsymbol n in 0..=8\narg %x: f32[n, 4]\nparam %w: f32[0, 3]\n"
                               "%y: f32[n, 4] = neg %x\n%v: f32[0, 3] = neg %w\nreturn %y, %v\n");
    symmc_session *session = opened(plan);
    symmc_memory memory;
    symmc_buffer *buffer;
    float x[4] = {1, 2, 3, 4}, y[4] = {0};
    symmc_plan_free(plan);
    set_rows(session, 0);
    must(symmc_session_bind(session, "x", NULL, 0));
    must(symmc_session_bind(session, "out.0", NULL, 0));
    must(symmc_session_write(session, "w", NULL, 0));
    must(symmc_session_run(session));
    must(symmc_session_read(session, "out.0", NULL, 0));
    must(symmc_session_read(session, "out.1", NULL, 0));
    must(symmc_session_address(session, "out.1", &memory));
    expect(memory.bytes == 0);
    must(symmc_session_allocate(session, 0, &buffer));
    must(symmc_buffer_write(buffer, 0, NULL, 0));
    must(symmc_buffer_read(buffer, 0, NULL, 0));
    must(symmc_session_bind_buffer(session, "w", buffer));
    symmc_buffer_free(buffer);
    must(symmc_session_run(session));
    /* Memory of no bytes is too small for other sizes. */
    set_rows(session, 1);
    fails(symmc_session_run(session));
    must(symmc_session_bind(session, "x", x, sizeof x));
    must(symmc_session_bind(session, "out.0", y, sizeof y));
    must(symmc_session_run(session));
    expect(y[0] == -1 && y[3] == -4);
    must(symmc_session_close(session));
    symmc_session_free(session);

    plan = planned("program \"constant\" ranks 1\n%y: f32[2] = full value=1.0\nreturn %y\n");
    session = opened(plan);
    symmc_plan_free(plan);
    must(symmc_session_run(session));
    must(symmc_session_read(session, "y", y, 8));
    expect(y[0] == 1 && y[1] == 1);
    must(symmc_session_close(session));
    symmc_session_free(session);
}

static void names(void) {
    static const char *const WRONG[] = {"", "%", "%%x", "in.", "in.-1", "in.0x", "in.1", "out.", "out.18446744073709551616", "w.", "w.x.", ".", " x", "x ", "\n"};
    symmc_plan *plan = planned("program \"names\" ranks 1\narg %x: f32[2]\n%y: f32[2] = neg %x\nreturn %y\n");
    symmc_session *session = opened(plan);
    const char bytes[] = {(char)0xc0, (char)0x80, 0};
    char *name = (char *)malloc(1 << 20);
    float x[2] = {0};
    int64_t n = 1;
    const char *symbol;
    expect(name != NULL);
    memset(name, 'x', (1 << 20) - 1);
    name[(1 << 20) - 1] = 0;
    for (size_t i = 0; i < sizeof WRONG / sizeof *WRONG; i++) {
        fails(symmc_session_bind(session, WRONG[i], x, sizeof x));
        fails(symmc_session_write(session, WRONG[i], x, sizeof x));
        fails(symmc_session_read(session, WRONG[i], x, sizeof x));
        fails(symmc_session_unbind(session, WRONG[i]));
        symbol = WRONG[i];
        fails(symmc_session_set(session, &symbol, &n, 1));
    }
    fails(symmc_session_bind(session, bytes, x, sizeof x));
    fails(symmc_session_bind(session, name, x, sizeof x));
    symbol = NULL;
    fails(symmc_session_set(session, &symbol, &n, 1));
    must(symmc_session_bind(session, "%x", x, sizeof x));
    /* Bind again, and unbind several times. */
    must(symmc_session_bind(session, "in.0", x, sizeof x));
    must(symmc_session_unbind(session, "x"));
    must(symmc_session_unbind(session, "x"));
    must(symmc_session_write(session, "in.0", x, sizeof x));
    must(symmc_session_run(session));
    must(symmc_session_close(session));
    symmc_session_free(session);
    symmc_plan_free(plan);
    free(name);
}

static void options(void) {
    static const int64_t UPPER[][2] = {{8, 4}, {8, 8}, {-1, 64}, {INT64_MIN, INT64_MAX}, {0, 0}, {65, 1}};
    symmc_program *program;
    symmc_options *options;
    symmc_plan *plan;
    must(symmc_program_from_text(PROGRAM, &program));
    must(symmc_options_create(&options));
    for (size_t i = 0; i < sizeof UPPER / sizeof *UPPER; i++) {
        must(symmc_options_set_buckets(options, "n", UPPER[i], 2));
        fails(symmc_compile(program, options, &plan));
    }
    must(symmc_options_set_buckets(options, "n", NULL, 0));
    must(symmc_options_set_symmetric_limit(options, UINT64_MAX));
    must(symmc_options_set_bind_arguments(options, -5));
    must(symmc_options_set_coalesce(options, 0));
    must(symmc_options_set_coalesce(options, -5));
    fails(symmc_options_set_machine(options, ""));
    fails(symmc_options_set_machine(options, "/"));
    fails(symmc_options_set_machine(options, NULL));
    must(symmc_options_set_numerics(options, "reassociate,narrow"));
    fails(symmc_options_set_numerics(options, "relaxed"));
    fails(symmc_options_set_numerics(options, ""));
    fails(symmc_options_set_numerics(options, NULL));
    must(symmc_compile(program, options, &plan));
    symmc_options_free(options);
    symmc_plan_free(plan);
    symmc_program_free(program);
}

/* A plan whose file was changed: it is refused, or proved safe and usable. */
static void files(const char *folder) {
    symmc_program *program;
    symmc_weights *weights;
    symmc_plan *plan = planned(PROGRAM), *read;
    const char *directory = folder;
    char path[4096], *text;
    long bytes;
    FILE *file;
    fails(symmc_program_open(&directory, 1, 0, NULL, &program));
    fails(symmc_program_open(&directory, 1, UINT32_MAX, folder, &program));
    fails(symmc_plan_read(folder, &read));
    snprintf(path, sizeof path, "%s/strange.json", folder);
    must(symmc_plan_write(plan, path));
    file = fopen(path, "rb");
    expect(file != NULL && fseek(file, 0, SEEK_END) == 0);
    bytes = ftell(file);
    text = (char *)malloc((size_t)bytes);
    rewind(file);
    expect(text != NULL && fread(text, 1, (size_t)bytes, file) == (size_t)bytes);
    fclose(file);
    for (long cut = 0; cut < bytes; cut += bytes / 40 + 1) {
        symmc_status status;
        file = fopen(path, "wb");
        expect(file != NULL && fwrite(text, 1, (size_t)cut, file) == (size_t)cut);
        fclose(file);
        fails(symmc_plan_read(path, &read));
        file = fopen(path, "wb");
        text[cut] ^= 1;
        expect(file != NULL && fwrite(text, 1, (size_t)bytes, file) == (size_t)bytes);
        text[cut] ^= 1;
        fclose(file);
        status = symmc_plan_read(path, &read);
        if (status == SYMMC_OK) symmc_plan_free(read);
        else fails(status);
    }
    free(text);
    symmc_plan_free(plan);
    must(symmc_program_from_text(PROGRAM, &program));
    fails(symmc_weights_open(program, 7, NULL, &weights));
    fails(symmc_weights_open(program, 0, path, &weights));
    fails(symmc_weights_open(program, 0, folder, &weights));
    symmc_program_free(program);
}

static void groups(void) {
    symmc_plan *plan = planned(PROGRAM);
    symmc_session_options *options;
    symmc_session *session;
    symmc_group *many[1024], *group = NULL;
    size_t ranks = 2;
    must(symmc_session_options_create(&options));
    must(symmc_session_options_set_limit(options, 300));
    must(symmc_group_threads(1024, many));
    expect(symmc_group_ranks(many[1023]) == 1024);
    /* Another number of ranks than the plan's. */
    fails(symmc_session_open(plan, many[5], options, &session));
    for (int i = 0; i < 1024; i++) symmc_group_free(many[i]);
    /* The other rank does not join, which is reported after the timeout. Then even its group member is missing. */
    must(symmc_group_threads(RANKS, many));
    expect(symmc_session_open(plan, many[1], options, &session) == SYMMC_ERROR_PEER && session == NULL);
    symmc_group_free(many[0]);
    expect(symmc_session_open(plan, many[1], options, &session) == SYMMC_ERROR_PEER && session == NULL);
    symmc_group_free(many[1]);
    /* A function that returns wrong bytes. */
    if (symmc_group_bootstrap(1, 2, garbage, &ranks, &group) == SYMMC_OK) {
        expect(symmc_session_open(plan, group, options, &session) == SYMMC_ERROR_PEER && session == NULL);
        symmc_group_free(group);
    }
    symmc_session_options_free(options);
    symmc_plan_free(plan);
}

/* One thread opens, others run in turn, and the last one ends it; rank 1 has runs in progress when it closes. */
typedef struct {
    symmc_plan *plan;
    symmc_group *group;
    symmc_session *session;
} handed;

static void *open_it(void *argument) {
    handed *all = (handed *)argument;
    must(symmc_session_open(all->plan, all->group, NULL, &all->session));
    return NULL;
}

static void *run_it(void *argument) {
    handed *all = (handed *)argument;
    float x[8] = {1}, w[32] = {1}, count[4] = {0};
    set_rows(all->session, 1);
    must(symmc_session_write(all->session, "x", x, sizeof x));
    must(symmc_session_write(all->session, "layer.weight", w, sizeof w));
    must(symmc_session_write(all->session, "count", count, sizeof count));
    for (int i = 0; i < 50; i++) must(symmc_session_enqueue(all->session));
    return NULL;
}

static void *end_it(void *argument) {
    symmc_session *session = ((handed *)argument)->session;
    must(symmc_session_close(session));
    symmc_session_free(session);
    return NULL;
}

static void threads(void) {
    void *(*const PARTS[])(void *) = {open_it, run_it, end_it};
    symmc_plan *plan = planned(PROGRAM);
    symmc_group *groups[RANKS];
    handed all[RANKS];
    pthread_t threads[RANKS];
    must(symmc_group_threads(RANKS, groups));
    for (int part = 0; part < 3; part++) {
        for (int i = 0; i < RANKS; i++) {
            all[i].plan = plan;
            all[i].group = groups[i];
            expect(pthread_create(&threads[i], NULL, PARTS[part], &all[i]) == 0);
        }
        for (int i = 0; i < RANKS; i++) expect(pthread_join(threads[i], NULL) == 0);
    }
    for (int i = 0; i < RANKS; i++) symmc_group_free(groups[i]);
    symmc_plan_free(plan);
}

int main(int count, char **arguments) {
    expect(count == 2);
    alarm(120);
    nothing();
    names();
    options();
    files(arguments[1]);
    groups();
    threads();
    printf("nothing broke\n");
    return 0;
}
