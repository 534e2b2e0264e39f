/* Runs a hook and notes how long it took by the clock, from before its fork to after its end.
 *
 *     timed LOG PROGRAM ARGV0 [ARGUMENT ...]
 *
 * One line of nanoseconds is added to LOG; stdin, environment and exit status are the hook's own.
 */

#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

static long long now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

int main(int count, char **words) {
    if (count < 4) return 2;
    long long start = now();
    pid_t child;
    int status;
    if (posix_spawn(&child, words[2], NULL, NULL, words + 3, environ)) return 1;
    if (waitpid(child, &status, 0) != child) return 1;
    char line[32];
    int length = snprintf(line, sizeof line, "%lld\n", now() - start);
    int log = open(words[1], O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (log < 0 || write(log, line, length) != length) return 1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
