/* Every program of a simulated host. Called nvidia-smi it lists the GPUs that procfs shows, in
 * the words of `nvidia-smi -L`; under another name it says who it is. */

#include <dirent.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROOM 128

static char version[ROOM] __attribute__((used)) = "@VERSION@";

static int visible(const struct dirent *entry) { return entry->d_name[0] != '.'; }

static void value_of(const char *line, char *out, size_t size) {
    const char *value = strchr(line, ':') + 1;
    value += strspn(value, " \t");
    snprintf(out, size, "%.*s", (int)strcspn(value, "\n"), value);
}

static void print_gpu(const char *bus, int index) {
    char path[512], line[512], model[256] = "?", uuid[256] = "?";
    snprintf(path, sizeof path, "/proc/driver/nvidia/gpus/%s/information", bus);
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file)) {
        if (!strncmp(line, "Model:", 6)) value_of(line, model, sizeof model);
        if (!strncmp(line, "GPU UUID:", 9)) value_of(line, uuid, sizeof uuid);
    }
    if (file) fclose(file);
    printf("GPU %d: %s (UUID: %s)\n", index, model, uuid);
}

int main(int argc, char **argv) {
    struct dirent **gpus;
    const char *name = argc ? basename(argv[0]) : "?";
    if (strcmp(name, "nvidia-smi")) {
        printf("%s %s (simulated)\n", name, version);
        return 0;
    }
    int count = scandir("/proc/driver/nvidia/gpus", &gpus, visible, alphasort);
    if (count < 0) {
        fprintf(stderr, "nvidia-smi: no driver in /proc/driver/nvidia\n");
        return 9;
    }
    for (int i = 0; i < count; i++) print_gpu(gpus[i]->d_name, i);
    return 0;
}
