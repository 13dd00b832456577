/* symmc: compiles tensor programs with communication into plans, proves the plans safe, and runs them.
 *
 * The rules of this comment hold for all functions; a function documents only requirements beyond them.
 *
 * Ownership. A handle is a pointer to a type that only the library knows. The caller that received a handle frees it exactly
 * once, by the function of its type whose name ends with _free, in any order and from any thread. No other function frees a
 * handle: a session that was closed or aborted is freed as well. Handles keep what they need of each other: a session continues
 * when its plan, group, options, weights and buffers are freed. A function has read its other arguments when it returns, unless
 * it says otherwise.
 *
 * Arguments. Texts are UTF-8 and end with a NUL. Pointers to arrays and to results are aligned for their elements: other ones
 * give SYMMC_ERROR_INPUT, and nothing is read or written. Bytes that are copied (void *) need no alignment.
 *
 * Errors. Functions that can fail return SYMMC_OK or the kind of the error. symmc_last_error returns the message of the last
 * error of the calling thread. After an error, a handle that the call was to create is NULL, and other results are unchanged. A
 * defect of the library itself gives the status SYMMC_ERROR_DEFECT: no exception is thrown through the caller.
 *
 * Threads. Any thread may call any function at any time, also in destructors of static objects and of a thread's keys, and in
 * atexit handlers; only signal handlers may not. While a call that takes a handle without const is in progress, no other call
 * takes this handle. Calls that take it as const may overlap. Sessions open and run together with the other ranks of their
 * group, so ranks of one process need a thread each.
 *
 * Cancellation. No function is a cancellation point: a thread that pthread_cancel cancels during a call ends after the call. A
 * function of the caller that the library calls returns normally. It does not throw, jump or call pthread_exit.
 *
 * Forks. A process that used the library has threads, which a fork does not copy: fork before, or call exec in the child. In the
 * child, calls on a session of the parent return SYMMC_ERROR_INPUT if they need its memory, its runs or other ranks. Closing,
 * aborting and freeing it do not affect the parent. A group in which the parent opened sessions opens none in the child.
 *
 * Generated from the sources of the library; do not edit.
 */
#ifndef SYMMC_H
#define SYMMC_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* An opened program. */
typedef struct symmc_program symmc_program;

/* The weights of one rank, in memory, which several sessions may read. */
typedef struct symmc_weights symmc_weights;

/* The options of a compilation. */
typedef struct symmc_options symmc_options;

/* A plan that was proved safe. */
typedef struct symmc_plan symmc_plan;

/* One rank's membership in a group of ranks. The rank opens sessions in it one after the other, in the same order as the other
 * ranks. */
typedef struct symmc_group symmc_group;

/* The options of a session. */
typedef struct symmc_session_options symmc_session_options;

/* A plan on one rank, ready to run again and again. After a run has failed, calls that run, wait, read, write or close return
 * its error. `symmc_session_close` and `symmc_session_abort` end the session and keep the handle: later calls except
 * `symmc_session_free` and `symmc_session_rank` return `SYMMC_ERROR_INPUT`. */
typedef struct symmc_session symmc_session;

/* Memory of a device, the host or a GPU, that belongs to the caller: for weights, caches, activations and outputs. */
typedef struct symmc_buffer symmc_buffer;

/* ---- The C interface: opaque handles, status codes, and the text of the last error of each thread. ---- */

/* The version of this interface. It equals the result of `symmc_abi_version` if the header fits the loaded library. Programs
 * that were compiled with another version are not compatible. */
#define SYMMC_ABI_VERSION 3

/* The `SYMMC_ABI_VERSION` of the loaded library. */
uint32_t symmc_abi_version(void);

/* The version of symmc, such as `0.1.0`. The library owns the text, which is always valid. */
const char *symmc_version(void);

/* ---- Statuses, and the last error of each thread. ---- */

