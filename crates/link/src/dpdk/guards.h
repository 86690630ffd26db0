/* Guards around memif's callbacks: part of shim.c, which alone includes this. */
#pragma once

/* Memory of a memif connection comes and goes in DPDK's own thread, when the peer says so or dies, while our threads may be in the
 * middle of a burst there: DPDK 22.11 to 26.07 unmap it under them. So what memif does in that thread waits until no burst is under
 * way, and no burst begins meanwhile; and a device is not made or removed at the same time.
 *
 * A server that is removed leaves its listening socket open, and the callback registered with memory that is freed: clients that come
 * later are never served, or served from that memory. What a device registered is therefore taken back when it is removed.
 *
 * A server that cannot greet a client, for it hung up at once, closes that socket and leaves its callback registered: DPDK's thread then ends the
 * whole process. What memif registers in a callback is therefore registered when that has ended, if its socket is still there.
 *
 * memif's callbacks are found by taking the place of the three public functions by which it registers them: this object is loaded
 * before the drivers, and globally, so theirs is this definition. All others' calls are passed on as they are. */
typedef int register_function(const struct rte_intr_handle *, rte_intr_callback_fn, void *);
typedef int unregister_later_function(const struct rte_intr_handle *, rte_intr_callback_fn, void *, rte_intr_unregister_callback_fn);

/* What a descriptor was of: others may have its number by now. */
struct file {
    dev_t device;
    ino_t inode;
};

struct guard {
    struct guard *next;
    rte_intr_callback_fn callback;
    void *argument;
    rte_intr_unregister_callback_fn ended;
    const struct rte_intr_handle *handle;
    int fd;
    struct file file;
    /* Of the device that registered it, or whose listener did. */
    uint32_t port;
    bool dead;
    bool close_fd;
};

#define NO_PORT UINT32_MAX
/* A burst waits so long for the gate: some ten milliseconds, where what goes on behind it takes microseconds. */
#define GATE_POLLS (1u << 16)

/* Held by whoever makes, changes or removes devices, and around memif's callbacks, which register others. */
static pthread_mutex_t control_lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
/* Around the list of guards alone. DPDK tells of an ended callback while it holds a lock of its own, for which those wait who unregister under
 * the lock above: so this is another one, and nobody calls DPDK with it. Only who holds the lock above makes guards, and marks them dead;
 * only those that are dead end by themselves. */
static pthread_mutex_t guards_lock = PTHREAD_MUTEX_INITIALIZER;
static struct guard *guards;
/* On whose behalf something is registered now; written under the lock. */
static uint32_t registering_port = NO_PORT;
/* Whether a callback runs, and what it has registered; both under the lock. */
static bool in_callback;
static struct guard *deferred;
/* Written by the thread of a callback, read by each burst. */
static int gate_closed;
/* Written by the thread of a device's burst alone, each in a cache line of its own. */
static struct {
    int busy;
} __attribute__((aligned(64))) bursts[RTE_MAX_ETHPORTS];
/* Without membarrier each burst pays for a fence of its own. */
static bool fences;

static long membarrier(int command)
{
    return syscall(SYS_membarrier, command, 0, 0);
}

static inline bool try_burst_begin(uint16_t port)
{
    __atomic_store_n(&bursts[port].busy, 1, __ATOMIC_RELAXED);
    if (fences)
        __atomic_thread_fence(__ATOMIC_SEQ_CST);
    else
        __atomic_signal_fence(__ATOMIC_SEQ_CST); /* the other side's membarrier makes it a real one */
    if (__atomic_load_n(&gate_closed, __ATOMIC_ACQUIRE) == 0)
        return true;
    __atomic_store_n(&bursts[port].busy, 0, __ATOMIC_RELEASE);
    return false;
}

/* Waits while the gate is closed. A burst that was refused instead would leave frames behind after a `flush`, and the server of a
 * memif connection without the buffers that its client's first receiving hands it: for no reason that either link could see. If it
 * stays closed, the burst is refused after all: false. */
static __attribute__((cold, noinline)) bool wait_for_gate(uint16_t port)
{
    for (unsigned polls = 0; polls < GATE_POLLS; polls++) {
        sched_yield();
        if (__atomic_load_n(&gate_closed, __ATOMIC_ACQUIRE) == 0 && try_burst_begin(port))
            return true;
    }
    return false;
}

