/* probe-open [-r] PATH...: opens each path and says what the kernel answers.
 *
 * Prints "PATH ok" or "PATH ERRNO" (EPERM, ENOENT, ...). Opens for reading and writing; after -r
 * only for reading. Exit 1 if any path could not be opened. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv) {
    int failed = 0, access = O_RDWR;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "-r")) {
            access = O_RDONLY;
            continue;
        }
        int fd = open(argv[i], access | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
        printf("%s %s\n", argv[i], fd < 0 ? strerrorname_np(errno) : "ok");
        if (fd < 0)
            failed = 1;
        else
            close(fd);
    }
    return failed;
}