/* Success. */
#define SYMMC_OK 0
/* An input is invalid: a file, an argument, a tensor, the size of a symbol. */
#define SYMMC_ERROR_INPUT 1
/* The input is valid, but this build, this backend or this machine cannot plan or run it. */
#define SYMMC_ERROR_UNSUPPORTED 2
/* More memory, threads or files are needed than a limit or the system allows. */
#define SYMMC_ERROR_RESOURCES 3
/* The ranks of one session were started with different plans, versions or sizes. */
#define SYMMC_ERROR_DISAGREEMENT 4
/* A plan is not proved safe, or computes something else than its source. */
#define SYMMC_ERROR_CHECK 5
/* A step failed, or the system refused something that a run needs. */
#define SYMMC_ERROR_RUN 6
/* A rank died, did not join or made no progress. */
#define SYMMC_ERROR_PEER 7
/* A defect of symmc itself, whatever the input. */
#define SYMMC_ERROR_DEFECT 8

/* The result of a call: `SYMMC_OK`, or the kind of its error. */
typedef int32_t symmc_status;

/* The status of the last failed call of this thread, `SYMMC_OK` if none failed. Successful calls do not change it. */
symmc_status symmc_last_error_kind(void);

/* The message of the last failed call of this thread. It names the thing, what was expected and what was found. It is empty if
 * no call failed. The library owns the text, which is valid until another call of this thread fails or the thread ends. While
 * a thread or the process ends (in a destructor of a thread's key or of a static object, and in an `atexit` handler) the
 * message may be shortened to 511 bytes, and its node and op are not known. */
const char *symmc_last_error(void);

/* The rank at fault in the last error of this thread: the one that failed, died, stopped, left, did not join, or differs from
 * the others. It is never a rank that only waited. -1 if there is no such rank or it is not known. */
int64_t symmc_last_error_culprit(void);

/* The rank that noticed the last error of this thread, -1 if it is not known. Culprit and reporter are equal on all ranks. */
int64_t symmc_last_error_reporter(void);

/* Another name of symmc_last_error_culprit. */
int64_t symmc_last_error_rank(void);

/* The step of the last error of this thread, counted from 0 in its bucket; -1 if the error is not about a step. */
int64_t symmc_last_error_step(void);

/* The node of the last error of this thread, as the name of its first result; NULL if the error is not about a node. Valid as
 * long as the message. */
const char *symmc_last_error_node(void);

/* The op of that node; NULL if it is not known. Valid as long as the message. */
const char *symmc_last_error_op(void);

/* ---- Programs, and the weights of a rank. ---- */

/* Opens a program: one `.pt2`, `.onnx` or `.symm` file, or the files of all ranks in order. `ranks` is the number of ranks, or 0
 * for the number that the program fixes. `tensors` is the safetensors file that the program will run on, or NULL. It gives the
 * number of ranks if nothing else does, and constants that have another value in it become parameters. */
symmc_status symmc_program_open(
    const char *const *paths,
    size_t count,
    uint32_t ranks,
    const char *tensors,
    symmc_program **out);

/* Parses a program in text form. */
symmc_status symmc_program_from_text(const char *program, symmc_program **out);

/* The number of ranks of a program; 0 if it is not fixed, and for NULL. */
uint32_t symmc_program_ranks(const symmc_program *program);

/* Frees a program. NULL is ignored. */
void symmc_program_free(symmc_program *program);

/* Loads the weights of a rank into memory: from the safetensors file `tensors`, whose names are `rank<r>.w.<name>`, or for NULL
 * the weights that came with the program. */
symmc_status symmc_weights_open(const symmc_program *program, uint32_t rank, const char *tensors, symmc_weights **out);

/* Frees weights. NULL is ignored. */
void symmc_weights_free(symmc_weights *weights);

/* ---- Options of compilations, and plans. ---- */

/* Creates options with the defaults: for the host, one bucket. */
symmc_status symmc_options_create(symmc_options **out);

/* Sets the machine for which choices are made: the name of a built-in profile, such as `host` or `h200x8`, or the path of a
 * profile that `symmc tune` wrote. */
symmc_status symmc_options_set_machine(symmc_options *options, const char *machine);

/* Divides the range of a symbol into buckets. `upper` is the largest value of each, in ascending order. The buckets of other
 * symbols do not change. */
symmc_status symmc_options_set_buckets(symmc_options *options, const char *symbol, const int64_t *upper, size_t count);

