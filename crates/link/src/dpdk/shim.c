/* The one door to libdpdk: what its headers offer only as inline functions, and the rest, behind plain C types.
 *
 * `build.rs` compiles this file to a shared object, the program carries that object in itself, and `sys.rs` loads it when the
 * first DPDK link is opened: a program that opens none neither needs libdpdk nor spends time on it. `struct shim` here and
 * `Shim` in sys.rs are the same structure; change both.
 */
#define ALLOW_EXPERIMENTAL_API /* rte_intr_fd_get, stable in later versions */
#define _GNU_SOURCE /* fopencookie, RTLD_NEXT, dladdr */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/membarrier.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <rte_dev.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_interrupts.h>
#include <rte_lcore.h>
#include <rte_log.h>
#include <rte_mbuf.h>
#include <rte_mbuf_pool_ops.h>
#include <rte_mempool.h>
#include <rte_version.h>

/* One frame in one mbuf, or the first part of one in several. */
struct slot {
    void *mbuf;
    uint8_t *data;
    uint32_t part_bytes;
    uint32_t frame_bytes;
};

struct device_info {
    uint8_t mac[6];
    uint16_t mtu_bytes;
    uint32_t max_mtu_bytes;
    uint16_t default_receive_frames;
    uint16_t default_transmit_frames;
    int32_t numa_node;
};

struct stats {
    uint64_t missed;
    uint64_t receive_errors;
    uint64_t no_mbuf;
    uint64_t transmit_errors;
};

/* More frames than that in one call are no gain. */
#define BURST_FRAMES 64
/* Of what DPDK says; the oldest is forgotten. */
#define LOG_BYTES 4096

static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static char log_text[LOG_BYTES];
static size_t log_used;

static ssize_t log_write(void *cookie, const char *text, size_t bytes)
{
    size_t whole = bytes;
    (void)cookie;
    if (bytes > LOG_BYTES) {
        text += bytes - LOG_BYTES;
        bytes = LOG_BYTES;
    }
    pthread_mutex_lock(&log_lock);
    if (log_used + bytes > LOG_BYTES) {
        size_t gone = log_used + bytes - LOG_BYTES;
        memmove(log_text, log_text + gone, log_used - gone);
        log_used -= gone;
    }
    memcpy(log_text + log_used, text, bytes);
    log_used += bytes;
    pthread_mutex_unlock(&log_lock);
    return (ssize_t)whole;
}

/* Gives out what was logged since the last call, at most `room` bytes. */
static size_t take_log(char *out, size_t room)
{
    pthread_mutex_lock(&log_lock);
    size_t bytes = log_used < room ? log_used : room;
    memcpy(out, log_text + (log_used - bytes), bytes);
    log_used = 0;
    pthread_mutex_unlock(&log_lock);
    return bytes;
}

#include "guards.h"

/* The driver for AF_XDP (22.11) never closes its socket, so that its queue stays taken as long as the process lives. It is closed when
 * the device is removed, if it is still what it was. */
static struct {
    int fd;
    struct file file;
} left_open = {.fd = -1};

EXPORTED void xsk_socket__delete(void *socket)
{
    typedef int fd_function(const void *);
    typedef void delete_function(void *);
    /* Loaded: the caller came by it. Its driver is loaded by itself, so it is not among those that come after this object. */
    void *library = dlopen("libxdp.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (library == NULL)
        return;
    fd_function *fd_of = (fd_function *)(uintptr_t)dlsym(library, "xsk_socket__fd");
    delete_function *next = (delete_function *)(uintptr_t)dlsym(library, "xsk_socket__delete");
    int fd = fd_of != NULL && socket != NULL ? fd_of(socket) : -1;
    if (fd >= 0) {
        left_open.fd = fd;
        left_open.file = file_of(fd);
    }
    if (next != NULL)
        next(socket);
    dlclose(library);
}

static void close_what_was_left(void)
{
    if (is_still(left_open.fd, left_open.file))
        close(left_open.fd);
    left_open.fd = -1;
}

static const char *version(void)
{
    return rte_version();
}

static const char *driver_folder(void)
{
    return RTE_EAL_PMD_PATH;
}

/* libbpf and libxdp, which the driver for AF_XDP uses, speak to standard error unless told otherwise. */
static int to_log(int level, const char *format, va_list values)
{
    char line[512];
    int bytes = vsnprintf(line, sizeof line, format, values);
    (void)level;
    if (bytes > 0)
        log_write(NULL, line, bytes < (int)sizeof line ? (size_t)bytes : sizeof line - 1);
    return bytes;
}

static void redirect(const char *object, const char *setter)
{
    void *library = dlopen(object, RTLD_NOW | RTLD_NOLOAD);
    if (library == NULL)
        return;
    typedef int print_function(int, const char *, va_list);
    typedef print_function *set_function(print_function *);
    set_function *set = (set_function *)(uintptr_t)dlsym(library, setter);
    if (set != NULL)
        set(to_log);
    dlclose(library);
}

/* Starts the EAL: 0, or a negative errno. Once per process, on a thread that ends thereafter; the strings must live as long as the process. */
static int start(int count, char **arguments)
{
    /* DPDK's threads inherit it: the program's signals are not theirs, and a client of memif that hangs up would end the program by SIGPIPE. */
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, NULL);
    cookie_io_functions_t to_memory = {.write = log_write};
    FILE *stream = fopencookie(NULL, "w", to_memory);
    if (stream == NULL)
        return -errno;
    setvbuf(stream, NULL, _IOLBF, 0);
    rte_openlog_stream(stream);
    fences = membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) != 0;
    if (rte_eal_init(count, arguments) < 0)
        return rte_errno > 0 ? -rte_errno : -EIO;
    redirect("libbpf.so.1", "libbpf_set_print");
    redirect("libbpf.so.0", "libbpf_set_print");
    redirect("libxdp.so.1", "libxdp_set_print");
    /* Nothing is shared with other processes, so the folder made for that stays empty. */
    rmdir(rte_eal_get_runtime_dir());
    return 0;
}

