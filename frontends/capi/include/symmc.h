/* symmc: tensor programs with communication become plans that are proved safe, and run.
 *
 * Handles are pointers to what only the library knows. Whoever got one owns it and gives it to the function that frees it,
 * once, from any thread. What a function takes besides handles it has read when it returns, unless it says otherwise. Texts
 * are UTF-8 and end with a NUL.
 *
 * Functions that can fail return SYMMC_OK or the kind of the error; symmc_last_error has the text, for the thread that called.
 * What a call was to give through a pointer is NULL then, or as it was. Any thread may call any function, but one at a time
 * those of one handle that is not const to them, unless a handle says more. Wherever the library is wrong itself, the status
 * is SYMMC_ERROR_DEFECT: nothing is thrown through the caller.
 *
 * Made from the sources of the library; do not edit it.
 */
#ifndef SYMMC_H
#define SYMMC_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A program as it was opened. Any number of threads may read it at once. */
typedef struct symmc_program symmc_program;

/* The weights of one rank, in memory. Any number of threads, and of sessions, may read them at once. */
typedef struct symmc_weights symmc_weights;

/* How to compile. One thread at a time uses it. */
typedef struct symmc_options symmc_options;

/* A plan that is proved safe. Any number of threads may read it at once. */
typedef struct symmc_plan symmc_plan;

/* One rank's place among others. Its rank opens sessions in it, one after the other, in the same order as the others: one
 * thread at a time uses it. It may be handed to another thread. */
typedef struct symmc_group symmc_group;

/* How a session runs. One thread at a time changes it; sessions keep what they need of it. */
typedef struct symmc_session_options symmc_session_options;

/* A plan on one rank, ready to run again and again. One thread at a time uses it, and it may be handed to another thread.
 * After a run that failed every call gives the error of that. */
typedef struct symmc_session symmc_session;

/* Memory of a device, the host or a GPU, that belongs to the caller: for weights, caches, activations and outputs. Any number
 * of threads may use it at once. */
typedef struct symmc_buffer symmc_buffer;

/* ---- The C interface: opaque handles, status codes, and the text of the last error of each thread. ---- */

/* The version of this interface: what `SYMMC_ABI_VERSION` is in the header of the library that is loaded. Programs that
 * were compiled with another one do not fit it. */
#define SYMMC_ABI_VERSION 2

/* The `SYMMC_ABI_VERSION` of this library. */
uint32_t symmc_abi_version(void);

/* The version of symmc, as `0.1.0`. The text is the library's and stays. */
const char *symmc_version(void);

/* ---- Statuses, and what is kept of the last error of each thread. ---- */

/* It did what it is for. */
#define SYMMC_OK 0
/* What was given is not what it should be: a file, an argument, a tensor, the size of a symbol. */
#define SYMMC_ERROR_INPUT 1
/* What was given is sound, but this build, this backend or this machine has nothing that plans or runs it. */
#define SYMMC_ERROR_UNSUPPORTED 2
/* More memory, threads or files are needed than a limit or the system gives. */
#define SYMMC_ERROR_RESOURCES 3
/* The ranks of one session were started for different things: plans, versions, sizes. */
#define SYMMC_ERROR_DISAGREEMENT 4
/* A plan is not proved safe, or computes something else than its source. */
#define SYMMC_ERROR_CHECK 5
/* A step failed, or the system refused something that a run needs. */
#define SYMMC_ERROR_RUN 6
/* A rank died, did not come or made no progress. */
#define SYMMC_ERROR_PEER 7
/* A fault of symmc itself, whatever the input. */
#define SYMMC_ERROR_DEFECT 8

/* How a call ended: `SYMMC_OK`, or the kind of its error. */
typedef int32_t symmc_status;

/* The status of the last call of this thread that failed, `SYMMC_OK` if none did. Calls that succeed leave it. */
symmc_status symmc_last_error_kind(void);

/* What went wrong in the last call of this thread that failed: what it is about, what was expected and what was found. Empty
 * if none did. The text is the library's; it stays until another call of this thread fails, or the thread ends. */
const char *symmc_last_error(void);

/* The rank at fault in the last error of this thread: the one that failed, died, stopped, left, did not come, or differs from
 * the others; never a rank that only waited. -1 if there is none or it is not known. */
int64_t symmc_last_error_culprit(void);

/* The rank that noticed the last error of this thread, -1 if it is not known. Culprit and reporter are the same on all ranks. */
int64_t symmc_last_error_reporter(void);

