/* Random sequences of valid and invalid calls of nearly all functions, with checked results. Ranks are threads.
 *
 * Usage: random_calls SEED SEQUENCES RANKS FOLDER. A sequence opens one or two sessions, makes random calls and ends the sessions in
 * a random way. Calls that all ranks make together are drawn from a generator that is equal on all ranks, other calls from one of
 * the rank. A model knows what each valid call returns. An invalid call returns a status with a text, creates no handle and
 * changes nothing. Prints the numbers of calls, errors and checked runs.
 */
#define _DEFAULT_SOURCE
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include "layer.h"

enum { MAX_PEERS = 4, LARGEST = 16, COLUMNS = 8, CELLS = LARGEST * COLUMNS, RESERVED = 1 << 16, LIMIT_MS = 60000 };

/* Where the input %x lies. */
typedef enum { OWN, BOUND, BUFFER } storage;

/* The state of one rank, as its calls have left it. */
typedef struct {
    uint32_t rank;
    uint64_t shared_random, own_random;
    symmc_session *session;
    symmc_buffer *symmetric[2];
    int64_t n;
    storage x_storage;
    int is_y_bound, weights_shared;
    float x[CELLS], w[COLUMNS * COLUMNS], state[COLUMNS], y[CELLS];
    unsigned long calls, errors, runs;
} rank_state;

static uint64_t seed;
static uint32_t ranks;
static char plan_path[4096], weights_path[4096];
static symmc_program *program;
static symmc_plan *plan, *small;
static symmc_group *groups[MAX_PEERS];
static rank_state states[MAX_PEERS];
static pthread_barrier_t barrier;

