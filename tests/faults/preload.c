// Faults of a machine, for one process: a wall clock that is wrong or drifts, and a disk that is slow, hangs, fails or is
// full. tests/faults.py and the harness in jepsen/ compile this file and load it with LD_PRELOAD.
//
// FAULTS_CONTROL names a file of 64-bit integers in the byte order of the machine, which is mapped and read at each call,
// so that a fault begins and ends while the process runs. A shorter file is one whose other integers are zero:
//   0  offset of CLOCK_REALTIME in nanoseconds
//   1  additional time of each sync in nanoseconds
//   2  not zero: syncs hang until it is zero again
//   3  drift of CLOCK_REALTIME in nanoseconds per second, positive if it is too fast
//   4  time of CLOCK_MONOTONIC in nanoseconds at which the drift began
//   5  not zero: each sync fails with this errno
//   6  not zero: whatever allocates space fails with this errno
// FAULTS_BELOW names the directory whose files have these faults. The boot and monotonic clocks are never shifted.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { OFFSET, DELAY, HANG, DRIFT, DRIFT_FROM, SYNC_ERROR, SPACE_ERROR, WORDS };

static const int64_t NONE[WORDS];
static const volatile int64_t *control = NONE;
static char below[PATH_MAX];
static size_t below_length;

__attribute__((constructor)) static void open_control(void) {
    const char *path = getenv("FAULTS_CONTROL");
    const char *directory = getenv("FAULTS_BELOW");
    if (!path) return;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return;
    void *words = mmap(NULL, sizeof NONE, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (words != MAP_FAILED) control = words;
    if (directory && strlen(directory) < sizeof below) {
        strcpy(below, directory);
        below_length = strlen(below);
    }
}

// --- the wall clock ------------------------------------------------------------------------------------------------

static void add(struct timespec *time, int64_t nanos) {
    int64_t secs = nanos / 1000000000;
    int64_t rest = time->tv_nsec + nanos % 1000000000;
    if (rest < 0) { rest += 1000000000; secs -= 1; }
    if (rest >= 1000000000) { rest -= 1000000000; secs += 1; }
    time->tv_sec += secs;
    time->tv_nsec = rest;
}

static int real_clock(clockid_t clock, struct timespec *time) {
    static int (*next)(clockid_t, struct timespec *);
    if (!next) next = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    return next ? next(clock, time) : (int)syscall(SYS_clock_gettime, clock, time);
}

// The offset, and the drift since it began.
static int64_t shift(void) {
    int64_t drift = control[DRIFT];
    struct timespec now;
    if (drift == 0 || real_clock(CLOCK_MONOTONIC, &now) != 0) return control[OFFSET];
    int64_t passed = now.tv_sec * 1000000000 + now.tv_nsec - control[DRIFT_FROM];
    return control[OFFSET] + (int64_t)((__int128)passed * drift / 1000000000);
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    int result = real_clock(clock, time);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE || clock == CLOCK_TAI))
        add(time, shift());
    return result;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
    (void)zone;
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now) != 0) return -1;
    time->tv_sec = now.tv_sec;
    time->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *result) {
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now) != 0) return -1;
    if (result) *result = now.tv_sec;
    return now.tv_sec;
}

// A deadline that was computed with the shifted clock is waited for with the clock of the kernel.
int pthread_cond_timedwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict deadline) {
    static int (*next)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    if (!next) {
        // The default version of the symbol on x86-64; elsewhere there is only one.
        void *symbol = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
        if (!symbol) symbol = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
        next = (int (*)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *))symbol;
    }
    struct timespec shifted = *deadline;
#ifdef __GLIBC__
    // Bit 1: the condition variable waits by CLOCK_MONOTONIC.
    int is_monotonic = (condition->__data.__wrefs & 2) != 0;
#else
    int is_monotonic = 0;
#endif
    if (!is_monotonic) add(&shifted, -shift());
    if (shifted.tv_sec < 0) shifted.tv_sec = 0;
    return next(condition, mutex, &shifted);
}

// --- the disk ------------------------------------------------------------------------------------------------------

static int is_below(int file) {
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length <= 0 || below_length == 0 || (size_t)length < below_length) return 0;
    path[length] = 0;
    return strncmp(path, below, below_length) == 0 && (path[below_length] == '/' || path[below_length] == 0);
}

static void pause_for(int64_t nanos) {
    struct timespec rest = {nanos / 1000000000, nanos % 1000000000};
    while (clock_nanosleep(CLOCK_MONOTONIC, 0, &rest, &rest) != 0) {}
}

// Waits as long as a sync of this file takes. Returns the error with which it fails, or 0.
static int sync_fault(int file) {
    if ((control[DELAY] == 0 && control[HANG] == 0 && control[SYNC_ERROR] == 0) || !is_below(file)) return 0;
    if (control[DELAY] > 0) pause_for(control[DELAY]);
    while (control[HANG] != 0) pause_for(5000000);
    return (int)control[SYNC_ERROR];
}

static int failed(int error) {
    errno = error;
    return -1;
}

int fsync(int file) {
    int error = sync_fault(file);
    return error ? failed(error) : (int)syscall(SYS_fsync, file);
}

int fdatasync(int file) {
    int error = sync_fault(file);
    return error ? failed(error) : (int)syscall(SYS_fdatasync, file);
}

int sync_file_range(int file, off64_t offset, off64_t bytes, unsigned int flags) {
    int error = sync_fault(file);
    return error ? failed(error) : (int)syscall(SYS_sync_file_range, file, offset, bytes, flags);
}

static int space_fault(int file) {
    return control[SPACE_ERROR] != 0 && is_below(file) ? (int)control[SPACE_ERROR] : 0;
}

ssize_t write(int file, const void *bytes, size_t length) {
    int error = space_fault(file);
    return error ? failed(error) : syscall(SYS_write, file, bytes, length);
}

ssize_t pwrite64(int file, const void *bytes, size_t length, off64_t offset) {
    int error = space_fault(file);
    return error ? failed(error) : syscall(SYS_pwrite64, file, bytes, length, offset);
}

ssize_t pwrite(int file, const void *bytes, size_t length, off_t offset) {
    return pwrite64(file, bytes, length, offset);
}

int fallocate64(int file, int mode, off64_t offset, off64_t length) {
    int error = space_fault(file);
    return error ? failed(error) : (int)syscall(SYS_fallocate, file, mode, offset, length);
}

int fallocate(int file, int mode, off_t offset, off_t length) {
    return fallocate64(file, mode, offset, length);
}