static inline bool burst_begin(uint16_t port)
{
    return try_burst_begin(port) || wait_for_gate(port);
}

static inline void burst_end(uint16_t port)
{
    __atomic_store_n(&bursts[port].busy, 0, __ATOMIC_RELEASE);
}

/* A burst lasts microseconds, or as long as its thread does not get a processor. */
static void gate_close(void)
{
    __atomic_store_n(&gate_closed, 1, __ATOMIC_SEQ_CST);
    if (!fences)
        membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    for (unsigned port = 0; port < RTE_MAX_ETHPORTS; port++)
        while (__atomic_load_n(&bursts[port].busy, __ATOMIC_ACQUIRE) != 0)
            sched_yield();
}

static void gate_open(void)
{
    __atomic_store_n(&gate_closed, 0, __ATOMIC_RELEASE);
}

static void register_deferred(void);

static void guarded(void *cookie)
{
    struct guard *guard = cookie;
    pthread_mutex_lock(&control_lock);
    /* Whoever waited here while the device was removed finds nothing to do. */
    if (!guard->dead) {
        registering_port = guard->port;
        in_callback = true;
        gate_close();
        guard->callback(guard->argument);
        gate_open();
        in_callback = false;
        register_deferred();
        registering_port = NO_PORT;
    }
    pthread_mutex_unlock(&control_lock);
}

/* The guard of this registration; NULL: there is none. */
static struct guard *guard_of(rte_intr_callback_fn callback, const void *argument)
{
    pthread_mutex_lock(&guards_lock);
    struct guard *guard = guards;
    while (guard != NULL && (guard->dead || guard->callback != callback || guard->argument != argument))
        guard = guard->next;
    pthread_mutex_unlock(&guards_lock);
    return guard;
}

/* A guard of that port which is not dead; NULL: there is none. */
static struct guard *guard_of_port(uint32_t port)
{
    pthread_mutex_lock(&guards_lock);
    struct guard *guard = guards;
    while (guard != NULL && (guard->dead || guard->port != port))
        guard = guard->next;
    pthread_mutex_unlock(&guards_lock);
    return guard;
}

static void guard_add(struct guard *guard)
{
    pthread_mutex_lock(&guards_lock);
    guard->next = guards;
    guards = guard;
    pthread_mutex_unlock(&guards_lock);
}

static void guard_free(struct guard *guard)
{
    pthread_mutex_lock(&guards_lock);
    struct guard **place = &guards;
    while (*place != NULL && *place != guard)
        place = &(*place)->next;
    if (*place != NULL)
        *place = guard->next;
    pthread_mutex_unlock(&guards_lock);
    free(guard);
}

/* Written by who holds the control lock, read by others under the list's. */
static void guard_set_dead(struct guard *guard, bool dead)
{
    pthread_mutex_lock(&guards_lock);
    guard->dead = dead;
    pthread_mutex_unlock(&guards_lock);
}

/* DPDK's thread has forgotten a callback that was under way when it was unregistered. */
static void guard_ended(struct rte_intr_handle *handle, void *cookie)
{
    struct guard *guard = cookie;
    rte_intr_unregister_callback_fn ended = guard->ended;
    void *argument = guard->argument;
    if (guard->close_fd)
        close(guard->fd);
    guard_free(guard);
    if (ended != NULL)
        ended(handle, argument);
}

static bool is_memif(rte_intr_callback_fn callback)
{
    Dl_info found;
    const void *address = (const void *)(uintptr_t)callback;
    return dladdr(address, &found) != 0 && found.dli_fname != NULL && strstr(found.dli_fname, "librte_net_memif") != NULL;
}

/* All zeros, which no file has: there is no such descriptor. */
static struct file file_of(int fd)
{
    struct stat found;
    struct file none = {0, 0};
    return fstat(fd, &found) == 0 ? (struct file){.device = found.st_dev, .inode = found.st_ino} : none;
}

static bool is_still(int fd, struct file file)
{
    struct file now = file_of(fd);
    return now.inode != 0 && now.device == file.device && now.inode == file.inode;
}

