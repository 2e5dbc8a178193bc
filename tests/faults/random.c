// Chance of the operating system that is always the same, for one process: hash maps and tokio then do the same in each
// run. The simulation compiles this file and loads it with LD_PRELOAD.
#include <string.h>
#include <sys/types.h>

ssize_t getrandom(void *buffer, size_t length, unsigned int flags) {
    (void)flags;
    memset(buffer, 0x5a, length);
    return (ssize_t)length;
}