/* Sets whether arguments that must be symmetric are stored in the symmetric memory of the plan. The caller then writes them there
 * (`symmc_session_address`), and no run copies them. 1 for all such arguments, 0 for none. */
symmc_status symmc_options_set_bind_arguments(symmc_options *options, int32_t all);

/* Sets the largest size of the symmetric arena in bytes; 0 for no limit. */
symmc_status symmc_options_set_symmetric_limit(symmc_options *options, uint64_t bytes);

/* Sets whether several collectives may be combined into one if a run is estimated to become faster: 1 (the default) or 0. */
symmc_status symmc_options_set_coalesce(symmc_options *options, int32_t coalesce);

/* Sets the changes of rounding that the plan may make: `exact` for none, or one or more of `reassociate`, `narrow` and
 * `narrow-f16`, separated by commas. */
symmc_status symmc_options_set_numerics(symmc_options *options, const char *classes);

/* Frees options. NULL is ignored. */
void symmc_options_free(symmc_options *options);

/* Compiles a program into a plan and proves the plan safe. `options` may be NULL. All ranks of a session need the same plan:
 * compile it once and pass it on with `symmc_plan_write`, or compile the same program with the same options everywhere. */
symmc_status symmc_compile(const symmc_program *program, const symmc_options *options, symmc_plan **out);

/* Reads a plan from a file and proves it safe. */
symmc_status symmc_plan_read(const char *path, symmc_plan **out);

/* Writes a plan to a file. An existing file is replaced. */
symmc_status symmc_plan_write(const symmc_plan *plan, const char *path);

/* The number of ranks of a plan; 0 for NULL. */
uint32_t symmc_plan_ranks(const symmc_plan *plan);

/* A summary of the plan's decisions as text. The plan owns the text, which is valid as long as the plan; NULL for NULL. */
const char *symmc_plan_report(const symmc_plan *plan);

/* Compares a plan with the source that it carries, node by node. Differing nodes are compared on random values. Differences
 * give `SYMMC_ERROR_CHECK`. If `require_compared` is not 0, parts that were not compared at all sizes do, too.
 * `symmc_plan_comparison` says what was compared. The first call compares, and later calls return its result. */
symmc_status symmc_plan_compare(const symmc_plan *plan, int32_t require_compared);

/* The parts that `symmc_plan_compare` compared and left out, as text. The plan owns the text, which is valid as long as the
 * plan; NULL before that call, and for NULL. */
const char *symmc_plan_comparison(const symmc_plan *plan);

/* Frees a plan. NULL is ignored. */
void symmc_plan_free(symmc_plan *plan);

/* ---- Groups: how ranks find each other. ---- */

/* A function of the caller that gathers bytes from all ranks. It copies the `bytes` bytes at `mine` of every rank, in the order
 * of ranks, to `all`, which has room for them. It returns 0 when it has the bytes of all ranks, and another number if it
 * failed. It is called on the thread and during the call that received it. */
typedef int (*symmc_all_gather)(void *context, const void *mine, size_t bytes, void *all);

/* Creates a group of `ranks` threads of this process. `groups` receives one handle for each rank, in order. If `ranks` is not
 * between 1 and 1024 nothing is written. */
symmc_status symmc_group_threads(uint32_t ranks, symmc_group **groups);

/* Creates the group in which a launcher started this process, from its environment: torchrun, `mpirun` and `mpiexec` of Open
 * MPI, MPICH, Intel MPI and MVAPICH, or `srun`. Fails without such a launcher. */
symmc_status symmc_group_from_environment(symmc_group **out);

/* Creates the group of `ranks` ranks on one machine that can communicate by means of the caller. All ranks call this at the
 * same time. `context` is passed to `all_gather`. */
symmc_status symmc_group_bootstrap(
    uint32_t rank,
    uint32_t ranks,
    symmc_all_gather all_gather,
    void *context,
    symmc_group **out);

/* The rank of this group's member; 0 for NULL. */
uint32_t symmc_group_rank(const symmc_group *group);

/* The number of ranks of a group; 0 for NULL. */
uint32_t symmc_group_ranks(const symmc_group *group);