/* Tells DPDK of a registration; a negative errno: there is no memory for it. */
static int guard_register(struct guard *guard)
{
    register_function *next = (register_function *)(uintptr_t)dlsym(RTLD_NEXT, "rte_intr_callback_register");
    guard_add(guard);
    int answer = next(guard->handle, guarded, guard);
    if (answer != 0)
        guard_free(guard);
    return answer;
}

/* What the callback that has just ended has registered, and not closed again. If there is no memory, the client waits in vain. */
static void register_deferred(void)
{
    struct guard *guard;
    while ((guard = deferred) != NULL) {
        deferred = guard->next;
        if (is_still(guard->fd, guard->file))
            guard_register(guard);
        else
            free(guard);
    }
}

#define EXPORTED __attribute__((visibility("default")))

EXPORTED int rte_intr_callback_register(const struct rte_intr_handle *handle, rte_intr_callback_fn callback, void *argument)
{
    register_function *next = (register_function *)(uintptr_t)dlsym(RTLD_NEXT, "rte_intr_callback_register");
    if (!is_memif(callback))
        return next(handle, callback, argument);
    struct guard *guard = calloc(1, sizeof *guard);
    if (guard == NULL)
        return -ENOMEM;
    guard->callback = callback;
    guard->argument = argument;
    guard->handle = handle;
    guard->fd = rte_intr_fd_get(handle);
    guard->file = file_of(guard->fd);
    /* The driver would pass its sockets on to programs that are started: they would keep the name taken, and the end from the peer. */
    fcntl(guard->fd, F_SETFD, FD_CLOEXEC);
    pthread_mutex_lock(&control_lock);
    guard->port = registering_port;
    int answer = 0;
    if (in_callback) {
        guard->next = deferred;
        deferred = guard;
    } else {
        answer = guard_register(guard);
    }
    pthread_mutex_unlock(&control_lock);
    return answer;
}

EXPORTED int rte_intr_callback_unregister(const struct rte_intr_handle *handle, rte_intr_callback_fn callback, void *argument)
{
    register_function *next = (register_function *)(uintptr_t)dlsym(RTLD_NEXT, "rte_intr_callback_unregister");
    pthread_mutex_lock(&control_lock);
    struct guard *guard = guard_of(callback, argument);
    int answer = guard != NULL ? next(handle, guarded, guard) : next(handle, callback, argument);
    if (guard != NULL && answer > 0)
        guard_free(guard);
    pthread_mutex_unlock(&control_lock);
    return answer;
}

EXPORTED int rte_intr_callback_unregister_pending(const struct rte_intr_handle *handle, rte_intr_callback_fn callback, void *argument,
                                                  rte_intr_unregister_callback_fn ended)
{
    unregister_later_function *next = (unregister_later_function *)(uintptr_t)dlsym(RTLD_NEXT, "rte_intr_callback_unregister_pending");
    pthread_mutex_lock(&control_lock);
    struct guard *guard = guard_of(callback, argument);
    int answer;
    if (guard == NULL) {
        answer = next(handle, callback, argument, ended);
    } else {
        guard->ended = ended;
        /* First: DPDK's thread may end it, and free it, before the call returns. */
        guard_set_dead(guard, true);
        answer = next(handle, guarded, guard, guard_ended);
        if (answer < 0)
            guard_set_dead(guard, false);
    }
    pthread_mutex_unlock(&control_lock);
    return answer;
}

/* Takes back what a memif device has registered and left so. */
static void forget_guards(uint32_t port)
{
    register_function *unregister = (register_function *)(uintptr_t)dlsym(RTLD_NEXT, "rte_intr_callback_unregister");
    unregister_later_function *later = (unregister_later_function *)(uintptr_t)dlsym(RTLD_NEXT, "rte_intr_callback_unregister_pending");
    struct guard *guard;
    while ((guard = guard_of_port(port)) != NULL) {
        int answer = unregister(guard->handle, guarded, guard);
        if (answer > 0) {
            close(guard->fd);
            guard_free(guard);
            continue;
        }
        /* DPDK's thread is about to call it, and waits for us. */
        guard->close_fd = true;
        guard->ended = NULL;
        guard_set_dead(guard, true);
        if (answer == -EAGAIN && later(guard->handle, guarded, guard, guard_ended) == -EAGAIN) {
            /* The thread has called it meanwhile: once more. */
            guard->close_fd = false;
            guard_set_dead(guard, false);
        }
    }
}
