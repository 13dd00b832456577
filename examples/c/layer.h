/* Code that the examples share: a small program of two ranks, and the work of each rank.
 *
 * Every call of symmc returns a status. If one is not SYMMC_OK, `must` prints the message of the error and ends the process.
 */
#ifndef LAYER_H
#define LAYER_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "symmc.h"

enum { RANKS = 2, ROWS = 64, WIDE = 8, NARROW = 4 };

/* A layer whose weights are divided by rows: each rank has a part of the sum. Every run updates `count` in place. */
static const char *const PROGRAM =
    "program \"layer\" ranks 2\n"
    "symbol n in 1..=64\n"
    "group @all world\n"
    "arg %x: f32[n, 8]\n"
    "param %w: f32[8, 4] source \"layer.weight\"\n"
    "arg %count: f32[4]\n"
    "const %one: f32[4] = hex\"0000803f0000803f0000803f0000803f\"\n"
    "%part: f32[n, 4] = matmul %x, %w\n"
    "%y: f32[n, 4] = all_reduce %part op=sum group=@all\n"
    "%next: f32[4] = add %count, %one\n"
    "return %y\n"
    "mutate %count = %next\n";

static inline void must_at(symmc_status status, int line) {
    if (status != SYMMC_OK) {
        fprintf(stderr, "line %d: error of kind %d: %s\n", line, (int)status, symmc_last_error());
        exit(1);
    }
}
#define must(call) must_at((call), __LINE__)

static inline void expect_at(int holds, const char *what, int line) {
    if (!holds) {
        fprintf(stderr, "line %d: expected %s\n", line, what);
        exit(1);
    }
}
#define expect(holds) expect_at((holds), #holds, __LINE__)

/* The program and the plan, which must be equal on every rank. */
static inline symmc_plan *compiled(void) {
    symmc_program *program;
    symmc_options *options;
    symmc_plan *plan;
    const int64_t upper[] = {8, ROWS};
    must(symmc_program_from_text(PROGRAM, &program));
    must(symmc_options_create(&options));
    must(symmc_options_set_machine(options, "host"));
    must(symmc_options_set_buckets(options, "n", upper, 2));
    must(symmc_compile(program, options, &plan));
    symmc_options_free(options);
    symmc_program_free(program);
    return plan;
}

static inline void set_rows(symmc_session *session, int64_t rows) {
    const char *symbol = "n";
    must(symmc_session_set(session, &symbol, &rows, 1));
}

/* Each rank contributes rank + 1 to every sum, which is RANKS * (RANKS + 1) / 2. */
static inline void expect_rows(const float *y, int rows) {
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < NARROW; j++)
            expect(y[i * NARROW + j] == (float)(WIDE * (i + 1) * (j + 1) * RANKS * (RANKS + 1) / 2));
}

/* Runs one rank from its first run to its last, in memory of this program. */
static inline void run_rank(const symmc_plan *plan, symmc_group *group) {
    static const char *const KINDS[] = {"argument", "parameter", "output"};
    float x[ROWS * WIDE], w[WIDE * NARROW], y[ROWS * NARROW], count[NARROW] = {0};
    symmc_session_options *options;
    symmc_session *session;
    symmc_session_memory told, taken;
    symmc_value value;
    symmc_memory memory;
    size_t values;
    int done = 0;
    const uint32_t rank = symmc_group_rank(group);
    for (int i = 0; i < ROWS * WIDE; i++) x[i] = (float)(i / WIDE + 1);
    for (int i = 0; i < WIDE * NARROW; i++) w[i] = (float)((rank + 1) * (uint32_t)(i % NARROW + 1));

    /* Returns when all ranks have opened their sessions. */
    must(symmc_session_options_create(&options));
    must(symmc_session_options_set_limit(options, 20000));
    must(symmc_session_open(plan, group, options, &session));
    symmc_session_options_free(options);
    expect(symmc_session_rank(session) == rank);
    set_rows(session, ROWS);
    for (int32_t kind = SYMMC_ARGUMENT; rank == 0 && kind <= SYMMC_OUTPUT; kind++) {
        must(symmc_session_count(session, kind, &values));
        for (size_t i = 0; i < values; i++) {
            must(symmc_session_value(session, kind, i, &value));
            printf("%s %s: %zu bytes, %zu axes\n", KINDS[kind], value.name, value.bytes, value.axes);
        }
    }

    /* Memory of this function, which runs read and write in place. */
    must(symmc_session_bind(session, "x", x, sizeof x));
    must(symmc_session_bind(session, "out.0", y, sizeof y));
    must(symmc_session_bind(session, "count", count, sizeof count));
    must(symmc_session_write(session, "layer.weight", w, sizeof w));
    must(symmc_session_address(session, "x", &memory));
    expect(memory.data == x && memory.place == SYMMC_PLACE_BOUND);
    must(symmc_session_run(session));
    expect_rows(y, ROWS);

    /* Other sizes, and runs that are enqueued one after another. */
    for (int64_t rows = 1; rows <= 10; rows++) {
        set_rows(session, rows);
        must(symmc_session_enqueue(session));
    }
    must(symmc_session_poll(session, &done));
    must(symmc_session_wait(session, 20000));
    must(symmc_session_poll(session, &done));
    expect(done == 1);
    expect_rows(y, 10);
    expect(count[0] == 11.0f && count[NARROW - 1] == 11.0f);

    /* An invalid size is refused by name, and the sizes do not change. */
    expect(symmc_session_bind(session, "x", (char *)x + 1, sizeof x - 1) == SYMMC_ERROR_INPUT);
    expect(strstr(symmc_last_error(), "%x") != NULL);
    expect(symmc_last_error_kind() == SYMMC_ERROR_INPUT);

    /* The session uses the memory that was announced. Only the weight has memory of the session; the other inputs and outputs are
     * bound. */
    must(symmc_plan_get_memory(plan, rank, NULL, &told));
    must(symmc_session_taken(session, &taken));
    expect(taken.ordinary == told.ordinary && taken.symmetric == told.symmetric && taken.flags == told.flags);
    expect(taken.scratch <= told.scratch && taken.held == sizeof w && taken.held < told.held);

    /* The arenas are released and allocated again. */
    must(symmc_session_release(session));
    must(symmc_session_taken(session, &taken));
    expect(taken.ordinary == 0 && taken.symmetric == 0 && taken.scratch == 0);
    must(symmc_session_resume(session));
    must(symmc_session_write(session, "layer.weight", w, sizeof w));
    must(symmc_session_unbind(session, "out.0"));
    must(symmc_session_run(session));
    must(symmc_session_read(session, "out.0", y, 10 * NARROW * sizeof(float)));
    expect_rows(y, 10);
    must(symmc_session_close(session));
    symmc_session_free(session);
}

#endif
