/* A library with the names of NCCL's functions, for tests without a GPU. The build sets what differs:
 *   VERSION  what ncclGetVersion says
 *   CONFIG   the size of ncclConfig_t that this version knows (72 in 2.27, 120 in 2.32)
 *   LATER    the functions that came after 2.27 exist
 *   PARTIAL  ncclCommWindowRegister does not exist
 */
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef struct { char internal[128]; } UniqueId;

static char last_error[1024];

static int fail(int code, const char *message) {
  snprintf(last_error, sizeof last_error, "%s", message);
  return code;
}

int ncclGetVersion(int *version) { *version = VERSION; return 0; }
const char *ncclGetErrorString(int code) { return code == 2 ? "unhandled system error" : "unknown result code"; }
const char *ncclGetLastError(void *comm) { (void)comm; return last_error; }

int ncclGetUniqueId(UniqueId *id) {
  for (int i = 0; i < 128; ++i) id->internal[i] = (char)(200 + i);
  return 0;
}

/* Reads the config as NCCL does: as many bytes as it has, at most as many as are known, over the defaults. The
 * int at 16 is `blocking`, the one at 60 `CTAPolicy`; the pointers are at 32 and 48. Succeeds, "in progress" if
 * it must not block, when every other int is unset; the handle is the rank plus one. */
int ncclCommInitRankConfig(void **comm, int ranks, UniqueId id, int rank, void *config) {
  unsigned char known[CONFIG];
  size_t size, at;
  unsigned int magic;
  int value, blocking, policy;
  for (at = 0; at < CONFIG; at += sizeof(int)) {
    value = INT_MIN;
    memcpy(known + at, &value, sizeof value);
  }
  memcpy(&size, config, sizeof size);
  memcpy(known, config, size < CONFIG ? size : CONFIG);
  memcpy(&magic, known + 8, sizeof magic);
  memcpy(&blocking, known + 16, sizeof blocking);
  memcpy(&policy, known + 60, sizeof policy);
  if (magic != 0xcafebeef) return fail(4, "the config has no magic");
  for (at = 20; at < CONFIG; at += sizeof(int)) {
    int pointer = (at >= 32 && at < 40) || (at >= 48 && at < 56);
    memcpy(&value, known + at, sizeof value);
    if (at != 60 && value != (pointer ? 0 : INT_MIN)) return fail(4, "a field is set");
  }
  for (int i = 0; i < 128; ++i)
    if (id.internal[i] != (char)(200 + i)) return fail(4, "another id");
  if (rank >= ranks) return fail(99, "no such rank\n");
  if (policy == 2) return fail(2, "no copy engines");
  *comm = (void *)(size_t)(rank + 1);
  return blocking == 0 ? 7 : 0;
}

/* Busy twice; then the odd handles are done and the even ones have failed. */
int ncclCommGetAsyncError(void *comm, int *state) {
  static int asked;
  *state = asked++ < 2 ? 7 : (size_t)comm % 2 ? 0 : 2;
  return comm ? 0 : fail(4, "no communicator");
}

/* A communicator of four ranks; the handle is the rank plus one. */
int ncclCommCount(void *comm, int *count) { (void)comm; *count = 4; return 0; }
int ncclCommUserRank(void *comm, int *rank) { *rank = (int)(size_t)comm - 1; return 0; }

#define STUB(name) int name(void) { return 0; }
STUB(ncclCommSplit) STUB(ncclCommFinalize)

/* A handle above the numbers of ranks is the address of a word that becomes 1 when no graph has work of the communicator. */
static int end_communicator(void *comm) {
  if ((size_t)comm > 4096)
    while (!__atomic_load_n((int *)comm, __ATOMIC_ACQUIRE)) usleep(100);
  return 0;
}

int ncclCommDestroy(void *comm) { return end_communicator(comm); }
int ncclCommAbort(void *comm) { return end_communicator(comm); }

STUB(ncclAllReduce) STUB(ncclAllGather) STUB(ncclReduceScatter) STUB(ncclBroadcast) STUB(ncclSend) STUB(ncclRecv)
STUB(ncclGroupStart) STUB(ncclGroupEnd) STUB(ncclMemAlloc) STUB(ncclMemFree)
STUB(ncclCommRegister) STUB(ncclCommDeregister) STUB(ncclCommWindowDeregister)
#ifndef PARTIAL
STUB(ncclCommWindowRegister)
#endif
#ifdef LATER
STUB(ncclAlltoAll)
int ncclGetLsaDevicePointer(void *window, size_t offset, int rank, void **address) {
  *address = (char *)window + offset + (size_t)rank * 4096;
  return 0;
}
#endif
