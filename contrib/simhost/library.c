/* One tiny driver library. It stands in for every library of a simulated host: the three
 * strings below and the SONAME are overwritten in the compiled file, so that one compilation
 * serves all. No libc: it must load in a glibc, a musl and an empty container alike. */

#define ROOM 128

static char version[ROOM] __attribute__((used)) = "@VERSION@";
static char name[ROOM] __attribute__((used)) = "@NAME@";

const char *simhost_version(void) { return version; }

const char *simhost_name(void) { return name; }

int cuInit(unsigned int flags) { return flags ? 1 : 0; }

/* The numbers that a caller of the driver API expects: CUDA 12.0 whatever the host. */
int cuDriverGetVersion(int *out) {
    *out = 12000;
    return 0;
}