/* Another name of symmc_last_error_culprit. */
int64_t symmc_last_error_rank(void);

/* The step that the last error of this thread is about, counted from 0 in its bucket, -1 if it is about none. */
int64_t symmc_last_error_step(void);

/* The node that the last error of this thread is about, by the name of its first result; NULL if it is about none. Stays as
 * long as the text. */
const char *symmc_last_error_node(void);

/* The op of that node; NULL if it is not known. Stays as long as the text. */
const char *symmc_last_error_op(void);

/* ---- Programs, and the weights of a rank. ---- */

/* Opens a program: one `.pt2`, `.onnx` or `.symm` file, or those of all ranks, that of rank 0 first. `ranks` is the number
 * of ranks, 0 for what the program fixes. `tensors` is the safetensors file that it will run on, or NULL: it tells the
 * number of ranks where nothing else does, and which constants differ from rank to rank.
 * The program is the caller's, freed by `symmc_program_free`. */
symmc_status symmc_program_open(
    const char *const *paths,
    size_t count,
    uint32_t ranks,
    const char *tensors,
    symmc_program **out);

/* A program in text form. It is the caller's, freed by `symmc_program_free`. */
symmc_status symmc_program_from_text(const char *program, symmc_program **out);

/* The number of ranks of a program; 0 while it is open, and for NULL. */
uint32_t symmc_program_ranks(const symmc_program *program);

/* Frees a program; nothing that was made of it needs it. NULL is none. */
void symmc_program_free(symmc_program *program);

/* Reads the weights of a rank into memory: from the safetensors file `tensors`, whose names are `rank<r>.w.<name>`, or with
 * NULL those that came with the program. They are the caller's, freed by `symmc_weights_free`; sessions that share them keep
 * what they need. */
symmc_status symmc_weights_open(const symmc_program *program, uint32_t rank, const char *tensors, symmc_weights **out);

/* Frees weights. Sessions that share them go on. NULL is none. */
void symmc_weights_free(symmc_weights *weights);

/* ---- How to compile, and plans. ---- */

/* Options with which everything is as it is by itself: for the host, one bucket. They are the caller's, freed by
 * `symmc_options_free`. */
symmc_status symmc_options_create(symmc_options **out);

/* Sets the machine that choices are made for: the name of a built-in profile, as `host` or `h200x8`, or the path of one that
 * `symmc tune` wrote. */
symmc_status symmc_options_set_machine(symmc_options *options, const char *machine);

/* Divides the range of a symbol into buckets by the largest value of each, ascending. Other symbols keep theirs. */
symmc_status symmc_options_set_buckets(symmc_options *options, const char *symbol, const int64_t *upper, size_t count);

/* Sets whether the plan holds arguments that have to be symmetric in its own symmetric memory, where the caller writes them
 * (`symmc_session_address`), rather than copy them there in each run: 1 for all, 0 for none. */
symmc_status symmc_options_set_bind_arguments(symmc_options *options, int32_t all);

/* Sets the most bytes that the symmetric arena may take, 0 for no limit. */
symmc_status symmc_options_set_symmetric_limit(symmc_options *options, uint64_t bytes);

/* Sets whether several collectives may become one where a run is estimated to be faster for it: 1 (the default) or 0. */
symmc_status symmc_options_set_coalesce(symmc_options *options, int32_t coalesce);

/* Sets the changes of rounding that the plan may make: `exact` for none, or one or more of `reassociate`, `narrow` and
 * `narrow-f16`, separated by commas. */
symmc_status symmc_options_set_numerics(symmc_options *options, const char *classes);

/* Frees options. NULL is none. */
void symmc_options_free(symmc_options *options);

/* Compiles a program into a plan and proves that safe. `options` may be NULL. The plan is the caller's, freed by
 * `symmc_plan_free`. All ranks that are to run it must have the same one: compile it once and pass it on by
 * `symmc_plan_write`, or compile the same program with the same options everywhere. */
symmc_status symmc_compile(const symmc_program *program, const symmc_options *options, symmc_plan **out);

/* Reads a plan from a file and proves it safe. It is the caller's, freed by `symmc_plan_free`. */
symmc_status symmc_plan_read(const char *path, symmc_plan **out);

/* Writes a plan to a file, which it replaces. */
symmc_status symmc_plan_write(const symmc_plan *plan, const char *path);

