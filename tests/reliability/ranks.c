/* One rank of the trials: opens a session again and again, runs it, and leaves as it is told.
 *
 * Usage: ranks LIMIT_MS ACTION AT. After AT runs this rank does ACTION: `free` (without a close), `abort`, `exit` (of the
 * process), `close` (in order), or `none`. An error is printed as one line: culprit, reporter, text.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "symmc.h"

static float x[512], y[512];

static void must(symmc_status status) {
    if (status == SYMMC_OK) return;
    printf("ERROR %lld %lld %s\n", (long long)symmc_last_error_culprit(), (long long)symmc_last_error_reporter(),
           symmc_last_error());
    exit(1);
}

int main(int count, char **arguments) {
    symmc_program *program;
    symmc_plan *plan;
    symmc_group *group;
    symmc_session_options *options;
    const char *action = count > 2 ? arguments[2] : "none";
    long at = count > 3 ? atol(arguments[3]) : 0;
    const char *text = getenv("TRIAL_PROGRAM");
    setvbuf(stdout, NULL, _IOLBF, 0);
    must(symmc_program_from_text(text == NULL ? "" : text, &program));
    must(symmc_compile(program, NULL, &plan));
    must(symmc_group_from_environment(&group));
    must(symmc_session_options_create(&options));
    must(symmc_session_options_set_limit(options, (uint64_t)atol(arguments[1])));
    for (long run = 0;;) {
        symmc_session *session;
        must(symmc_session_open(plan, group, options, &session));
        must(symmc_session_bind(session, "x", x, sizeof x));
        must(symmc_session_bind(session, "out.0", y, sizeof y));
        for (int i = 0; i < 40; i++, run++) {
            if (run == at && strcmp(action, "none") != 0) {
                printf("LEAVES\n");
                if (strcmp(action, "exit") == 0) exit(7);
                if (strcmp(action, "abort") == 0) must(symmc_session_abort(session, "the trial"));
                if (strcmp(action, "close") == 0) must(symmc_session_close(session));
                symmc_session_free(session);
                return 0;
            }
            if (i % 3 == 0) {
                must(symmc_session_enqueue(session));
                must(symmc_session_wait(session, 600000));
            } else {
                must(symmc_session_run(session));
            }
            if (run == 0) printf("RUNS\n");
        }
        must(symmc_session_close(session));
        symmc_session_free(session);
    }
}