/* Frees a group. NULL is ignored. */
void symmc_group_free(symmc_group *group);

/* ---- Inputs, parameters and outputs of a session, in the types of C. ---- */

/* Inputs that change from run to run. */
#define SYMMC_ARGUMENT 0
/* Inputs that are given once: weights, and constants that are part of the program. */
#define SYMMC_PARAMETER 1
/* Outputs, including those that replace an input. */
#define SYMMC_OUTPUT 2
/* Elements of one byte, 0 or 1. */
#define SYMMC_BOOL 0
/* Unsigned integers of 8 bits. */
#define SYMMC_U8 1
/* Signed integers of 32 bits. */
#define SYMMC_I32 2
/* Signed integers of 64 bits. */
#define SYMMC_I64 3
/* IEEE 754 numbers of 16 bits. */
#define SYMMC_F16 4
/* The upper half of IEEE 754 numbers of 32 bits. */
#define SYMMC_BF16 5
/* IEEE 754 numbers of 32 bits. */
#define SYMMC_F32 6
/* IEEE 754 numbers of 64 bits. */
#define SYMMC_F64 7
/* Unsigned integers of 16 bits. */
#define SYMMC_U16 8
/* Unsigned integers of 32 bits. */
#define SYMMC_U32 9
/* Signed integers of 8 bits. */
#define SYMMC_I8 10
/* Signed integers of 16 bits. */
#define SYMMC_I16 11
/* Floats with 4 bits of exponent and 3 of mantissa, without infinities (e4m3fn). */
#define SYMMC_F8E4M3 12
/* Floats with 5 bits of exponent and 2 of mantissa. */
#define SYMMC_F8E5M2 13
/* Powers of two: 8 bits of exponent. */
#define SYMMC_F8E8M0 14
/* Memory of this rank that the session holds. */
#define SYMMC_PLACE_OWN 0
/* The symmetric arena, which peers can access. */
#define SYMMC_PLACE_SYMMETRIC 1
/* Memory that the caller has bound. */
#define SYMMC_PLACE_BOUND 2

/* An input, a parameter or an output at the current sizes. The session owns the memory behind its pointers, which is valid until
 * another size is set or the session ends. */
typedef struct symmc_value {
    /* The name of the value in the program. */
    const char *name;
    /* The name under which a weight is stored. For an argument, its name in the file of the program. NULL if there is none. */
    const char *source;
    /* For an output, the name of the input that it replaces, otherwise NULL. */
    const char *replaces;
    /* The extent of each axis, in elements. */
    const int64_t *extents;
    /* The number of axes. */
    size_t axes;
    /* The size in bytes. */
    size_t bytes;
    /* The type of the elements: `SYMMC_F32` and so on. */
    int32_t dtype;
} symmc_value;

/* The memory of an input or output. */
typedef struct symmc_memory {
    /* The first byte, an address of the session's device. */
    void *data;
    /* The number of bytes at the current sizes. */
    size_t bytes;
    /* The owner of the memory: `SYMMC_PLACE_OWN` and so on. */
    int32_t place;
} symmc_memory;

/* ---- Options of sessions: on the host, or on a GPU with resources of the caller. ---- */

/* The GPU with the number of the rank. */
#define SYMMC_GPU_OF_RANK 0xffffffff
/* The driver allocates symmetric memory. Ranks pass it to each other as file descriptors. */
#define SYMMC_ARENA_DRIVER 0
/* NCCL allocates symmetric memory and maps it by a window over all ranks. */
#define SYMMC_ARENA_NCCL 1
/* Algorithms of matrix products are the fastest ones by measurement. The measurements are cached on disk. */
#define SYMMC_PRODUCTS_MEASURED 0
/* Algorithms of matrix products are the first ones that the library proposes. Kernels of symmc compute attention. */
#define SYMMC_PRODUCTS_HEURISTIC 1

/* Creates options with the defaults: a session on the host, with a timeout of 30 seconds. */
symmc_status symmc_session_options_create(symmc_session_options **out);

/* Sets the timeout of every wait for other ranks, also in runs, in milliseconds; 0 for the default of 30,000. */
symmc_status symmc_session_options_set_limit(symmc_session_options *options, uint64_t limit_ms);

