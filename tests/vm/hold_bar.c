/*
 * Shows what a mapping reads after its device has been unplugged: maps BAR 2 of each ivshmem device, prints "mapped", waits
 * for SIGUSR1, and then prints for each of them "SIGBUS", "zeros", "ones" or "as before".
 */
#include <fcntl.h>
#include <glob.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static sigjmp_buf fault;

static void on_bus_error(int number)
{
    siglongjmp(fault, number);
}

static int is_ivshmem(const char *folder)
{
    char path[512], text[16] = "";
    FILE *file;

    snprintf(path, sizeof(path), "%s/device", folder);
    if (!(file = fopen(path, "r")))
        return 0;
    if (!fgets(text, sizeof(text), file))
        text[0] = 0;
    fclose(file);
    return strcmp(text, "0x1110\n") == 0;
}

int main(void)
{
    volatile const uint64_t *words[8];
    uint64_t before[8];
    glob_t found;
    volatile int count = 0;
    int number;
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigprocmask(SIG_BLOCK, &set, NULL);
    signal(SIGBUS, on_bus_error);
    if (glob("/sys/bus/pci/devices/*", 0, NULL, &found))
        return 2;
    for (size_t i = 0; i < found.gl_pathc && count < 8; i++) {
        char path[512];
        int fd;
        void *map;

        if (!is_ivshmem(found.gl_pathv[i]))
            continue;
        snprintf(path, sizeof(path), "%s/resource2", found.gl_pathv[i]);
        if ((fd = open(path, O_RDONLY)) < 0 ||
            (map = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0)) == MAP_FAILED)
            return 3;
        close(fd);
        words[count] = map;
        before[count] = words[count][0];
        /* It begins with a header, so a change is visible. */
        if (before[count] == 0 || ~before[count] == 0)
            return 4;
        count++;
    }
    fprintf(stderr, "mapped %d\n", count);
    sigwait(&set, &number);
    for (volatile int i = 0; i < count; i++) {
        uint64_t word;

        if (sigsetjmp(fault, 1)) {
            puts("SIGBUS");
            continue;
        }
        word = words[i][0];
        puts(word == before[i] ? "as before" : word == 0 ? "zeros" : ~word == 0 ? "ones" : "something else");
    }
    return 0;
}
