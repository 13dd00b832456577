/* Two GPUs in one process, a thread for each, with everything in memory of this program.
 *
 *     cc -Ifrontends/capi/include examples/c/gpus.c -Ltarget/release -lsymmc -Wl,-rpath,$PWD/target/release -ldl -pthread -o gpus
 *
 * The driver's API allocates the input, the weight, the output, and a state that runs change in place. Runs are enqueued on a
 * stream of this program, between copies. The same runs on the host give the expected results. Exits with 77 if there are not
 * two GPUs.
 *
 * The functions of the driver that it uses are declared here and looked up in libcuda.so.1 when it starts. The program therefore
 * compiles on machines without CUDA, and names what is missing. An engine includes cuda.h, or calls the runtime's API.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "symmc.h"

enum { RANKS = 2, ROWS = 64, WIDE = 256, NARROW = 128, RUNS = 6, NO_GPUS = 77 };

static const char *const PROGRAM =
    "program \"gpus\" ranks 2\n"
    "symbol n in 1..=64\n"
    "group @all world\n"
    "arg %x: f32[n, 256]\n"
    "param %w: f32[256, 128] source \"layer.weight\"\n"
    "arg %state: f32[128]\n"
    "%part: f32[n, 128] = matmul %x, %w\n"
    "%y: f32[n, 128] = all_reduce %part op=sum group=@all\n"
    "%next: f32[128] = add %state, %state\n"
    "return %y\n"
    "mutate %state = %next\n";

/* The sizes of the runs. The buckets below serve them. */
static const int64_t SIZES[RUNS] = {64, 3, 8, 64, 3, 1};

/* ---- The driver ---- */

typedef unsigned long long address;

static struct {
    int (*init)(unsigned flags);
    int (*count)(int *gpus);
    int (*retain)(void **context, int gpu);
    int (*release)(int gpu);
    int (*enter)(void *context);
    int (*allocate)(address *memory, size_t bytes);
    int (*free)(address memory);
    int (*create)(void **stream, unsigned flags);
    int (*synchronize)(void *stream);
    int (*destroy)(void *stream);
    int (*upload)(address to, const void *from, size_t bytes, void *stream);
    int (*download)(void *to, address from, size_t bytes, void *stream);
} driver;

static void no_gpus(const char *found) {
    fprintf(stderr, "this example needs two GPUs: %s\n", found);
    exit(NO_GPUS);
}

/* `function` points to a function pointer. The address is copied, as C does not convert pointers to data to pointers to functions. */
static void look_up(void *library, const char *name, void *function) {
    char text[64];
    void *found = dlsym(library, name);
    snprintf(text, sizeof text, "the driver lacks %s", name);
    if (found == NULL) no_gpus(text);
    memcpy(function, &found, sizeof found);
}

static void open_driver(void) {
    char text[64];
    int gpus = 0, error;
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL) no_gpus("libcuda.so.1 was not found");
    look_up(library, "cuInit", &driver.init);
    look_up(library, "cuDeviceGetCount", &driver.count);
    look_up(library, "cuDevicePrimaryCtxRetain", &driver.retain);
    look_up(library, "cuDevicePrimaryCtxRelease_v2", &driver.release);
    look_up(library, "cuCtxSetCurrent", &driver.enter);
    look_up(library, "cuMemAlloc_v2", &driver.allocate);
    look_up(library, "cuMemFree_v2", &driver.free);
    look_up(library, "cuStreamCreate", &driver.create);
    look_up(library, "cuStreamSynchronize", &driver.synchronize);
    look_up(library, "cuStreamDestroy_v2", &driver.destroy);
    look_up(library, "cuMemcpyHtoDAsync_v2", &driver.upload);
    look_up(library, "cuMemcpyDtoHAsync_v2", &driver.download);
    error = driver.init(0);
    if (error == 0) error = driver.count(&gpus);
    snprintf(text, sizeof text, error == 0 ? "the driver has %d" : "the driver gives error %d", error == 0 ? gpus : error);
    if (error != 0 || gpus < RANKS) no_gpus(text);
}

