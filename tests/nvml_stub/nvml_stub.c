/* A libnvidia-ml.so.1 that answers from a text file (format: answers.md) instead of a driver.
 *
 * The file is named by the environment variable NVML_STUB_ANSWERS, else by the string below that
 * the simulated host writes into the compiled file. Without one the stub knows only its version. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#define ROOM 128
#define MAX_GPUS 64
#define MAX_MIGS 16
#define MAX_RULES 512
#define GLOBAL (-1)

enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, UNSUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7 };

static char version[ROOM] __attribute__((used)) = "@VERSION@";
static char name[ROOM] __attribute__((used)) = "@NAME@";
static char default_answers[1024] __attribute__((used)) = "@ANSWERS@";

struct device {
    int index, slot; /* of the GPU; slot is -1 for a whole GPU */
    int used, minor, brand, major_cc, minor_cc, mig_current, mig_pending, slots, gi, ci, kept;
    char uuid[96], name[96], bus[32];
};
struct rule { char call[64]; int gpu, slot, value; };
struct pci_info { /* nvmlPciInfo_t, third version */
    char legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char id[32];
};

static struct device gpus[MAX_GPUS], migs[MAX_GPUS][MAX_MIGS];
static struct rule errors[MAX_RULES], delays[MAX_RULES];
static int gpu_count, error_count, delay_count, cuda = 12000, initialised;

const char *simhost_version(void) { return version; }
const char *simhost_name(void) { return name; }

static void copy(char *to, size_t size, const char *from) { snprintf(to, size, "%s", from); }

static void add_rule(struct rule *rules, int *count, const char *text, int gpu, int slot) {
    struct rule rule = {.gpu = gpu, .slot = slot};
    if (*count < MAX_RULES && sscanf(text, "%63s %d", rule.call, &rule.value) == 2)
        rules[(*count)++] = rule;
}

static struct device *add(struct device *device, int index, int slot) {
    memset(device, 0, sizeof *device);
    device->index = index;
    device->slot = slot;
    device->used = 1;
    device->minor = device->brand = device->major_cc = device->mig_current = device->kept = -1;
    return device;
}

/* One line of the file; returns the device that the following lines describe. */
static struct device *take(struct device *now, const char *key, const char *rest) {
    int index = now ? now->index : GLOBAL, slot = now ? now->slot : GLOBAL;
    if (!strcmp(key, "driver")) copy(version, sizeof version, rest);
    else if (!strcmp(key, "cuda")) cuda = atoi(rest);
    else if (!strcmp(key, "error")) add_rule(errors, &error_count, rest, index, slot);
    else if (!strcmp(key, "delay_ms")) add_rule(delays, &delay_count, rest, index, slot);
    else if (!strcmp(key, "gpu") && gpu_count < MAX_GPUS) {
        now = add(&gpus[gpu_count], gpu_count, -1);
        gpu_count++;
    } else if (!now) return now;
    else if (!strcmp(key, "slot") && atoi(rest) >= 0 && atoi(rest) < MAX_MIGS)
        now = add(&migs[index][atoi(rest)], index, atoi(rest));
    else if (!strcmp(key, "uuid")) copy(now->uuid, sizeof now->uuid, rest);
    else if (!strcmp(key, "name")) copy(now->name, sizeof now->name, rest);
    else if (!strcmp(key, "bus")) copy(now->bus, sizeof now->bus, rest);
    else if (!strcmp(key, "minor")) now->minor = atoi(rest);
    else if (!strcmp(key, "brand")) now->brand = atoi(rest);
    else if (!strcmp(key, "slots")) now->slots = atoi(rest);
    else if (!strcmp(key, "persistence")) now->kept = atoi(rest);
    else if (!strcmp(key, "cc")) sscanf(rest, "%d %d", &now->major_cc, &now->minor_cc);
    else if (!strcmp(key, "mig")) sscanf(rest, "%d %d", &now->mig_current, &now->mig_pending);
    else if (!strcmp(key, "instance")) sscanf(rest, "%d %d", &now->gi, &now->ci);
    return now;
}

static void read_answers(void) {
    const char *path = getenv("NVML_STUB_ANSWERS");
    char line[512], key[64];
    struct device *now = NULL;
    int used;
    FILE *file = fopen(path ? path : default_answers, "re");
    gpu_count = error_count = delay_count = 0;
    memset(migs, 0, sizeof migs);
    while (file && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        if (sscanf(line, "%63s %n", key, &used) == 1 && key[0] != '#')
            now = take(now, key, line + used);
    }
    if (file) fclose(file);
}

static const struct rule *find(const struct rule *rules, int count, const char *call,
                               const struct device *device) {
    for (const struct rule *rule = rules; rule < rules + count; rule++) {
        int here = device ? rule->gpu == device->index && rule->slot == device->slot
                          : rule->gpu == GLOBAL;
        if (here && (!strcmp(rule->call, call) || !strcmp(rule->call, "*"))) return rule;
    }
    return NULL;
}