/* Sets the bytes of symmetric memory for the caller (`symmc_session_allocate_symmetric`), in addition to the memory of the
 * plan. The value must be equal on all ranks. */
symmc_status symmc_session_options_set_symmetric(symmc_session_options *options, size_t bytes);

/* Makes the session run on a GPU: `ordinal` is its number among those that the process sees, or `SYMMC_GPU_OF_RANK`. Each rank
 * needs its own GPU. Call this before the other setters for GPUs, whose values it keeps. Returns `SYMMC_ERROR_UNSUPPORTED` if
 * this library was built without support for GPUs. Opening a session checks whether the GPU exists. */
symmc_status symmc_session_options_set_gpu(symmc_session_options *options, uint32_t ordinal);

/* Sets the stream, a `cudaStream_t` or `CUstream`, for runs that are enqueued without a stream; NULL for a stream of the
 * session. The caller owns the stream. It belongs to the primary context of the GPU, and exists until the session has ended. */
symmc_status symmc_session_options_set_stream(symmc_session_options *options, void *stream);

/* Makes plain collectives of exactly these ranks run on a communicator of the caller, an `ncclComm_t` whose ranks are `ranks`
 * in its order; NULL for communicators of the session. Either all ranks of a session pass one, or none does. The caller owns
 * it. It belongs to the NCCL that the process has loaded as `libnccl.so.2`, and exists until the session has ended. The caller
 * does not use it while a call of the session is in progress. On all ranks the caller's own calls have the same order relative
 * to those of the session. */
symmc_status symmc_session_options_set_communicator(
    symmc_session_options *options,
    void *communicator,
    const uint32_t *ranks,
    size_t count);

/* Sets the allocator of symmetric memory: `SYMMC_ARENA_DRIVER` or `SYMMC_ARENA_NCCL`, equal on all ranks. */
symmc_status symmc_session_options_set_arena(symmc_session_options *options, int32_t arena);

/* Sets how algorithms of matrix products are chosen: `SYMMC_PRODUCTS_MEASURED` or `SYMMC_PRODUCTS_HEURISTIC`, equal on all
 * ranks. */
symmc_status symmc_session_options_set_products(symmc_session_options *options, int32_t products);

/* Sets how many recorded runs are kept, each for some sizes and some memory. The value must be equal on all ranks. */
symmc_status symmc_session_options_set_kept(symmc_session_options *options, size_t kept);

/* Frees options. NULL is ignored. */
void symmc_session_options_free(symmc_session_options *options);

/* ---- Sessions: one rank of a plan that stays open. ---- */

/* The bytes that a session uses on its device: a GPU, or the host. */
typedef struct symmc_session_memory {
    /* The ordinary arena. */
    uint64_t ordinary;
    /* The symmetric arena, which peers can access. */
    uint64_t symmetric;
    /* Flags by which ranks signal each other, and staging memory for chunks. On the host ranks share these; this is the part
     * of one rank. */
    uint64_t flags;
    /* Workspaces of kernels. */
    uint64_t scratch;
    /* Inputs and outputs for which the caller has bound no memory. */
    uint64_t held;
} symmc_session_memory;

/* The bytes that the session of a rank will use on its device when it is opened with these options, which may be NULL. Arenas
 * and flags are exact. Workspaces, inputs and outputs are the most that any sizes need that the plan serves, with nothing bound.
 * Nothing is allocated, and no GPU is queried. Memory of libraries, drivers and code is not included. */
symmc_status symmc_plan_get_memory(
    const symmc_plan *plan,
    uint32_t rank,
    const symmc_session_options *options,
    symmc_session_memory *memory);

/* Opens the session of the group's rank. Returns when all ranks have opened theirs with the same plan. `options` may be NULL,
 * for the host. If an argument is invalid, such as a plan that is NULL, the call fails on all ranks with an error that names
 * this rank, and the ranks can open the next session together. If the group is NULL, the other ranks are not notified. */
symmc_status symmc_session_open(
    const symmc_plan *plan,
    symmc_group *group,
    const symmc_session_options *options,
    symmc_session **out);