static void fail_at(const rank_state *self, const char *what, int line) {
    fprintf(stderr, "seed %llu, rank %u, call %lu, line %d: %s: %s\n", (unsigned long long)seed, (unsigned)self->rank, self->calls, line,
            what, symmc_last_error());
    _exit(1);
}
#define check(self, holds)                                 \
    do {                                                   \
        if (!(holds)) fail_at((self), #holds, __LINE__);   \
    } while (0)

static uint32_t draw(uint64_t *random, uint32_t below) {
    *random = *random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((*random >> 33) % below);
}

/* Checks a status of a call that must succeed, or of one that must fail. */
static void returned_at(rank_state *self, symmc_status status, int is_valid, const char *what, int line) {
    self->calls++;
    if ((status == SYMMC_OK) != is_valid || status == SYMMC_ERROR_DEFECT) fail_at(self, what, line);
    if (status == SYMMC_OK) return;
    self->errors++;
    check(self, symmc_last_error_kind() == status && symmc_last_error_rank() == symmc_last_error_culprit());
    const char *text = symmc_last_error();
    check(self, strlen(text) > 8);
    for (; *text; text++)
        if ((unsigned char)*text < ' ' && *text != '\n' && *text != '\t') fail_at(self, "a control character", line);
}
#define valid(self, call) returned_at((self), (call), 1, #call, __LINE__)
#define invalid(self, call) returned_at((self), (call), 0, #call, __LINE__)
/* A call that may do either, and its handle. */
#define creates(self, call, handle)                                                  \
    do {                                                                             \
        const symmc_status status_ = (call);                                         \
        returned_at((self), status_, status_ == SYMMC_OK, #call, __LINE__);          \
        check((self), (status_ == SYMMC_OK) == ((handle) != NULL));                  \
    } while (0)
#define creates_none(self, call, handle)       \
    do {                                       \
        memset(&(handle), 0x51, sizeof(handle)); \
        invalid((self), (call));               \
        check((self), (handle) == NULL);       \
    } while (0)

static void draw_numbers(rank_state *self, float *numbers, int count) {
    for (int i = 0; i < count; i++) numbers[i] = (float)((int)draw(&self->own_random, 9) - 4);
}

/* Gives %x other numbers in its present memory. */
static void fill_x(rank_state *self) {
    static float arrays[MAX_PEERS][CELLS];
    const size_t bytes = (size_t)self->n * COLUMNS * sizeof(float);
    symmc_buffer *buffer = NULL;
    symmc_memory memory;
    float *array = arrays[self->rank];
    draw_numbers(self, self->x, CELLS);
    if (self->x_storage == BOUND) {
        memcpy(array, self->x, sizeof self->x);
        valid(self, symmc_session_bind(self->session, "x", array, sizeof self->x));
    } else if (self->x_storage == BUFFER) {
        valid(self, symmc_session_allocate(self->session, sizeof self->x, &buffer));
        valid(self, symmc_buffer_write(buffer, 0, self->x, sizeof self->x));
        valid(self, symmc_session_bind_buffer(self->session, "in.0", buffer));
        symmc_buffer_free(buffer);
    } else if (draw(&self->own_random, 2)) {
        valid(self, symmc_session_write(self->session, "%x", self->x, bytes));
    } else {
        valid(self, symmc_session_address(self->session, "x", &memory));
        check(self, memory.bytes == bytes && memory.place != SYMMC_PLACE_BOUND);
        memcpy(memory.data, self->x, bytes);
    }
}

static void fill_w(rank_state *self) {
    symmc_weights *weights = NULL;
    if (self->weights_shared) valid(self, symmc_session_unbind(self->session, "w"));
    self->weights_shared = draw(&self->own_random, 3) == 0;
    if (self->weights_shared) {
        valid(self, symmc_weights_open(program, self->rank, weights_path, &weights));
        valid(self, symmc_session_share_weights(self->session, weights));
        symmc_weights_free(weights);
        for (int i = 0; i < COLUMNS * COLUMNS; i++) self->w[i] = (float)((i + (int)self->rank) % 5);
    } else {
        draw_numbers(self, self->w, COLUMNS * COLUMNS);
        valid(self, symmc_session_write(self->session, "w.weight", self->w, sizeof self->w));
    }
}

static void set_size(rank_state *self, int64_t n) {
    const char *symbol = "n";
    valid(self, symmc_session_set(self->session, &symbol, &n, 1));
    self->n = n;
    fill_x(self);
}

/* Runs started by all ranks, and their results. */
static void run(rank_state *self) {
    const int number = 1 + (int)draw(&self->shared_random, 3), wait = (int)draw(&self->shared_random, 3);
    float y[CELLS], state[COLUMNS];
    int done = 0;
    if (self->is_y_bound) valid(self, symmc_session_bind(self->session, "out.0", self->y, sizeof self->y));
    for (int i = 0; i < number; i++)
        valid(self, wait == 0 ? symmc_session_run(self->session) : symmc_session_enqueue(self->session));
    if (wait == 1) valid(self, symmc_session_wait(self->session, LIMIT_MS));
    while (wait == 2 && !done) {
        check(self, symmc_session_poll(self->session, &done) == SYMMC_OK);
        sched_yield();
    }
    for (int i = 0; i < COLUMNS; i++) self->state[i] += (float)number;
    valid(self, symmc_session_read(self->session, "next", state, sizeof state));
    check(self, memcmp(state, self->state, sizeof state) == 0);
    valid(self, symmc_session_read(self->session, "y", y, (size_t)self->n * COLUMNS * sizeof(float)));
    for (int i = 0; i < self->n; i++)
        for (int j = 0; j < COLUMNS; j++) {
            float sum = 0;
            for (uint32_t rank = 0; rank < ranks; rank++)
                for (int k = 0; k < COLUMNS; k++) sum += states[rank].x[i * COLUMNS + k] * states[rank].w[k * COLUMNS + j];
            check(self, y[i * COLUMNS + j] == sum && (!self->is_y_bound || self->y[i * COLUMNS + j] == sum));
        }
    self->runs += (unsigned long)number;
}

/* A call that all ranks make together. */
static void call_together(rank_state *self) {
    const char *symbol = "n";
    int64_t wrong[] = {0, -1, LARGEST + 1, INT64_MIN, INT64_MAX};
    const uint32_t which = draw(&self->shared_random, 12);
    symmc_buffer *buffer = NULL;
    pthread_barrier_wait(&barrier);
    if (which < 2) {
        set_size(self, 1 + draw(&self->shared_random, LARGEST));
    } else if (which == 2) {
        int64_t n = wrong[draw(&self->shared_random, 5)];
        invalid(self, symmc_session_set(self->session, &symbol, &n, 1));
    } else if (which == 3 && self->symmetric[0] == NULL) {
        valid(self, symmc_session_release(self->session));
        invalid(self, symmc_session_run(self->session));
        valid(self, symmc_session_resume(self->session));
        fill_x(self);
        fill_w(self);
    } else if (which == 3) {
        invalid(self, symmc_session_release(self->session));
    } else if (which == 4) {
        for (int i = 0; i < 2 && buffer == NULL; i++)
            if (self->symmetric[i] == NULL) {
                valid(self, symmc_session_allocate_symmetric(self->session, 1024, &self->symmetric[i]));
                buffer = self->symmetric[i];
            }
        creates_none(self, symmc_session_allocate_symmetric(self->session, SIZE_MAX / 4, &buffer), buffer);
    }
    pthread_barrier_wait(&barrier);
    if (which > 4) run(self);
    pthread_barrier_wait(&barrier);
}

/* Valid calls of one rank on its session between runs. */
static void call_session(rank_state *self) {
    symmc_memory memory;
    symmc_value value;
    symmc_session_memory taken;
    uint64_t made = 7, moved = 7;
    size_t count = 0;
    float read[CELLS];
    const size_t bytes = (size_t)self->n * COLUMNS * sizeof(float);
    switch (draw(&self->own_random, 10)) {
    case 0: fill_x(self); break;
    case 1:
        if (self->x_storage != OWN) valid(self, symmc_session_unbind(self->session, "x"));
        self->x_storage = (storage)draw(&self->own_random, 3);
        fill_x(self);
        break;
    case 2: fill_w(self); break;
    case 3:
        if (self->is_y_bound) valid(self, symmc_session_unbind(self->session, "out.0"));
        self->is_y_bound = !self->is_y_bound;
        break;
    case 4:
        draw_numbers(self, self->state, COLUMNS);
        valid(self, symmc_session_write(self->session, "state", self->state, sizeof self->state));
        break;
    case 5:
        valid(self, symmc_session_read(self->session, "in.0", read, bytes));
        check(self, memcmp(read, self->x, bytes) == 0);
        valid(self, symmc_session_read(self->session, "w", read, sizeof self->w));
        check(self, memcmp(read, self->w, sizeof self->w) == 0);
        break;
    case 6:
        valid(self, symmc_session_count(self->session, SYMMC_PARAMETER, &count));
        check(self, count == 1);
        valid(self, symmc_session_value(self->session, SYMMC_ARGUMENT, 0, &value));
        check(self, strcmp(value.name, "x") == 0 && value.bytes == bytes && value.axes == 2 && value.extents[0] == self->n);
        valid(self, symmc_session_value(self->session, SYMMC_OUTPUT, 1, &value));
        check(self, strcmp(value.replaces, "state") == 0 && value.dtype == SYMMC_F32);
        break;
    case 7:
        valid(self, symmc_session_address(self->session, "x", &memory));
        check(self, memory.bytes == bytes && (memory.place != SYMMC_PLACE_BOUND) == (self->x_storage == OWN));
        break;
    case 8:
        valid(self, symmc_session_taken(self->session, &taken));
        valid(self, symmc_session_recordings(self->session, &made, NULL, &moved));
        check(self, made == 0 && moved == 0 && symmc_session_rank(self->session) == self->rank);
        break;
    default:
        for (int i = 0; i < 2; i++)
            if (self->symmetric[i] != NULL) {
                check(self, symmc_buffer_bytes(self->symmetric[i]) == 1024 && symmc_buffer_address(self->symmetric[i]) != NULL);
                valid(self, symmc_buffer_write(self->symmetric[i], 0, self->x, 64));
                valid(self, symmc_buffer_read(self->symmetric[i], 0, read, 64));
                check(self, memcmp(read, self->x, 64) == 0);
                invalid(self, symmc_buffer_read(self->symmetric[i], 1000, read, 64));
            }
    }
}

/* Invalid calls of one rank on its session, which change nothing. */
static void call_wrongly(rank_state *self) {
    static const char *const NAMES[] = {"", "%", "q", "in.3", "out.9", "w.q", "in.-1", "\xff", "\n", "x ", NULL};
    const char *name = NAMES[draw(&self->own_random, 11)];
    symmc_session *session = self->session;
    symmc_buffer *buffer;
    symmc_memory memory;
    symmc_value value;
    float data[CELLS] = {0};
    int64_t n = 3, numbers[3] = {0};
    size_t count = 7, size = draw(&self->own_random, 2) ? SIZE_MAX - 9 : 3;
    void *odd = (char *)numbers + 1;
    switch (draw(&self->own_random, 16)) {
    case 0: invalid(self, symmc_session_write(session, name, data, 32)); break;
    case 1: invalid(self, symmc_session_read(session, name, data, 32)); break;
    case 2: invalid(self, symmc_session_bind(session, name, data, sizeof data)); break;
    case 3: invalid(self, symmc_session_unbind(session, name)); break;
    case 4: invalid(self, symmc_session_address(session, name, &memory)); break;
    case 5: invalid(self, symmc_session_set(session, &name, &n, 1)); break;
    case 6: invalid(self, symmc_session_write(session, "x", data, size)); break;
    case 7: invalid(self, symmc_session_read(session, "y", data, size)); break;
    case 8: invalid(self, symmc_session_bind(session, "x", (char *)data + 2, 64)); break;
    case 9: invalid(self, symmc_session_bind(session, "state", data, 31)); break;
    case 10: invalid(self, symmc_session_count(session, 3 + (int32_t)draw(&self->own_random, 9), &count)); break;
    case 11: invalid(self, symmc_session_value(session, SYMMC_ARGUMENT, 2 + size, &value)); break;
    case 12: creates_none(self, symmc_session_allocate(session, SIZE_MAX / 2, &buffer), buffer); break;
    case 13: invalid(self, symmc_session_set(session, (const char *const *)odd, &n, 1)); break;
    case 14: invalid(self, symmc_session_count(session, SYMMC_ARGUMENT, (size_t *)odd)); break;
    default:
        invalid(self, symmc_session_bind_buffer(session, "x", NULL));
        invalid(self, symmc_session_share_weights(session, NULL));
        invalid(self, symmc_session_poll(session, NULL));
        invalid(self, symmc_session_taken(session, NULL));
        invalid(self, symmc_session_enqueue_on(session, data));
    }
    check(self, count == 7);
}

/* Options, programs, plans and groups of one rank. */
static void call_others(rank_state *self) {
    static const char *const TEXT = "program \"small\" ranks 1\nsymbol m in 1..=8\narg %x: f32[m, 4]\n%y: f32[m, 4] = add %x, %x\nreturn %y\n";
    const int64_t upper[2] = {1 + draw(&self->own_random, 9), 8};
    const uint32_t bit = draw(&self->own_random, 7);
    char text[160];
    const char *path = "/nowhere";
    symmc_options *options = NULL;
    symmc_session_options *session_options = NULL;
    symmc_program *other = NULL;
    symmc_weights *weights = NULL;
    symmc_plan *compiled = NULL;
    symmc_group *many[3] = {NULL}, *group = NULL;
    symmc_session_memory memory;
    switch (draw(&self->own_random, 9)) {
    case 0:
        snprintf(text, sizeof text, "%s", TEXT);
        text[draw(&self->own_random, (uint32_t)strlen(TEXT))] ^= (char)(1 << bit);
        memset(&other, 0x51, sizeof other);
        creates(self, symmc_program_from_text(text, &other), other);
        if (other != NULL) symmc_program_ranks(other);
        symmc_program_free(other);
        break;
    case 1:
        valid(self, symmc_options_create(&options));
        invalid(self, symmc_options_set_machine(options, "abacus"));
        invalid(self, symmc_options_set_numerics(options, "nonsense"));
        valid(self, symmc_options_set_numerics(options, bit % 2 ? "exact" : "reassociate"));
        valid(self, symmc_options_set_coalesce(options, (int32_t)bit));
        valid(self, symmc_options_set_bind_arguments(options, (int32_t)bit % 2));
        valid(self, symmc_options_set_symmetric_limit(options, bit * 1000000));
        valid(self, symmc_options_set_buckets(options, "m", upper, 2));
        valid(self, symmc_program_from_text(TEXT, &other));
        returned_at(self, symmc_compile(other, options, &compiled), upper[0] < upper[1], "compile", __LINE__);
        check(self, (compiled != NULL) == (upper[0] < upper[1]));
        symmc_options_free(options);
        symmc_program_free(other);
        symmc_plan_free(compiled);
        break;
    case 2:
        valid(self, symmc_plan_read(plan_path, &compiled));
        check(self, symmc_plan_ranks(compiled) == ranks && strlen(symmc_plan_report(compiled)) > 40);
        check(self, symmc_plan_comparison(compiled) == NULL);
        valid(self, symmc_plan_compare(compiled, 1));
        check(self, symmc_plan_comparison(compiled) != NULL);
        symmc_plan_free(compiled);
        break;
    case 3:
        valid(self, symmc_plan_get_memory(plan, self->rank, NULL, &memory));
        invalid(self, symmc_plan_get_memory(plan, ranks, NULL, &memory));
        invalid(self, symmc_plan_write(plan, "/nowhere/plan.json"));
        creates_none(self, symmc_plan_read(path, &compiled), compiled);
        creates_none(self, symmc_compile(NULL, NULL, &compiled), compiled);
        break;
    case 4:
        valid(self, symmc_group_threads(3, many));
        check(self, symmc_group_rank(many[2]) == 2 && symmc_group_ranks(many[0]) == 3);
        for (int i = 0; i < 3; i++) symmc_group_free(many[i]);
        creates_none(self, symmc_group_bootstrap(3, 2, NULL, NULL, &group), group);
        creates_none(self, symmc_group_from_environment(&group), group);
        break;
    case 5:
        creates_none(self, symmc_program_open(&path, 1, bit, NULL, &other), other);
        creates_none(self, symmc_weights_open(program, 99, weights_path, &weights), weights);
        creates_none(self, symmc_weights_open(program, 0, path, &weights), weights);
        break;
    case 6:
        valid(self, symmc_session_options_create(&session_options));
        valid(self, symmc_session_options_set_limit(session_options, bit));
        invalid(self, symmc_session_options_set_stream(session_options, text));
        invalid(self, symmc_session_options_set_communicator(session_options, text, NULL, 2));
        invalid(self, symmc_session_options_set_arena(session_options, 0));
        invalid(self, symmc_session_options_set_products(session_options, 0));
        invalid(self, symmc_session_options_set_kept(session_options, 1));
        symmc_session_options_free(session_options);
        break;
    default: {
        /* A session of one rank within the sequence. */
        symmc_session *alone = NULL;
        float x[4] = {1, 2, 3, 4}, y[4] = {0};
        valid(self, symmc_group_threads(1, many));
        creates_none(self, symmc_session_open(NULL, many[0], NULL, &alone), alone);
        if (bit == 0) {
            creates_none(self, symmc_session_open(plan, ranks == 1 ? NULL : many[0], NULL, &alone), alone);
            symmc_group_free(many[0]);
            break;
        }
        valid(self, symmc_session_open(small, many[0], NULL, &alone));
        symmc_group_free(many[0]);
        invalid(self, symmc_session_run(alone));
        valid(self, symmc_session_bind(alone, "x", x, sizeof x));
        valid(self, symmc_session_bind(alone, "y", y, sizeof y));
        valid(self, symmc_session_run(alone));
        check(self, y[0] == 2 && y[3] == 8);
        if (bit == 1) valid(self, symmc_session_abort(alone, "random"));
        if (bit == 2) valid(self, symmc_session_close(alone));
        if (bit < 3) invalid(self, symmc_session_run(alone));
        symmc_session_free(alone);
    }
    }
}

/* Ends the session of all ranks, in order or by one rank. */
static void end_session(rank_state *self) {
    const uint32_t how = draw(&self->shared_random, 6), victim = draw(&self->shared_random, ranks);
    const int is_victim = self->rank == victim;
    pthread_barrier_wait(&barrier);
    if (how == 0 || (ranks == 1 && how > 3)) {
        valid(self, symmc_session_close(self->session));
    } else if (how == 1) {
        symmc_session_free(self->session);
        self->session = NULL;
    } else if (is_victim) {
        if (how == 2) valid(self, symmc_session_close(self->session));
        else if (how == 3) valid(self, symmc_session_abort(self->session, "random"));
        else if (how == 4) symmc_session_free(self->session);
        else set_size(self, self->n % LARGEST + 1);
        if (how == 4) self->session = NULL;
        if (how == 5) invalid(self, symmc_session_run(self->session));
    } else {
        /* The run of a peer that left, or that has other sizes. */
        symmc_status status = symmc_session_run(self->session);
        returned_at(self, status, 0, "a run without a peer", __LINE__);
        check(self, status == (how == 5 ? SYMMC_ERROR_DISAGREEMENT : SYMMC_ERROR_PEER));
        check(self, how == 5 || symmc_last_error_culprit() == victim);
        check(self, symmc_session_close(self->session) == status);
    }
    if (self->session != NULL && how != 1 && draw(&self->own_random, 2)) {
        symmc_session_close(self->session);
        invalid(self, symmc_session_run(self->session));
        invalid(self, symmc_session_close(self->session));
        invalid(self, symmc_session_abort(self->session, NULL));
    }
    /* Buffers outlive sessions. */
    for (int i = 0; i < 2; i++) {
        if (self->symmetric[i] != NULL && draw(&self->own_random, 2)) {
            symmc_session_free(self->session);
            self->session = NULL;
            valid(self, symmc_buffer_write(self->symmetric[i], 0, self->x, 64));
        }
        symmc_buffer_free(self->symmetric[i]);
        self->symmetric[i] = NULL;
    }
    symmc_session_free(self->session);
    pthread_barrier_wait(&barrier);
}

static void *run_sequence(void *argument) {
    rank_state *self = (rank_state *)argument;
    const char *symbol = "n";
    symmc_session_options *options = NULL;
    symmc_session *none;
    const int sessions = 1 + (int)draw(&self->shared_random, 2);
    for (int session = 0; session < sessions; session++) {
        valid(self, symmc_session_options_create(&options));
        valid(self, symmc_session_options_set_limit(options, LIMIT_MS));
        valid(self, symmc_session_options_set_symmetric(options, RESERVED));
        if (draw(&self->shared_random, 4) == 0) {
            const int is_wrong = draw(&self->shared_random, ranks) == self->rank;
            creates_none(self, symmc_session_open(is_wrong ? NULL : plan, groups[self->rank], options, &none), none);
        }
        valid(self, symmc_session_open(plan, groups[self->rank], options, &self->session));
        symmc_session_options_free(options);
        self->x_storage = OWN;
        self->is_y_bound = self->weights_shared = 0;
        invalid(self, symmc_session_run(self->session));
        invalid(self, symmc_session_write(self->session, "x", self->x, 32));
        invalid(self, symmc_session_set(self->session, &symbol, NULL, 1));
        set_size(self, 1 + draw(&self->shared_random, LARGEST));
        memset(self->state, 0, sizeof self->state);
        valid(self, symmc_session_write(self->session, "state", self->state, sizeof self->state));
        fill_w(self);
        for (int steps = 2 + (int)draw(&self->shared_random, 8); steps > 0; steps--) {
            for (int i = (int)draw(&self->own_random, 4); i > 0; i--) {
                const uint32_t kind = draw(&self->own_random, 8);
                if (kind < 3) call_session(self);
                else if (kind < 7) call_wrongly(self);
                else call_others(self);
            }
            call_together(self);
        }
        end_session(self);
    }
    return NULL;
}

static symmc_plan *planned(const char *text, symmc_program **source) {
    symmc_plan *result;
    must(symmc_program_from_text(text, source));
    must(symmc_compile(*source, NULL, &result));
    return result;
}

/* A safetensors file with a weight for each rank. */
static void write_weights(void) {
    char header[2048] = "{";
    uint64_t length;
    FILE *file = fopen(weights_path, "wb");
    expect(file != NULL);
    for (uint32_t rank = 0; rank < ranks; rank++) {
        const unsigned bytes = COLUMNS * COLUMNS * sizeof(float);
        snprintf(header + strlen(header), sizeof header - strlen(header),
                 "%s\"rank%u.w.weight\":{\"dtype\":\"F32\",\"shape\":[%d,%d],\"data_offsets\":[%u,%u]}", rank ? "," : "", (unsigned)rank,
                 COLUMNS, COLUMNS, rank * bytes, (rank + 1) * bytes);
    }
    strcat(header, "}");
    while (strlen(header) % 8) strcat(header, " ");
    length = strlen(header);
    expect(fwrite(&length, 8, 1, file) == 1 && fwrite(header, length, 1, file) == 1);
    for (uint32_t rank = 0; rank < ranks; rank++)
        for (int i = 0; i < COLUMNS * COLUMNS; i++) {
            const float number = (float)((i + (int)rank) % 5);
            expect(fwrite(&number, sizeof number, 1, file) == 1);
        }
    expect(fclose(file) == 0);
}

int main(int count, char **arguments) {
    unsigned long calls = 0, errors = 0, runs = 0, sequences;
    symmc_program *source;
    char text[1024];
    expect(count == 5);
    seed = strtoull(arguments[1], NULL, 10);
    sequences = strtoul(arguments[2], NULL, 10);
    ranks = (uint32_t)atoi(arguments[3]);
    expect(ranks >= 1 && ranks <= MAX_PEERS);
    snprintf(plan_path, sizeof plan_path, "%s/random.json", arguments[4]);
    snprintf(weights_path, sizeof weights_path, "%s/random.safetensors", arguments[4]);
    snprintf(text, sizeof text,
             "program \"random\" ranks %u\nsymbol n in 1..=16\ngroup @all world\narg %%x: f32[n, 8]\n"
             "param %%w: f32[8, 8] source \"weight\"\narg %%state: f32[4, 2]\n"
             "const %%one: f32[4, 2] = hex\"%s%s\"\n"
             "%%p: f32[n, 8] = matmul %%x, %%w\n%%y: f32[n, 8] = all_reduce %%p op=sum group=@all\n"
             "%%next: f32[4, 2] = add %%state, %%one\nreturn %%y\nmutate %%state = %%next\n",
             (unsigned)ranks, "0000803f0000803f0000803f0000803f", "0000803f0000803f0000803f0000803f");
    plan = planned(text, &program);
    small = planned("program \"small\" ranks 1\narg %x: f32[4]\n%y: f32[4] = add %x, %x\nreturn %y\n", &source);
    symmc_program_free(source);
    must(symmc_plan_write(plan, plan_path));
    write_weights();
    expect(pthread_barrier_init(&barrier, NULL, ranks) == 0);
    for (unsigned long sequence = 0; sequence < sequences; sequence++, seed++) {
        pthread_t threads[MAX_PEERS];
        alarm(180);
        must(symmc_group_threads(ranks, groups));
        for (uint32_t rank = 0; rank < ranks; rank++) {
            rank_state *self = &states[rank];
            self->rank = rank;
            self->shared_random = seed * 0x9e3779b97f4a7c15u;
            self->own_random = (seed + 1) * 0xd1342543de82ef95u + rank;
            for (int i = 0; i < 4; i++) draw(&self->shared_random, 2), draw(&self->own_random, 2);
            expect(pthread_create(&threads[rank], NULL, run_sequence, self) == 0);
        }
        for (uint32_t rank = 0; rank < ranks; rank++) expect(pthread_join(threads[rank], NULL) == 0);
        for (uint32_t rank = 0; rank < ranks; rank++) symmc_group_free(groups[rank]);
    }
    for (uint32_t rank = 0; rank < ranks; rank++) {
        calls += states[rank].calls;
        errors += states[rank].errors;
        runs += states[rank].runs;
    }
    symmc_plan_free(plan);
    symmc_plan_free(small);
    symmc_program_free(program);
    printf("%lu sequences of %u ranks: %lu calls, %lu errors, %lu checked runs\n", sequences, (unsigned)ranks, calls, errors, runs);
    return 0;
}
