/* old-kernel PROGRAM ARGUMENT...: runs a program for which the newer mount calls do not exist.
 *
 * A seccomp filter answers ENOSYS, as a kernel before Linux 5.2 does. The numbers written out here
 * are the same on every architecture. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

/* open_tree, move_mount, fsopen, fsconfig, fsmount, openat2, mount_setattr, open_tree_attr; statx
 * tells no mount ids before Linux 5.8 */
#ifndef ABSENT
#define ABSENT 428, 429, 430, 431, 432, 437, 442, 467, SYS_statx
#endif
static const unsigned absent[] = {ABSENT};
enum { COUNT = sizeof absent / sizeof *absent };

int main(int argc, char **argv) {
    struct sock_filter code[COUNT + 3];
    int n = 0;
    code[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
                                             offsetof(struct seccomp_data, nr));
    for (int i = 0; i < COUNT; i++)
        code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, absent[i],
                                                 COUNT - i, 0);
    code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS);
    struct sock_fprog program = {n, code};
    if (argc < 2 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) {
        perror("old-kernel");
        return 1;
    }
    execv(argv[1], argv + 1);
    perror(argv[1]);
    return 1;
}
