/* Weights of a file are read once for each rank and shared by two sessions: prefill of the generating decoder, run twice on
 * caches in the memory of the session. The arguments are the program and its tensors; the first token goes to stdout.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "symmc.h"

enum { RANKS = 2, CACHES = 4, PROMPT = 13 };

static const char *tensors;
static symmc_program *program;
static symmc_plan *plan;

static void must(symmc_status status) {
    if (status == SYMMC_OK) return;
    fprintf(stderr, "kind %d: %s\n", (int)status, symmc_last_error());
    exit(1);
}

static int64_t first_token(symmc_session *session) {
    const char *prompt = "A collective ";
    int64_t ids[PROMPT], position = 0, token = 0;
    symmc_memory memory;
    char name[16];
    for (int i = 0; i < PROMPT; i++) ids[i] = prompt[i];
    must(symmc_session_write(session, "input_ids", ids, sizeof ids));
    must(symmc_session_write(session, "cache_position", &position, sizeof position));
    for (int i = 0; i < CACHES; i++) {
        snprintf(name, sizeof name, "cache_%d", i % CACHES);
        must(symmc_session_address(session, name, &memory));
        memset(memory.data, 0, memory.bytes);
    }
    must(symmc_session_run(session));
    must(symmc_session_read(session, "out.0", &token, sizeof token));
    return token;
}

static void *rank(void *argument) {
    symmc_group *group = (symmc_group *)argument;
    symmc_session *sessions[2];
    symmc_weights *weights;
    int64_t tokens[2];
    const char *symbol = "tokens";
    const int64_t prompt = PROMPT;
    must(symmc_weights_open(program, symmc_group_rank(group), tensors, &weights));
    for (int i = 0; i < 2; i++) {
        must(symmc_session_open(plan, group, NULL, &sessions[i]));
        must(symmc_session_set(sessions[i], &symbol, &prompt, 1));
        must(symmc_session_share_weights(sessions[i], weights));
    }
    /* The sessions keep the weights that they need. */
    symmc_weights_free(weights);
    for (int i = 0; i < 2; i++) tokens[i] = first_token(sessions[i]);
    for (int i = 0; i < 2; i++) {
        must(symmc_session_close(sessions[i]));
        symmc_session_free(sessions[i]);
    }
    if (tokens[0] != tokens[1]) exit(1);
    if (symmc_group_rank(group) == 0) printf("%c", (char)tokens[0]);
    return NULL;
}

int main(int count, char **arguments) {
    symmc_group *groups[RANKS];
    pthread_t threads[RANKS];
    const char *path;
    if (count != 3) return 2;
    path = arguments[1];
    tensors = arguments[2];
    must(symmc_program_open(&path, 1, 0, tensors, &program));
    if (symmc_program_ranks(program) != RANKS) return 1;
    must(symmc_compile(program, NULL, &plan));
    must(symmc_group_threads(RANKS, groups));
    for (int i = 0; i < RANKS; i++)
        if (pthread_create(&threads[i], NULL, rank, groups[i]) != 0) return 1;
    for (int i = 0; i < RANKS; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < RANKS; i++) symmc_group_free(groups[i]);
    symmc_plan_free(plan);
    symmc_program_free(program);
    return 0;
}