/* The number of ranks of a plan; 0 for NULL. */
uint32_t symmc_plan_ranks(const symmc_plan *plan);

/* What was decided, in lines for people. The text is the plan's and stays as long as it; NULL for NULL. */
const char *symmc_plan_report(const symmc_plan *plan);

/* Compares a plan with the source that it carries: node by node, and on drawn values where the nodes differ. Differences are
 * `SYMMC_ERROR_CHECK`. So are parts that were not compared, or not at all sizes, if `require_compared` is not 0.
 * `symmc_plan_comparison` says what was compared. The first call compares; others return what it found. */
symmc_status symmc_plan_compare(const symmc_plan *plan, int32_t require_compared);

/* What `symmc_plan_compare` compared and what it left out, in lines for people. The text is the plan's and stays as long as it;
 * NULL before that call, and for NULL. */
const char *symmc_plan_comparison(const symmc_plan *plan);

/* Frees a plan. Sessions of it go on. NULL is none. */
void symmc_plan_free(symmc_plan *plan);

/* ---- How ranks find each other. ---- */

/* A function of the caller that tells all ranks something: it copies the `bytes` bytes at `mine` of every rank, by rank, to
 * `all`, which has room for them, and returns 0 when it has those of all ranks; another number says that it failed. It is
 * called by the thread that gives it, during that call, and does not return by an exception or a jump. */
typedef int (*symmc_all_gather)(void *context, const void *mine, size_t bytes, void *all);

/* Places for `ranks` threads of this process: `groups` takes one pointer for each, by rank. Each is the caller's, freed by
 * `symmc_group_free`. Where it fails none is written. */
symmc_status symmc_group_threads(uint32_t ranks, symmc_group **groups);

/* The place that a launcher gave this process through its environment: torchrun, `mpirun` and `mpiexec` of Open MPI, MPICH,
 * Intel MPI and MVAPICH, or `srun`. Fails where none did. It is the caller's, freed by `symmc_group_free`. */
symmc_status symmc_group_from_environment(symmc_group **out);

/* The place of `rank` among `ranks` ranks of one machine that have means of their own to tell each other something. All of
 * them call this at the same time; `context` is what `all_gather` gets. It is the caller's, freed by `symmc_group_free`. */
symmc_status symmc_group_bootstrap(
    uint32_t rank,
    uint32_t ranks,
    symmc_all_gather all_gather,
    void *context,
    symmc_group **out);

/* The rank of a place; 0 for NULL. */
uint32_t symmc_group_rank(const symmc_group *group);

/* The number of ranks; 0 for NULL. */
uint32_t symmc_group_ranks(const symmc_group *group);

/* Frees a place. Sessions that were opened in it go on. NULL is none. */
void symmc_group_free(symmc_group *group);

/* ---- Inputs, parameters and outputs of a session, as C has them. ---- */

/* Inputs that change from run to run. */
#define SYMMC_ARGUMENT 0
/* Inputs that are given once: weights, and constants that the program carries. */
#define SYMMC_PARAMETER 1
/* Outputs, those that replace an input among them. */
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
/* In memory of this rank that the session holds. */
#define SYMMC_PLACE_OWN 0
/* In the symmetric arena, which peers reach. */
#define SYMMC_PLACE_SYMMETRIC 1
/* In memory of the caller. */
#define SYMMC_PLACE_BOUND 2

/* An input, a parameter or an output, at the sizes that are set. What it points to is the session's and stays until another
 * size is set or the session ends. */
typedef struct symmc_value {
    /* The name of the value in the program. */
    const char *name;
    /* The name under which a weight is stored, or that an argument has where the program came from; NULL if it has none. */
    const char *source;
    /* For an output, the name of the input that it replaces, else NULL. */
    const char *replaces;
    /* The extent of each axis. */
    const int64_t *extents;
    /* The number of axes. */
    size_t axes;
    /* Its size. */
    size_t bytes;
    /* The type of its elements: `SYMMC_F32` and so on. */
    int32_t dtype;
} symmc_value;

/* Where an input or output lies. */
typedef struct symmc_memory {
    /* The first byte. */
    void *data;
    /* The number of bytes, at the sizes that are set. */
    size_t bytes;
    /* Whose it is: `SYMMC_PLACE_OWN` and so on. */
    int32_t place;
} symmc_memory;

/* ---- How sessions run: on the host, or on a GPU with what the caller lends. ---- */

