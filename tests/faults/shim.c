/* Loaded into a server under test (LD_PRELOAD): a clock that jumps, and a disk that fails to sync, or says that it did.
 *
 * AVISO_FAULTS names a file of two 64-bit numbers, which a test changes while the server runs: nanoseconds to add to the
 * time of day, and what fsync and fdatasync do: 0 their duty, 1 fail, 2 claim success for a database and do nothing.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *controls;
static int (*real_clock)(clockid_t, struct timespec *);
static int (*real_fsync)(int);
static int (*real_fdatasync)(int);

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("AVISO_FAULTS");
    real_clock = dlsym(RTLD_NEXT, "clock_gettime");
    real_fsync = dlsym(RTLD_NEXT, "fsync");
    real_fdatasync = dlsym(RTLD_NEXT, "fdatasync");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *found = mmap(NULL, 2 * sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
    if (found != MAP_FAILED) controls = found;
    close(file);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = real_clock(clock, now);
    if (failed || !controls || clock != CLOCK_REALTIME) return failed;
    int64_t total = now->tv_sec * 1000000000LL + now->tv_nsec + controls[0];
    now->tv_sec = total / 1000000000LL;
    now->tv_nsec = total % 1000000000LL;
    return 0;
}

static int of_database(int file) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return strstr(path, ".sqlite") != NULL;
}

static int synced(int file, int (*really)(int)) {
    if (controls && controls[1] == 1) return errno = EIO, -1;
    if (controls && controls[1] == 2 && of_database(file)) return 0;
    return really(file);
}

int fsync(int file) { return synced(file, real_fsync); }

int fdatasync(int file) { return synced(file, real_fdatasync); }