/* ---- Failures ---- */

static void must_at(symmc_status status, int line) {
    if (status == SYMMC_OK) return;
    fprintf(stderr, "line %d: error of kind %d: %s\n", line, (int)status, symmc_last_error());
    exit(1);
}
#define must(call) must_at((call), __LINE__)

static void expect_at(int holds, const char *what, int line) {
    if (holds) return;
    fprintf(stderr, "line %d: expected %s\n", line, what);
    exit(1);
}
#define expect(holds) expect_at((holds), #holds, __LINE__)
#define cuda(call) expect((call) == 0)

/* ---- The ranks ---- */

typedef struct {
    const symmc_plan *on_host, *on_gpus;
    symmc_group *group;
} rank_arguments;

/* The numbers of a rank. They are small integers: sums of their products are exact in every order. */
typedef struct {
    float x[ROWS * WIDE], w[WIDE * NARROW], state[NARROW], y[RUNS][ROWS * NARROW];
} numbers;

static numbers *numbers_of(uint32_t rank) {
    numbers *all = (numbers *)calloc(1, sizeof *all);
    expect(all != NULL);
    for (int i = 0; i < ROWS * WIDE; i++) all->x[i] = (float)((i * 7 + (int)rank) % 8);
    for (int i = 0; i < WIDE * NARROW; i++) all->w[i] = (float)((i * 5 + (int)rank * 3) % 7 - 3);
    for (int i = 0; i < NARROW; i++) all->state[i] = (float)(i + 1);
    return all;
}

static void set_rows(symmc_session *session, int64_t rows) {
    const char *symbol = "n";
    must(symmc_session_set(session, &symbol, &rows, 1));
}

static void run_on_host(const rank_arguments *rank, numbers *own) {
    symmc_session *session;
    must(symmc_session_open(rank->on_host, rank->group, NULL, &session));
    must(symmc_session_bind(session, "x", own->x, sizeof own->x));
    must(symmc_session_bind(session, "layer.weight", own->w, sizeof own->w));
    must(symmc_session_bind(session, "state", own->state, sizeof own->state));
    for (int run = 0; run < RUNS; run++) {
        set_rows(session, SIZES[run]);
        must(symmc_session_bind(session, "out.0", own->y[run], sizeof own->y[run]));
        must(symmc_session_run(session));
    }
    must(symmc_session_close(session));
    symmc_session_free(session);
}

/* An address of the GPU as a pointer. */
static void *at(address memory) { return (void *)(size_t)memory; }