/* The GPU whose number is that of the rank. */
#define SYMMC_GPU_OF_RANK 0xffffffff
/* Symmetric memory is the driver's, passed between ranks by file descriptors. */
#define SYMMC_ARENA_DRIVER 0
/* Symmetric memory is NCCL's, mapped by a window over all ranks. */
#define SYMMC_ARENA_NCCL 1
/* Algorithms of matrix products are the fastest of several by measurement, which is kept on disk. */
#define SYMMC_PRODUCTS_MEASURED 0
/* Algorithms of matrix products are the first that the library names; attention is by kernels of symmc. */
#define SYMMC_PRODUCTS_HEURISTIC 1

/* Options with which everything is as it is by itself: a session on the host, no wait longer than 30 seconds. They are the
 * caller's, freed by `symmc_session_options_free`. */
symmc_status symmc_session_options_create(symmc_session_options **out);

/* Sets the milliseconds that no wait for other ranks takes longer than, also in runs; 0 for 30,000. */
symmc_status symmc_session_options_set_limit(symmc_session_options *options, uint64_t limit_ms);

/* Sets the bytes of symmetric memory for the caller beside what the plan needs, the same on all ranks
 * (`symmc_session_allocate_symmetric`). */
symmc_status symmc_session_options_set_symmetric(symmc_session_options *options, size_t bytes);

/* Has the session run on a GPU, by its number among those that the process sees, or `SYMMC_GPU_OF_RANK`. Each rank has a GPU
 * of its own. Comes before the other settings of GPUs, which it leaves as they are. `SYMMC_ERROR_UNSUPPORTED` if this library
 * was built without GPUs; whether there is such a GPU is asked when a session is opened. */
symmc_status symmc_session_options_set_gpu(symmc_session_options *options, uint32_t ordinal);

/* Has runs that are given no stream of their own go to this one, a `cudaStream_t` or `CUstream`; NULL for one of the
 * session's. It stays the caller's, belongs to the primary context of the GPU, and exists until the session has ended. */
symmc_status symmc_session_options_set_stream(symmc_session_options *options, void *stream);

/* Has plain collectives of exactly these ranks run on a communicator of the caller, an `ncclComm_t`, whose ranks they are in
 * its order; NULL for those of the session. All ranks of a session lend one, or none does. It stays the caller's, of the NCCL
 * that the process has loaded as `libnccl.so.2`, and exists until the session has ended; nobody calls it while a call of the
 * session is in progress, and the caller's own calls come in the same order among the session's on all ranks. */
symmc_status symmc_session_options_set_communicator(
    symmc_session_options *options,
    void *communicator,
    const uint32_t *ranks,
    size_t count);

/* Sets who allocates symmetric memory: `SYMMC_ARENA_DRIVER` or `SYMMC_ARENA_NCCL`, the same on all ranks. */
symmc_status symmc_session_options_set_arena(symmc_session_options *options, int32_t arena);

/* Sets how algorithms of matrix products are chosen: `SYMMC_PRODUCTS_MEASURED` or `SYMMC_PRODUCTS_HEURISTIC`, the same on all
 * ranks. */
symmc_status symmc_session_options_set_products(symmc_session_options *options, int32_t products);

/* Sets how many recorded runs are kept, each for some sizes and some memory; the same on all ranks. */
symmc_status symmc_session_options_set_kept(symmc_session_options *options, size_t kept);

/* Frees options. Sessions that were opened with them go on. NULL is none. */
void symmc_session_options_free(symmc_session_options *options);

/* ---- Sessions: one rank of a plan that stays. ---- */

/* Bytes that a session takes of its device: of a GPU, or of the host. */
typedef struct symmc_session_memory {
    /* The ordinary arena. */
    uint64_t ordinary;
    /* The symmetric arena, which peers reach. */
    uint64_t symmetric;
    /* Words by which ranks signal each other, and what they pass chunks through: of what ranks of the host have together,
     * this rank's part. */
    uint64_t flags;
    /* Workspaces of kernels. */
    uint64_t scratch;
    /* Inputs and outputs that the caller binds no memory for. */
    uint64_t held;
} symmc_session_memory;

/* What the session of a rank will take of its device when it is opened with these options, which may be NULL: arenas and
 * flags as they will be; workspaces, inputs and outputs at most, at any sizes that the plan serves and with nothing bound.
 * Nothing is allocated, and no GPU is asked. What libraries, drivers and code take for themselves is not in it. */