/* Gives the calling thread a number, by which memory pools find its cache. */
static int thread_begin(void)
{
    return rte_lcore_id() == LCORE_ID_ANY ? rte_thread_register() : -EEXIST;
}

static void thread_end(void)
{
    rte_thread_unregister();
}

/* Makes the device that `arguments` describe; `name` is theirs before the first comma. */
static int device_make(const char *arguments, const char *name, uint16_t *port)
{
    pthread_mutex_lock(&control_lock);
    int failed = rte_dev_probe(arguments);
    if (failed == 0)
        failed = rte_eth_dev_get_port_by_name(name, port);
    /* DPDK's thread frees those that have ended without the control lock. */
    pthread_mutex_lock(&guards_lock);
    for (struct guard *guard = guards; guard != NULL && failed == 0; guard = guard->next)
        if (guard->port == NO_PORT)
            guard->port = *port;
    pthread_mutex_unlock(&guards_lock);
    pthread_mutex_unlock(&control_lock);
    return failed <= 0 ? failed : -EIO;
}

static int device_info(uint16_t port, struct device_info *info)
{
    struct rte_eth_dev_info found;
    struct rte_ether_addr mac;
    int failed = rte_eth_dev_info_get(port, &found);
    if (failed == 0)
        failed = rte_eth_macaddr_get(port, &mac);
    if (failed == 0)
        failed = rte_eth_dev_get_mtu(port, &info->mtu_bytes);
    if (failed != 0)
        return failed;
    memcpy(info->mac, mac.addr_bytes, sizeof info->mac);
    info->max_mtu_bytes = found.max_mtu;
    info->default_receive_frames = found.default_rxportconf.ring_size;
    info->default_transmit_frames = found.default_txportconf.ring_size;
    info->numa_node = rte_eth_dev_socket_id(port);
    return 0;
}

/* `dense`: mbufs lie one behind the other in one piece of memory. DPDK places them so that none crosses a page otherwise, and with
 * pages of 4 KiB leaves half of the memory out. The driver for AF_XDP shows the kernel only as many bytes as the mbufs have: those
 * behind were refused, each with a whole call to the kernel, until nothing was sent any more. */
static void *pool_make(const char *name, uint32_t frames, uint32_t cached_frames, uint16_t data_bytes, int32_t numa_node, int32_t dense)
{
    struct rte_pktmbuf_pool_private of_mbufs = {.mbuf_data_room_size = data_bytes + RTE_PKTMBUF_HEADROOM};
    if (!dense)
        return rte_pktmbuf_pool_create(name, frames, cached_frames, 0, of_mbufs.mbuf_data_room_size, numa_node);
    struct rte_mempool *pool = rte_mempool_create_empty(name, frames, sizeof(struct rte_mbuf) + of_mbufs.mbuf_data_room_size,
                                                        cached_frames, sizeof of_mbufs, numa_node,
                                                        RTE_MEMPOOL_F_NO_IOVA_CONTIG | RTE_MEMPOOL_F_NO_SPREAD);
    if (pool == NULL)
        return NULL;
    int failed = rte_mempool_set_ops_byname(pool, rte_mbuf_best_mempool_ops(), NULL);
    if (failed == 0) {
        rte_pktmbuf_pool_init(pool, &of_mbufs);
        failed = rte_mempool_populate_default(pool) < 0 || pool->nb_mem_chunks != 1;
    }
    if (failed != 0) {
        rte_mempool_free(pool);
        return NULL;
    }
    rte_mempool_obj_iter(pool, rte_pktmbuf_init, NULL);
    return pool;
}

