/* Ask Vulkan for its devices through the image's own loader, which finds the driver by the JSON
 * file that was injected. No header needed. Prints "vulkan ok: <device name>" or what failed. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#define NAME_AT 20 /* of deviceName in VkPhysicalDeviceProperties: after five 32-bit fields */

struct create_info {
    int type;
    const void *next;
    int flags;
    const void *application;
    int layers;
    const void *layer_names;
    int extensions;
    const void *extension_names;
};

int main(void)
{
    void *loader = dlopen("libvulkan.so.1", RTLD_NOW);
    if (!loader) {
        printf("vulkan: %s\n", dlerror());
        return 1;
    }
    int (*create)(const struct create_info *, void *, void **) = dlsym(loader, "vkCreateInstance");
    int (*enumerate)(void *, unsigned *, void **) = dlsym(loader, "vkEnumeratePhysicalDevices");
    void (*properties)(void *, void *) = dlsym(loader, "vkGetPhysicalDeviceProperties");
    struct create_info info = {.type = 1};
    void *instance, *devices[8];
    unsigned count = 8;
    char all[4096];
    int code = create(&info, NULL, &instance);
    if (code) {
        printf("vulkan: vkCreateInstance: error %d\n", code);
        return 1;
    }
    code = enumerate(instance, &count, devices);
    if (code || !count) {
        printf("vulkan: %u devices, error %d\n", count, code);
        return 1;
    }
    memset(all, 0, sizeof all);
    properties(devices[0], all);
    printf("vulkan ok: %s\n", all + NAME_AT);
    return 0;
}
