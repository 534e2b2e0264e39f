/* probe-dlopen NAME[=SYMBOL]...: loads each library as a program in this container would.
 *
 * Prints "NAME PATH" with the path of the file that the loader chose. With SYMBOL, a function
 * `const char *SYMBOL(void)`, its answer follows; SYMBOL:int calls `int SYMBOL(void)` instead.
 * A library or symbol that is not found is printed as "NAME error: REASON". Exit 1 if any is. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <string.h>

static int complain(const char *name) {
    printf("%s error: %s\n", name, dlerror());
    return 1;
}

static int probe(char *name) {
    char *symbol = strchr(name, '=');
    if (symbol)
        *symbol++ = '\0';
    char *kind = symbol ? strchr(symbol, ':') : NULL;
    if (kind)
        *kind++ = '\0';

    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    struct link_map *map;
    if (!library || dlinfo(library, RTLD_DI_LINKMAP, &map))
        return complain(name);
    if (!symbol)
        return printf("%s %s\n", name, map->l_name) < 0;

    void *function = dlsym(library, symbol);
    if (!function)
        return complain(name);
    if (kind)
        printf("%s %s %d\n", name, map->l_name, ((int (*)(void))function)());
    else
        printf("%s %s %s\n", name, map->l_name, ((const char *(*)(void))function)());
    return 0;
}

int main(int argc, char **argv) {
    int failed = 0;
    for (int i = 1; i < argc; i++)
        failed |= probe(argv[i]);
    return failed;
}
