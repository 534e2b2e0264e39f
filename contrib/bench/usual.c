/* What the usual tools do at every start, and nothing else of it: load NVML, initialise it, shut
 * it down, and run ldconfig over the container's root. No mounts, no links, no device rules.
 *
 *     usual NVML_LIBRARY LDCONFIG ROOT
 */

#include <dlfcn.h>
#include <spawn.h>
#include <stdio.h>
#include <sys/wait.h>

extern char **environ;

static int call(void *library, const char *name) {
    int (*function)(void) = (int (*)(void))dlsym(library, name);
    return function ? function() : -1;
}

int main(int count, char **words) {
    if (count != 4) return 2;
    void *library = dlopen(words[1], RTLD_NOW);
    if (!library || call(library, "nvmlInit_v2") || call(library, "nvmlShutdown")) {
        fprintf(stderr, "usual: %s: NVML does not work\n", words[1]);
        return 1;
    }
    char *arguments[] = {words[2], "-r", words[3], NULL};
    pid_t child;
    int status;
    if (posix_spawn(&child, words[2], NULL, NULL, arguments, environ)) return 1;
    if (waitpid(child, &status, 0) != child) return 1;
    return status != 0;
}