/* The rank of a session; 0 for NULL. */
uint32_t symmc_session_rank(const symmc_session *session);

/* Sets the values of `count` symbols for the next runs. Inputs and outputs have sizes once all symbols have a value. If no
 * bucket serves a value, the sizes do not change. The next run checks that bound memory is large enough for them. */
symmc_status symmc_session_set(symmc_session *session, const char *const *symbols, const int64_t *values, size_t count);

/* The number of values of a kind: `SYMMC_ARGUMENT`, `SYMMC_PARAMETER` or `SYMMC_OUTPUT`. All symbols must have a value. */
symmc_status symmc_session_count(symmc_session *session, int32_t kind, size_t *count);

/* The value of a kind with this index, counted from 0. Arguments and outputs have the order of the program. Constants are among
 * the parameters. */
symmc_status symmc_session_value(symmc_session *session, int32_t kind, size_t index, symmc_value *value);

/* The memory that the next runs use for an input or output. While no run is in progress, the caller may write inputs and read
 * outputs there. The session owns the memory. It is valid until a symbol is set that needs more, other memory is bound, or the
 * session ends. `name` is the name of a value, the name under which a weight is stored, or `in.<i>` (arguments), `w.<name>`
 * (weights) or `out.<i>`, here and below. */
symmc_status symmc_session_address(symmc_session *session, const char *name, symmc_memory *memory);

/* Makes the next runs read an input from memory of the caller, or write an output there, in place. There is one case of a copy:
 * the plan holds the input in symmetric memory (`SYMMC_PLACE_SYMMETRIC` before it is bound). Then a parameter is copied before
 * the first run, and an argument before every run.
 *
 * The caller owns the memory. It must be valid until other memory is bound or the session has ended, and the runs that use it
 * have ended. While a run is in progress nothing else writes it, or reads bytes that the run writes. Inputs that no output
 * replaces may share memory with each other. An output may share the memory of the input that it replaces. No other memory may
 * overlap. The memory must be aligned for its elements and not be the session's own. For a session on a GPU it is memory of
 * that GPU, aligned to 16 bytes. If the size of the value does not depend on symbols, it must be large enough. The next run
 * checks sizes that depend on symbols, and overlaps. */
symmc_status symmc_session_bind(symmc_session *session, const char *name, void *data, size_t bytes);

/* Makes the next runs use memory of the session again. The data in the caller's memory is not copied. */
symmc_status symmc_session_unbind(symmc_session *session, const char *name);

/* Makes the next runs read the weights of this rank in place. Several sessions may share them. All symbols must have a value. */
symmc_status symmc_session_share_weights(symmc_session *session, const symmc_weights *weights);

/* Copies host memory to an input. `bytes` is the size of the whole input. No run may be in progress. */
symmc_status symmc_session_write(symmc_session *session, const char *name, const void *data, size_t bytes);

/* Copies the current value of an output or an input to host memory. `bytes` is its whole size. No run may be in progress. */
symmc_status symmc_session_read(symmc_session *session, const char *name, void *data, size_t bytes);

/* Writes the extents of an output in the last run to `extents`, which has room for `rank` numbers, the number of axes. They are
 * those of its memory, except along axes whose number of elements is data: only the first elements there are the result, and
 * `symmc_session_read` copies these. */
symmc_status symmc_session_extents(symmc_session *session, const char *name, size_t *extents, size_t rank);

/* Runs once and waits for the end. All ranks start the same runs in the same order. */
symmc_status symmc_session_run(symmc_session *session);

/* Starts one run after those that were started before, and returns at once. The run uses the current sizes and memory. */
symmc_status symmc_session_enqueue(symmc_session *session);

/* As `symmc_session_enqueue`, on a stream of the caller, a `cudaStream_t` or `CUstream` of the session's GPU. The run begins
 * after the work that is on the stream, and work that is enqueued there later begins after the run. The caller owns the stream,
 * which exists until the runs on it have ended. While the caller captures the stream, the run becomes part of the captured
 * graph instead. The caller then waits for its replays before it calls `symmc_session_poll`, and replays the graph only while
 * the session is open and keeps its memory. Fails for sessions on the host. */