static void run_on_gpu(const rank_arguments *rank, numbers *own) {
    const uint32_t gpu = symmc_group_rank(rank->group);
    symmc_session_options *options;
    symmc_session_memory told, taken;
    symmc_session *session;
    address x, w, state, y;
    void *context, *stream;
    cuda(driver.retain(&context, (int)gpu));
    cuda(driver.enter(context));
    cuda(driver.create(&stream, 0));
    cuda(driver.allocate(&x, sizeof own->x));
    cuda(driver.allocate(&w, sizeof own->w));
    cuda(driver.allocate(&state, sizeof own->state));
    cuda(driver.allocate(&y, sizeof own->y[0]));
    cuda(driver.upload(w, own->w, sizeof own->w, stream));
    cuda(driver.upload(state, own->state, sizeof own->state, stream));

    must(symmc_session_options_create(&options));
    must(symmc_session_options_set_limit(options, 20000));
    must(symmc_session_options_set_gpu(options, gpu));
    must(symmc_plan_get_memory(rank->on_gpus, gpu, options, &told));
    must(symmc_session_open(rank->on_gpus, rank->group, options, &session));
    symmc_session_options_free(options);
    must(symmc_session_bind(session, "x", at(x), sizeof own->x));
    must(symmc_session_bind(session, "layer.weight", at(w), sizeof own->w));
    must(symmc_session_bind(session, "state", at(state), sizeof own->state));
    must(symmc_session_bind(session, "out.0", at(y), sizeof own->y[0]));
    for (int run = 0; run < RUNS; run++) {
        const size_t rows = (size_t)SIZES[run];
        set_rows(session, SIZES[run]);
        /* Each waits on the GPU for the one before it. This thread waits for none. */
        cuda(driver.upload(x, own->x, rows * WIDE * sizeof(float), stream));
        must(symmc_session_enqueue_on(session, stream));
        cuda(driver.download(own->y[run], y, rows * NARROW * sizeof(float), stream));
    }
    cuda(driver.download(own->state, state, sizeof own->state, stream));
    cuda(driver.synchronize(stream));
    must(symmc_session_wait(session, 20000));

    must(symmc_session_taken(session, &taken));
    expect(taken.ordinary == told.ordinary && taken.symmetric == told.symmetric && taken.flags == told.flags);
    expect(taken.scratch <= told.scratch && taken.held <= told.held);
    if (gpu == 0)
        printf("a session takes %llu bytes of its GPU\n",
               (unsigned long long)(taken.ordinary + taken.symmetric + taken.flags + taken.scratch + taken.held));
    must(symmc_session_close(session));
    symmc_session_free(session);
    /* The memory that the session used still belongs to this program. */
    cuda(driver.free(x));
    cuda(driver.free(w));
    cuda(driver.free(state));
    cuda(driver.free(y));
    cuda(driver.destroy(stream));
    cuda(driver.release((int)gpu));
}

static void *rank_thread(void *argument) {
    const rank_arguments *rank = (const rank_arguments *)argument;
    numbers *host = numbers_of(symmc_group_rank(rank->group)), *gpu = numbers_of(symmc_group_rank(rank->group));
    run_on_host(rank, host);
    run_on_gpu(rank, gpu);
    for (int run = 0; run < RUNS; run++)
        expect(memcmp(host->y[run], gpu->y[run], (size_t)SIZES[run] * NARROW * sizeof(float)) == 0);
    expect(memcmp(host->state, gpu->state, sizeof host->state) == 0);
    expect(gpu->state[0] == (float)(1 << RUNS) && host->y[0][1] != 0);
    free(host);
    free(gpu);
    return NULL;
}

static symmc_plan *compiled(const char *machine) {
    const int64_t upper[] = {8, ROWS};
    symmc_program *program;
    symmc_options *options;
    symmc_plan *plan;
    must(symmc_program_from_text(PROGRAM, &program));
    must(symmc_options_create(&options));
    must(symmc_options_set_machine(options, machine));
    must(symmc_options_set_buckets(options, "n", upper, 2));
    must(symmc_compile(program, options, &plan));
    symmc_options_free(options);
    symmc_program_free(program);
    return plan;
}

int main(void) {
    symmc_plan *on_host, *on_gpus;
    symmc_group *groups[RANKS];
    rank_arguments arguments[RANKS];
    pthread_t threads[RANKS];
    expect(symmc_abi_version() == SYMMC_ABI_VERSION);
    open_driver();
    on_host = compiled("host");
    on_gpus = compiled("h200x2");
    must(symmc_group_threads(RANKS, groups));
    for (int i = 0; i < RANKS; i++) {
        arguments[i].on_host = on_host;
        arguments[i].on_gpus = on_gpus;
        arguments[i].group = groups[i];
        expect(pthread_create(&threads[i], NULL, rank_thread, &arguments[i]) == 0);
    }
    for (int i = 0; i < RANKS; i++) {
        expect(pthread_join(threads[i], NULL) == 0);
        symmc_group_free(groups[i]);
    }
    symmc_plan_free(on_host);
    symmc_plan_free(on_gpus);
    printf("%d GPUs agree with the host\n", RANKS);
    return 0;
}
