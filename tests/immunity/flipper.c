/* flipper ONE OTHER: exchanges two names without end, as a second container does that shares a
 * directory with the one being created. Says "ready" when it has begun. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <signal.h>

int main(int argc, char **argv) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (argc != 3 || renameat2(AT_FDCWD, argv[1], AT_FDCWD, argv[2], RENAME_EXCHANGE)) {
        perror("flipper");
        return 1;
    }
    puts("ready");
    fflush(stdout);
    for (;;)
        renameat2(AT_FDCWD, argv[1], AT_FDCWD, argv[2], RENAME_EXCHANGE);
}