static uint32_t pool_in_use(const void *pool)
{
    return rte_mempool_in_use_count(pool);
}

static void pool_free(void *pool)
{
    rte_mempool_free(pool);
}

/* One queue each way. The frame counts are wishes; the device's answer is written back. */
static int device_set_up(uint16_t port, uint16_t mtu_bytes, bool promiscuous, uint16_t *receive_frames, uint16_t *transmit_frames, void *pool)
{
    struct rte_eth_conf conf;
    memset(&conf, 0, sizeof conf);
    conf.rxmode.mtu = mtu_bytes;
    int failed = rte_eth_dev_configure(port, 1, 1, &conf);
    if (failed == 0)
        failed = rte_eth_dev_adjust_nb_rx_tx_desc(port, receive_frames, transmit_frames);
    int numa_node = rte_eth_dev_socket_id(port);
    if (failed == 0)
        failed = rte_eth_rx_queue_setup(port, 0, *receive_frames, numa_node, NULL, pool);
    if (failed == 0)
        failed = rte_eth_tx_queue_setup(port, 0, *transmit_frames, numa_node, NULL);
    if (failed == 0 && promiscuous)
        failed = rte_eth_promiscuous_enable(port);
    /* A driver without such a mode has no filter. */
    return failed == -ENOTSUP && promiscuous ? 0 : failed;
}

static int device_start(uint16_t port)
{
    pthread_mutex_lock(&control_lock);
    registering_port = port;
    int failed = rte_eth_dev_start(port);
    registering_port = NO_PORT;
    pthread_mutex_unlock(&control_lock);
    return failed;
}

/* Stops a started device and starts it again: the client of a memif connection calls its server anew. Not while a call is waiting for its answer
 * (-EALREADY): the kernel holds few of them, the next one would wait there for the server, and the server in this process for the lock. */
static int device_restart(uint16_t port)
{
    pthread_mutex_lock(&control_lock);
    int failed = guard_of_port(port) != NULL ? -EALREADY : rte_eth_dev_stop(port);
    if (failed == 0)
        failed = device_start(port);
    pthread_mutex_unlock(&control_lock);
    return failed;
}

/* 1: up, 0: down, negative: cannot tell. */
static int device_is_up(uint16_t port)
{
    struct rte_eth_link link;
    memset(&link, 0, sizeof link);
    int failed = rte_eth_link_get_nowait(port, &link);
    return failed != 0 ? failed : link.link_status == RTE_ETH_LINK_UP;
}

static int device_stats(uint16_t port, struct stats *stats)
{
    struct rte_eth_stats found;
    int failed = rte_eth_stats_get(port, &found);
    if (failed != 0)
        return failed;
    stats->missed = found.imissed;
    stats->receive_errors = found.ierrors;
    stats->no_mbuf = found.rx_nombuf;
    stats->transmit_errors = found.oerrors;
    return 0;
}

/* Stops the device, takes it away, and frees what it held. */
static int device_unmake(uint16_t port)
{
    struct rte_eth_dev_info info;
    pthread_mutex_lock(&control_lock);
    int failed = rte_eth_dev_info_get(port, &info);
    if (failed == 0) {
        rte_eth_dev_stop(port);
        forget_guards(port);
        left_open.fd = -1;
        failed = rte_dev_remove(info.device);
        close_what_was_left();
    }
    pthread_mutex_unlock(&control_lock);
    return failed;
}

/* The driver for AF_XDP attaches its program to the interface for good: it outlives a process that is killed. Attached by a link
 * instead, it goes with the descriptor that is answered here. Negative: an errno, and the program stays as it is. */
