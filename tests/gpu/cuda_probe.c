/* Use a GPU through the driver API, found by SONAME as any program finds it: initialise, name the
 * device, allocate, copy in, run a kernel (PTX, so the JIT library is needed too), copy out. Needs
 * no header of NVIDIA's. Prints "cuda ok: <name>" or the first call that failed. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#define COUNT 256

static const char kernel[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry increment(.param .u64 numbers) {\n"
    "  .reg .u64 %address, %offset;\n  .reg .u32 %index, %value;\n"
    "  ld.param.u64 %address, [numbers];\n"
    "  mov.u32 %index, %tid.x;\n"
    "  mul.wide.u32 %offset, %index, 4;\n"
    "  add.u64 %address, %address, %offset;\n"
    "  ld.global.u32 %value, [%address];\n"
    "  add.u32 %value, %value, 1;\n"
    "  st.global.u32 [%address], %value;\n"
    "  ret;\n}\n";

static void *driver;

static void *call(const char *name)
{
    void *found = dlsym(driver, name);
    if (!found) {
        printf("cuda: %s: not in libcuda\n", name);
        exit(1);
    }
    return found;
}

#define TRY(name, types, ...)                                  \
    do {                                                       \
        int code = ((int(*) types)call(name))(__VA_ARGS__);    \
        if (code) {                                            \
            printf("cuda: %s: error %d\n", name, code);        \
            return 1;                                          \
        }                                                      \
    } while (0)

int main(void)
{
    int device, count;
    char name[128];
    void *context, *module, *function;
    unsigned long long memory;
    unsigned numbers[COUNT];

    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) {
        printf("cuda: %s\n", dlerror());
        return 1;
    }
    TRY("cuInit", (unsigned), 0);
    TRY("cuDeviceGetCount", (int *), &count);
    TRY("cuDeviceGet", (int *, int), &device, 0);
    TRY("cuDeviceGetName", (char *, int, int), name, sizeof name, device);
    TRY("cuDevicePrimaryCtxRetain", (void **, int), &context, device);
    TRY("cuCtxSetCurrent", (void *), context);
    TRY("cuMemAlloc_v2", (unsigned long long *, size_t), &memory, sizeof numbers);
    for (int i = 0; i < COUNT; i++)
        numbers[i] = i;
    TRY("cuMemcpyHtoD_v2", (unsigned long long, const void *, size_t), memory, numbers, sizeof numbers);
    TRY("cuModuleLoadData", (void **, const void *), &module, kernel);
    TRY("cuModuleGetFunction", (void **, void *, const char *), &function, module, "increment");
    void *arguments[] = {&memory};
    TRY("cuLaunchKernel",
        (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *,
         void **, void **),
        function, 1, 1, 1, COUNT, 1, 1, 0, NULL, arguments, NULL);
    TRY("cuCtxSynchronize", (void));
    TRY("cuMemcpyDtoH_v2", (void *, unsigned long long, size_t), numbers, memory, sizeof numbers);
    for (int i = 0; i < COUNT; i++)
        if (numbers[i] != (unsigned)i + 1) {
            printf("cuda: wrong result at %d: %u\n", i, numbers[i]);
            return 1;
        }
    printf("cuda ok: %s, %d device(s)\n", name, count);
    return 0;
}