symmc_status symmc_plan_get_memory(
    const symmc_plan *plan,
    uint32_t rank,
    const symmc_session_options *options,
    symmc_session_memory *memory);

/* Opens the session of the group's rank; returns when all ranks have opened theirs, of the same plan. `options` may be NULL,
 * for the host. Plan, group and options may be freed before the session. It is the caller's, ended by `symmc_session_close`,
 * `symmc_session_abort` or `symmc_session_free`. Where an argument is wrong, such as a plan that is NULL, the call fails on all
 * ranks with an error that names this one, and the next session is opened together again. A group that is NULL reaches no
 * other rank. */
symmc_status symmc_session_open(
    const symmc_plan *plan,
    const symmc_group *group,
    const symmc_session_options *options,
    symmc_session **out);

/* The rank of a session; 0 for NULL. */
uint32_t symmc_session_rank(const symmc_session *session);

/* Sets the values of `count` symbols for the runs that come. Nothing has a size before all symbols have a value. Where a value
 * has no bucket, or bound memory is too small for it, the sizes stay as they were. */
symmc_status symmc_session_set(symmc_session *session, const char *const *symbols, const int64_t *values, size_t count);

/* The number of values of a kind: `SYMMC_ARGUMENT`, `SYMMC_PARAMETER` or `SYMMC_OUTPUT`. */
symmc_status symmc_session_count(symmc_session *session, int32_t kind, size_t *count);

/* The value of a kind by its number, from 0 on. Arguments and outputs are those of the program in its order, constants stand
 * among the parameters. */
symmc_status symmc_session_value(symmc_session *session, int32_t kind, size_t index, symmc_value *value);

/* Where an input or output lies for the runs that come: the caller writes inputs there, or reads outputs, while no run is in
 * progress. The memory is the session's and stays until a symbol is set that needs more, the input or output is bound
 * elsewhere, or the session ends. Names are those of values, those under which weights are stored, or `in.<i>` (arguments),
 * `w.<name>` and `out.<i>`, here and below. */
symmc_status symmc_session_address(symmc_session *session, const char *name, symmc_memory *memory);

/* Has the runs that come find an input, or write an output, in memory of the caller, where it lies. Nothing is copied, unless
 * the plan holds the input in symmetric memory (`SYMMC_PLACE_SYMMETRIC` before it is bound): a parameter is copied there
 * before the first run then, an argument in every run. The memory stays the caller's. It must be valid until something else
 * is bound or the session has ended, and the runs that take it have ended; meanwhile nobody else writes it during a run, nor
 * reads what the run writes. Inputs that no output replaces may share memory with each other, an output with the input that
 * it replaces, nothing else. It must be aligned for its elements and not be the session's own; where the size of the value
 * never changes it must have that. For a session on a GPU it is memory of that GPU at a multiple of 16 bytes. Whether it has the bytes of the sizes that are set, and overlaps what it may not, is asked
 * by the next run. */
symmc_status symmc_session_bind(symmc_session *session, const char *name, void *data, size_t bytes);

/* Has the runs that come use memory of the session again. What was in the caller's is not copied. */
symmc_status symmc_session_unbind(symmc_session *session, const char *name);

/* Has the runs that come read the weights of this rank where they lie: several sessions may share them. All symbols must have
 * a value. The session keeps what it needs: the caller may free its handle at any time. */
symmc_status symmc_session_share_weights(symmc_session *session, const symmc_weights *weights);

/* Copies the data of an input from memory of the host to where it lies; `bytes` is its whole size. No run may be in progress. */
symmc_status symmc_session_write(symmc_session *session, const char *name, const void *data, size_t bytes);

/* Copies an output, or an input, as it is now to memory of the caller on the host; `bytes` is its whole size. No run may be in
 * progress. */
symmc_status symmc_session_read(symmc_session *session, const char *name, void *data, size_t bytes);

/* Runs once and waits for the end. All ranks run the same, in the same order. */
symmc_status symmc_session_run(symmc_session *session);

/* Starts one run behind those that were started, and returns. It takes the sizes and the memory that are set now. */
symmc_status symmc_session_enqueue(symmc_session *session);

/* As `symmc_session_enqueue`, on a stream of the caller, a `cudaStream_t` or `CUstream` of the session's GPU: the run begins
 * after what is there, and what is put there next begins after the run. The stream stays the caller's and exists until the
 * runs there have ended. While the caller records the stream the run becomes part of the recording instead: the caller then
 * waits for the replays before `symmc_session_poll` tells how they went, and replays as long as the session is open and keeps
 * its memory. Fails for sessions of the host. */
