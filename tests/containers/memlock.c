/* Preloaded into crun where nobody may raise the limit on locked memory (a machine without
 * CAP_SYS_RESOURCE): crun insists on raising it before it loads a device program, although the
 * kernel has not counted such programs against it since Linux 5.11. */
#define _GNU_SOURCE
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

int setrlimit(__rlimit_resource_t resource, const struct rlimit *limit)
{
	if (resource == RLIMIT_MEMLOCK)
		return 0;
	return syscall(SYS_prlimit64, 0, resource, limit, 0);
}