/* Waits as told and returns the code that this call shall fail with, or OK. */
static int play(const char *call, const struct device *device) {
    const struct rule *delay = find(delays, delay_count, call, device);
    const struct rule *error = find(errors, error_count, call, device);
    if (delay && delay->value < 0)
        for (;;) pause();
    if (delay) {
        struct timespec wait = {delay->value / 1000, delay->value % 1000 * 1000000L};
        nanosleep(&wait, NULL);
    }
    return error ? error->value : OK;
}

static int begin(const char *call, const struct device *device) {
    return initialised ? play(call, device) : UNINITIALIZED;
}

static int give(char *out, unsigned size, const char *text) {
    if (!text[0]) return UNSUPPORTED;
    if (strlen(text) >= size) return TOO_SMALL;
    strcpy(out, text);
    return OK;
}

#define BEGIN(call, device)                                                                      \
    do {                                                                                         \
        int code = begin(call, device);                                                          \
        if (code) return code;                                                                   \
    } while (0)

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    if (!initialised) read_answers();
    int code = play("nvmlInitWithFlags", NULL);
    if (!code) initialised++;
    return code;
}

int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

int nvmlShutdown(void) {
    BEGIN("nvmlShutdown", NULL);
    initialised--;
    return OK;
}

const char *nvmlErrorString(int code) {
    static char text[64];
    snprintf(text, sizeof text, "stub error %d", code);
    return text;
}

int nvmlSystemGetDriverVersion(char *out, unsigned size) {
    BEGIN("nvmlSystemGetDriverVersion", NULL);
    return give(out, size, version);
}

int nvmlSystemGetNVMLVersion(char *out, unsigned size) {
    BEGIN("nvmlSystemGetNVMLVersion", NULL);
    return give(out, size, version);
}

int nvmlSystemGetCudaDriverVersion(int *out) {
    BEGIN("nvmlSystemGetCudaDriverVersion", NULL);
    *out = cuda;
    return OK;
}

int nvmlSystemGetCudaDriverVersion_v2(int *out) { return nvmlSystemGetCudaDriverVersion(out); }

int nvmlDeviceGetCount_v2(unsigned *out) {
    BEGIN("nvmlDeviceGetCount_v2", NULL);
    *out = gpu_count;
    return OK;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, struct device **out) {
    if ((int)index >= gpu_count) return INVALID;
    BEGIN("nvmlDeviceGetHandleByIndex_v2", &gpus[index]);
    *out = &gpus[index];
    return OK;
}

int nvmlDeviceGetUUID(struct device *device, char *out, unsigned size) {
    BEGIN("nvmlDeviceGetUUID", device);
    return give(out, size, device->uuid);
}

int nvmlDeviceGetName(struct device *device, char *out, unsigned size) {
    BEGIN("nvmlDeviceGetName", device);
    return give(out, size, device->name);
}

int nvmlDeviceGetPciInfo_v3(struct device *device, struct pci_info *out) {
    BEGIN("nvmlDeviceGetPciInfo_v3", device);
    memset(out, 0, sizeof *out);
    if (sscanf(device->bus, "%x:%x:%x", &out->domain, &out->bus, &out->device) != 3)
        return UNSUPPORTED;
    snprintf(out->legacy, sizeof out->legacy, "%04X:%02X:%02X.0", out->domain & 0xffff,
             out->bus & 0xff, out->device & 0xff);
    return give(out->id, sizeof out->id, device->bus);
}

int nvmlDeviceGetCudaComputeCapability(struct device *device, int *major, int *minor) {
    BEGIN("nvmlDeviceGetCudaComputeCapability", device);
    if (device->major_cc < 0) return UNSUPPORTED;
    *major = device->major_cc;
    *minor = device->minor_cc;
    return OK;
}

int nvmlDeviceGetMigMode(struct device *device, unsigned *current, unsigned *pending) {
    BEGIN("nvmlDeviceGetMigMode", device);
    if (device->mig_current < 0) return UNSUPPORTED;
    *current = device->mig_current;
    *pending = device->mig_pending;
    return OK;
}

int nvmlDeviceGetMigDeviceHandleByIndex(struct device *device, unsigned slot, struct device **out) {
    BEGIN("nvmlDeviceGetMigDeviceHandleByIndex", device);
    if (device->slot >= 0 || (int)slot >= device->slots) return INVALID;
    if (slot >= MAX_MIGS || !migs[device->index][slot].used) return NOT_FOUND;
    *out = &migs[device->index][slot];
    return OK;
}

#define NUMBER(call, type, field, absent)                                                        \
    int call(struct device *device, type *out) {                                                 \
        BEGIN(#call, device);                                                                    \
        if (absent) return UNSUPPORTED;                                                          \
        *out = device->field;                                                                    \
        return OK;                                                                               \
    }

NUMBER(nvmlDeviceGetMinorNumber, unsigned, minor, device->minor < 0)
NUMBER(nvmlDeviceGetBrand, int, brand, device->brand < 0)
NUMBER(nvmlDeviceGetPersistenceMode, unsigned, kept, device->kept < 0)
NUMBER(nvmlDeviceGetMaxMigDeviceCount, unsigned, slots, 0)
NUMBER(nvmlDeviceGetGpuInstanceId, unsigned, gi, device->slot < 0)
NUMBER(nvmlDeviceGetComputeInstanceId, unsigned, ci, device->slot < 0)