static int xdp_hold(uint32_t interface)
{
    enum { NATIVE = 1 << 2, GENERIC = 1 << 1, BPF_XDP_TYPE = 37 }; /* XDP_FLAGS_DRV_MODE, _SKB_MODE, BPF_XDP: of the kernel's headers */
    typedef int query_function(int, int, uint32_t *);
    typedef int program_function(uint32_t);
    typedef int detach_function(int, uint32_t, const void *);
    typedef int link_function(int, int, int, const void *);
    struct {
        size_t bytes;
        uint32_t flags;
        uint32_t target;
    } options = {.bytes = sizeof options};
    void *library = dlopen("libbpf.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (library == NULL)
        return -ENOSYS;
    query_function *query = (query_function *)(uintptr_t)dlsym(library, "bpf_xdp_query_id");
    program_function *program_of = (program_function *)(uintptr_t)dlsym(library, "bpf_prog_get_fd_by_id");
    detach_function *detach = (detach_function *)(uintptr_t)dlsym(library, "bpf_xdp_detach");
    link_function *create = (link_function *)(uintptr_t)dlsym(library, "bpf_link_create");
    int answer = -ENOSYS;
    if (query != NULL && program_of != NULL && detach != NULL && create != NULL) {
        uint32_t id = 0;
        options.flags = NATIVE;
        if (query((int)interface, NATIVE, &id) != 0 || id == 0) {
            options.flags = GENERIC;
            if (query((int)interface, GENERIC, &id) != 0)
                id = 0;
        }
        int program = id != 0 ? program_of(id) : -ENOENT;
        answer = program;
        if (program >= 0) {
            answer = detach((int)interface, options.flags, NULL);
            if (answer == 0)
                answer = create(program, (int)interface, BPF_XDP_TYPE, &options);
            close(program);
        }
    }
    dlclose(library);
    return answer;
}

/* Takes `count` mbufs, all or none. */
static int slots_take(void *pool, struct slot *slots, uint32_t count)
{
    struct rte_mbuf *mbufs[BURST_FRAMES];
    if (count > BURST_FRAMES)
        return -EINVAL;
    int failed = rte_pktmbuf_alloc_bulk(pool, mbufs, count);
    if (failed != 0)
        return failed;
    for (uint32_t at = 0; at < count; at++) {
        slots[at].mbuf = mbufs[at];
        slots[at].data = rte_pktmbuf_mtod(mbufs[at], uint8_t *);
        slots[at].part_bytes = slots[at].frame_bytes = 0;
    }
    return 0;
}

static void slots_free(const struct slot *slots, uint32_t count)
{
    for (uint32_t at = 0; at < count; at++)
        rte_pktmbuf_free(slots[at].mbuf);
}

/* Hands over up to 64 frames of `frame_bytes` each; the device has those before the returned number. */
static uint32_t transmit(uint16_t port, const struct slot *slots, uint32_t count)
{
    struct rte_mbuf *mbufs[BURST_FRAMES];
    if (count > BURST_FRAMES)
        count = BURST_FRAMES;
    for (uint32_t at = 0; at < count; at++) {
        struct rte_mbuf *mbuf = slots[at].mbuf;
        rte_pktmbuf_data_len(mbuf) = (uint16_t)slots[at].frame_bytes;
        rte_pktmbuf_pkt_len(mbuf) = slots[at].frame_bytes;
        mbufs[at] = mbuf;
    }
    if (!burst_begin(port))
        return 0;
    count = rte_eth_tx_burst(port, 0, mbufs, (uint16_t)count);
    burst_end(port);
    return count;
}

/* The second part of a frame. */
struct body {
    const uint8_t *data;
    uint32_t bytes;
};

static void body_stays(void *address, void *cookie)
{
    (void)address;
    (void)cookie;
}

/* As `transmit`, of frames that end with bytes which lie elsewhere and are the caller's again when this returns: only for a driver that
 * has copied what it takes by then (memif without zero-copy). None where mbufs lack. */
static uint32_t transmit_parted(uint16_t port, const struct slot *heads, const struct body *bodies, uint32_t count)
{
    struct rte_mbuf *mbufs[BURST_FRAMES], *tails[BURST_FRAMES];
    struct rte_mbuf_ext_shared_info stays = {.free_cb = body_stays};
    if (count > BURST_FRAMES)
        count = BURST_FRAMES;
    if (count == 0 || rte_pktmbuf_alloc_bulk(((struct rte_mbuf *)heads[0].mbuf)->pool, tails, count) != 0)
        return 0;
    /* One more than there are: nobody need be told when the last goes. */
    rte_mbuf_ext_refcnt_set(&stays, (uint16_t)(count + 1));
    for (uint32_t at = 0; at < count; at++) {
        struct rte_mbuf *head = heads[at].mbuf, *tail = tails[at];
        rte_pktmbuf_attach_extbuf(tail, (void *)(uintptr_t)bodies[at].data, RTE_BAD_IOVA, (uint16_t)bodies[at].bytes, &stays);
        rte_pktmbuf_data_len(tail) = (uint16_t)bodies[at].bytes;
        rte_pktmbuf_data_len(head) = (uint16_t)heads[at].frame_bytes;
        rte_pktmbuf_pkt_len(head) = heads[at].frame_bytes + bodies[at].bytes;
        head->next = tail;
        head->nb_segs = 2;
        mbufs[at] = head;
    }
    uint32_t taken = 0;
    if (burst_begin(port)) {
        taken = rte_eth_tx_burst(port, 0, mbufs, (uint16_t)count);
        burst_end(port);
    }
    for (uint32_t at = taken; at < count; at++) {
        mbufs[at]->next = NULL;
        mbufs[at]->nb_segs = 1;
        rte_pktmbuf_free_seg(tails[at]);
    }
    return taken;
}

/* The bytes of one mbuf, and no more than it has room for: the driver for memif takes, without copying, the length that its peer
 * states in memory that both write. */
static inline uint32_t bytes_of(const struct rte_mbuf *mbuf)
{
    uint32_t room = mbuf->buf_len > mbuf->data_off ? (uint32_t)(mbuf->buf_len - mbuf->data_off) : 0;
    uint32_t bytes = rte_pktmbuf_data_len(mbuf);
    return bytes < room ? bytes : room;
}

static uint32_t receive(uint16_t port, struct slot *slots, uint32_t room)
{
    struct rte_mbuf *mbufs[BURST_FRAMES];
    if (room > BURST_FRAMES)
        room = BURST_FRAMES;
    if (!burst_begin(port))
        return 0;
    uint32_t count = rte_eth_rx_burst(port, 0, mbufs, (uint16_t)room);
    burst_end(port);
    for (uint32_t at = 0; at < count; at++) {
        slots[at].mbuf = mbufs[at];
        slots[at].data = rte_pktmbuf_mtod(mbufs[at], uint8_t *);
        slots[at].part_bytes = bytes_of(mbufs[at]);
        slots[at].frame_bytes = rte_pktmbuf_pkt_len(mbufs[at]);
    }
    return count;
}

/* Copies a frame that lies in several mbufs, at most `room` bytes of it. The parts' own lengths count, whatever the first says. */
static uint32_t gather(const struct slot *slot, uint8_t *out, uint32_t room)
{
    uint32_t used = 0;
    for (const struct rte_mbuf *part = slot->mbuf; part != NULL && used < room; part = part->next) {
        uint32_t bytes = bytes_of(part);
        if (bytes > room - used)
            bytes = room - used;
        memcpy(out + used, rte_pktmbuf_mtod(part, const uint8_t *), bytes);
        used += bytes;
    }
    return used;
}

struct shim {
    const char *(*version)(void);
    const char *(*driver_folder)(void);
    size_t (*take_log)(char *, size_t);
    int (*start)(int, char **);
    int (*thread_begin)(void);
    void (*thread_end)(void);
    int (*device_make)(const char *, const char *, uint16_t *);
    int (*device_info)(uint16_t, struct device_info *);
    int (*device_set_up)(uint16_t, uint16_t, bool, uint16_t *, uint16_t *, void *);
    int (*device_start)(uint16_t);
    int (*device_restart)(uint16_t);
    int (*device_is_up)(uint16_t);
    int (*device_stats)(uint16_t, struct stats *);
    int (*device_unmake)(uint16_t);
    int (*xdp_hold)(uint32_t);
    void *(*pool_make)(const char *, uint32_t, uint32_t, uint16_t, int32_t, int32_t);
    uint32_t (*pool_in_use)(const void *);
    void (*pool_free)(void *);
    int (*slots_take)(void *, struct slot *, uint32_t);
    void (*slots_free)(const struct slot *, uint32_t);
    uint32_t (*transmit)(uint16_t, const struct slot *, uint32_t);
    uint32_t (*transmit_parted)(uint16_t, const struct slot *, const struct body *, uint32_t);
    uint32_t (*receive)(uint16_t, struct slot *, uint32_t);
    uint32_t (*gather)(const struct slot *, uint8_t *, uint32_t);
};

EXPORTED const struct shim tsumuji_dpdk_shim = {
    .version = version,
    .driver_folder = driver_folder,
    .take_log = take_log,
    .start = start,
    .thread_begin = thread_begin,
    .thread_end = thread_end,
    .device_make = device_make,
    .device_info = device_info,
    .device_set_up = device_set_up,
    .device_start = device_start,
    .device_restart = device_restart,
    .device_is_up = device_is_up,
    .device_stats = device_stats,
    .device_unmake = device_unmake,
    .xdp_hold = xdp_hold,
    .pool_make = pool_make,
    .pool_in_use = pool_in_use,
    .pool_free = pool_free,
    .slots_take = slots_take,
    .slots_free = slots_free,
    .transmit = transmit,
    .transmit_parted = transmit_parted,
    .receive = receive,
    .gather = gather,
};