symmc_status symmc_session_enqueue_on(symmc_session *session, void *stream);

/* What the session takes of its device now. */
symmc_status symmc_session_taken(symmc_session *session, symmc_session_memory *memory);

/* How often the session recorded runs on its GPU (`made`), had a recording take over other memory instead (`moved`), and gave
 * one up because more were kept than may be (`evicted`). The host records none. Each pointer may be NULL. */
symmc_status symmc_session_recordings(symmc_session *session, uint64_t *made, uint64_t *moved, uint64_t *evicted);

/* Asks whether all runs have ended: `done` becomes 1, else 0. Fails if one failed. */
symmc_status symmc_session_poll(symmc_session *session, int *done);

/* Waits until all runs have ended, for `limit_ms` milliseconds at most. Fails if one failed, or if they have not ended by
 * then, in which case they go on: `symmc_session_poll` succeeds then, and tells the two apart. */
symmc_status symmc_session_wait(symmc_session *session, uint64_t limit_ms);

/* Gives the memory of the arenas back until `symmc_session_resume`. All ranks call both, between runs. Memory of inputs and
 * outputs stays. */
symmc_status symmc_session_release(symmc_session *session);

/* Takes the memory of the arenas again. Inputs in symmetric memory are to be written again. */
symmc_status symmc_session_resume(symmc_session *session);

/* Waits until all runs of this rank have ended, and ends and frees the session, also on errors. In a process that was forked
 * from the one that opened it this is an error, and the session of the parent is not affected. */
symmc_status symmc_session_close(symmc_session *session);

/* Ends and frees the session on every rank at once, without waiting for runs: the other ranks get an error that names this rank
 * and the reason. `reason` may be NULL. In a process that was forked from the one that opened it this is an error, and the
 * session of the parent is not affected. */
symmc_status symmc_session_abort(symmc_session *session, const char *reason);

/* Ends a session without waiting for its runs. Between runs this behaves like symmc_session_close, but waits for other ranks for
 * half a second at most: other ranks finish the runs that this rank has ended, and get an error that names it when they begin or wait in another one. During a run the
 * sessions of the other ranks end at once, with such an error. In a process that was forked from the one that opened it,
 * the session of the parent is not affected. NULL is ignored. */
void symmc_session_free(symmc_session *session);

/* ---- Memory of a session's device that belongs to the caller. ---- */

/* Memory of the session's device, full of zeros, at a multiple of 256 bytes. Every session of this process on that device may
 * have it bound. It is the caller's, freed by `symmc_buffer_free`; it outlives the session. */
symmc_status symmc_session_allocate(symmc_session *session, size_t bytes, symmc_buffer **out);

/* Symmetric memory of the session for the caller, of what `symmc_session_options_set_symmetric` said. All ranks allocate the
 * same, together; each waits for its runs and for the others. A block stays taken until the session ends. An input that the
 * plan holds in symmetric memory is read where it lies in such a buffer, if all ranks have the same block bound for it. The
 * buffer is the caller's, freed by `symmc_buffer_free`; a session that has given one does not give its memory back. */
symmc_status symmc_session_allocate_symmetric(symmc_session *session, size_t bytes, symmc_buffer **out);

/* As `symmc_session_bind`, for all of a buffer of the session's device. The session keeps the memory as long as a run may use
 * it: the caller may free the buffer at any time. */
symmc_status symmc_session_bind_buffer(symmc_session *session, const char *name, const symmc_buffer *buffer);

/* The first byte, as a pointer of the device; NULL for NULL. */
void *symmc_buffer_address(const symmc_buffer *buffer);

/* The number of bytes; 0 for NULL. */
size_t symmc_buffer_bytes(const symmc_buffer *buffer);

/* Copies memory of the host to the bytes from `at` on. No run that uses them may be in progress. */
symmc_status symmc_buffer_write(const symmc_buffer *buffer, size_t at, const void *data, size_t bytes);

/* Copies so many bytes from `at` on to memory of the host. No run that writes them may be in progress. */
symmc_status symmc_buffer_read(const symmc_buffer *buffer, size_t at, void *data, size_t bytes);

/* Frees a buffer. Sessions that have it bound keep its memory. NULL is none. */
void symmc_buffer_free(symmc_buffer *buffer);

#ifdef __cplusplus
}
#endif

#endif