symmc_status symmc_session_enqueue_on(symmc_session *session, void *stream);

/* The bytes that the session uses on its device now. */
symmc_status symmc_session_taken(symmc_session *session, symmc_session_memory *memory);

/* The number of runs that the session recorded on its GPU (`made`), the number of recordings that were changed to other memory
 * (`moved`), and the number of recordings that were dropped because too many were kept (`evicted`). All are 0 on the host. Each
 * pointer may be NULL. */
symmc_status symmc_session_recordings(symmc_session *session, uint64_t *made, uint64_t *moved, uint64_t *evicted);

/* Sets `done` to 1 if all runs have ended, else to 0. Fails if a run failed. */
symmc_status symmc_session_poll(symmc_session *session, int *done);

/* Waits until all runs have ended, with a timeout of `limit_ms` milliseconds. Fails if a run failed, and if the wait timed out.
 * After a timeout the runs continue; `symmc_session_poll` then succeeds, which distinguishes the two cases. */
symmc_status symmc_session_wait(symmc_session *session, uint64_t limit_ms);

/* Releases the memory of the arenas until `symmc_session_resume`. All ranks call both, between runs. The memory of inputs and
 * outputs outside of the arenas is kept. */
symmc_status symmc_session_release(symmc_session *session);

/* Allocates the memory of the arenas again. Inputs in symmetric memory must be written again. */
symmc_status symmc_session_resume(symmc_session *session);

/* Waits until all runs of this rank have ended, and ends the session, also if it returns an error. The error of an earlier
 * failed run is returned again. */
symmc_status symmc_session_close(symmc_session *session);

/* Ends the session on every rank at once, without waiting for runs. The other ranks get an error that names this rank and the
 * reason. `reason` may be NULL. */
symmc_status symmc_session_abort(symmc_session *session, const char *reason);

/* Frees a session. One that has not ended ends without waiting for its runs. Between runs this behaves like
 * symmc_session_close, but waits for other ranks for half a second at most. The other ranks finish the runs that this rank has
 * finished, and get an error that names it when they start or wait for another run. During a run the sessions of the other
 * ranks end at once, with such an error. NULL is ignored. */
void symmc_session_free(symmc_session *session);

/* ---- Memory of a session's device that belongs to the caller. ---- */

/* Allocates memory on the session's device: `bytes` bytes filled with zeros, aligned to 256 bytes. Every session of this
 * process on that device may bind it. */
symmc_status symmc_session_allocate(symmc_session *session, size_t bytes, symmc_buffer **out);

/* Allocates symmetric memory for the caller, from the bytes that `symmc_session_options_set_symmetric` reserved. All ranks
 * allocate the same sizes together. Each waits for its own runs and for the other ranks. A block is freed when the session
 * ends. An input that the plan holds in symmetric memory is read in place from such a buffer, if all ranks have bound the same
 * block. A session with such buffers cannot release its memory (`symmc_session_release`). */
symmc_status symmc_session_allocate_symmetric(symmc_session *session, size_t bytes, symmc_buffer **out);

/* As `symmc_session_bind`, for a whole buffer of the session's device. The session keeps the memory as long as a run may use
 * it. */
symmc_status symmc_session_bind_buffer(symmc_session *session, const char *name, const symmc_buffer *buffer);

/* The address of the first byte on the device; NULL for NULL. */
void *symmc_buffer_address(const symmc_buffer *buffer);

/* The number of bytes of a buffer; 0 for NULL. */
size_t symmc_buffer_bytes(const symmc_buffer *buffer);

/* Copies `bytes` bytes of host memory into a buffer, from offset `at`. No run that uses these bytes may be in progress. */
symmc_status symmc_buffer_write(const symmc_buffer *buffer, size_t at, const void *data, size_t bytes);

/* Copies `bytes` bytes of a buffer, from offset `at`, to host memory. No run that writes these bytes may be in progress. */
symmc_status symmc_buffer_read(const symmc_buffer *buffer, size_t at, void *data, size_t bytes);

/* Frees a buffer. NULL is ignored. */
void symmc_buffer_free(symmc_buffer *buffer);

#ifdef __cplusplus
}
#endif

#endif
