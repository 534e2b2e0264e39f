/* Ask OpenCL for its GPUs as an ICD loader does: load the vendor's library by the SONAME that
 * /etc/OpenCL/vendors/nvidia.icd names (or by its usual one, where the driver brings no such file),
 * get its platforms, count their devices. No header needed.
 * Prints "opencl ok: <device name>" or what failed. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#define GPU 4
#define DEVICE_NAME 0x102B

/* The first entries of every platform's and device's dispatch table. */
struct dispatch {
    void *get_platform_ids;
    void *get_platform_info;
    int (*get_device_ids)(void *, unsigned long, unsigned, void **, unsigned *);
    int (*get_device_info)(void *, unsigned, size_t, void *, size_t *);
};
struct object {
    struct dispatch *dispatch;
};

int main(void)
{
    char library[128] = "libnvidia-opencl.so.1", name[128] = "";
    FILE *icd = fopen("/etc/OpenCL/vendors/nvidia.icd", "r");
    if (icd && !fgets(library, sizeof library, icd)) {
        puts("opencl: empty /etc/OpenCL/vendors/nvidia.icd");
        return 1;
    }
    library[strcspn(library, "\n")] = 0;
    void *vendor = dlopen(library, RTLD_NOW);
    if (!vendor) {
        printf("opencl: %s\n", dlerror());
        return 1;
    }
    void *(*extension)(const char *) = dlsym(vendor, "clGetExtensionFunctionAddress");
    int (*platforms)(unsigned, struct object **, unsigned *) =
        extension ? extension("clIcdGetPlatformIDsKHR") : NULL;
    struct object *platform;
    struct object *device;
    unsigned count = 0;
    if (!platforms || platforms(1, &platform, &count) || !count) {
        puts("opencl: no platform");
        return 1;
    }
    if (platform->dispatch->get_device_ids(platform, GPU, 1, (void **)&device, &count) || !count) {
        puts("opencl: no GPU");
        return 1;
    }
    device->dispatch->get_device_info(device, DEVICE_NAME, sizeof name, name, NULL);
    printf("opencl ok: %s\n", name);
    return 0;
}
