/* A wall clock that a test can change while processes run: the file $STEPPED_CLOCK contains the milliseconds to add.
 *
 * A wait until a wall-clock time takes as long as before: only the time that the clock returns changes.
 *
 * The library `faketime` reads its offset only when a process starts, and leaves out C11's cnd_timedwait, in which
 * librdkafka waits: with a clock that is an hour ahead, librdkafka would wait an hour.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <threads.h>
#include <time.h>

enum { BILLION = 1000000000 };

static const volatile int64_t *shift;

__attribute__((constructor)) static void open_shift(void)
{
    const char *path = getenv("STEPPED_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file >= 0) {
        void *found = mmap(NULL, sizeof *shift, PROT_READ, MAP_SHARED, file, 0);
        shift = found == MAP_FAILED ? NULL : found;
    }
}

static int64_t shift_ms(void) { return shift ? *shift : 0; }

static struct timespec moved(struct timespec time, int64_t ms)
{
    int64_t ns = time.tv_nsec + ms % 1000 * 1000000;
    time.tv_sec += ms / 1000 + (ns >= BILLION) - (ns < 0);
    time.tv_nsec = ns - (ns >= BILLION) * (int64_t)BILLION + (ns < 0) * (int64_t)BILLION;
    return time;
}

/* A deadline by the wall clock, as the kernel counts; one by a clock that starts with the machine is left alone. */
static struct timespec real(const struct timespec *deadline)
{
    return deadline->tv_sec > BILLION ? moved(*deadline, -shift_ms()) : *deadline;
}

/* The newest version of a function: dlsym alone may find the one of an old ABI. */
static void *next(const char *name)
{
    static const char *versions[] = {"GLIBC_2.34", "GLIBC_2.28", "GLIBC_2.17", "GLIBC_2.3.2"};
    for (int i = 0; i < 4; i++) {
        void *found = dlvsym(RTLD_NEXT, name, versions[i]);
        if (found)
            return found;
    }
    return dlsym(RTLD_NEXT, name);
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    static int (*of_libc)(clockid_t, struct timespec *);
    if (!of_libc)
        of_libc = next("clock_gettime");
    int failed = of_libc(clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        *now = moved(*now, shift_ms());
    return failed;
}

int gettimeofday(struct timeval *now, void *zone)
{
    (void)zone;
    struct timespec found;
    int failed = clock_gettime(CLOCK_REALTIME, &found);
    now->tv_sec = found.tv_sec;
    now->tv_usec = found.tv_nsec / 1000;
    return failed;
}

int timespec_get(struct timespec *now, int base) { return clock_gettime(CLOCK_REALTIME, now) ? 0 : base; }

time_t time(time_t *now)
{
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    if (now)
        *now = found.tv_sec;
    return found.tv_sec;
}

int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *deadline)
{
    static int (*of_libc)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    if (!of_libc)
        of_libc = next("pthread_cond_timedwait");
    struct timespec until = real(deadline);
    return of_libc(condition, mutex, &until);
}

int cnd_timedwait(cnd_t *condition, mtx_t *mutex, const struct timespec *deadline)
{
    static int (*of_libc)(cnd_t *, mtx_t *, const struct timespec *);
    if (!of_libc)
        of_libc = next("cnd_timedwait");
    struct timespec until = real(deadline);
    return of_libc(condition, mutex, &until);
}

int sem_timedwait(sem_t *semaphore, const struct timespec *deadline)
{
    static int (*of_libc)(sem_t *, const struct timespec *);
    if (!of_libc)
        of_libc = next("sem_timedwait");
    struct timespec until = real(deadline);
    return of_libc(semaphore, &until);
}
