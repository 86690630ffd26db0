/* The one door to libdpdk: what its headers offer only as inline functions, and the rest, behind plain C types.
 *
 * `build.rs` compiles this file to a shared object, the program carries that object in itself, and `sys.rs` loads it when the
 * first DPDK link is opened: a program that opens none neither needs libdpdk nor spends time on it. `struct shim` here and
 * `Shim` in sys.rs are the same structure; change both.
 */
#define _GNU_SOURCE /* fopencookie */
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <rte_dev.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_lcore.h>
#include <rte_log.h>
#include <rte_mbuf.h>
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
    uint32_t least_receive_bytes;
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

static const char *version(void)
{
    return rte_version();
}

static const char *driver_folder(void)
{
    return RTE_EAL_PMD_PATH;
}

/* Starts the EAL: 0, or a negative errno. Once per process; the strings must live as long as it. */
static int start(int count, char **arguments)
{
    cookie_io_functions_t to_memory = {.write = log_write};
    FILE *stream = fopencookie(NULL, "w", to_memory);
    if (stream == NULL)
        return -errno;
    setvbuf(stream, NULL, _IOLBF, 0);
    rte_openlog_stream(stream);
    if (rte_eal_init(count, arguments) < 0)
        return rte_errno > 0 ? -rte_errno : -EIO;
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
    int failed = rte_dev_probe(arguments);
    if (failed != 0)
        return failed < 0 ? failed : -EIO;
    return rte_eth_dev_get_port_by_name(name, port);
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
    info->least_receive_bytes = found.min_rx_bufsize;
    info->default_receive_frames = found.default_rxportconf.ring_size;
    info->default_transmit_frames = found.default_txportconf.ring_size;
    info->numa_node = rte_eth_dev_socket_id(port);
    return 0;
}

static void *pool_make(const char *name, uint32_t frames, uint32_t cached_frames, uint16_t data_bytes, int32_t numa_node)
{
    return rte_pktmbuf_pool_create(name, frames, cached_frames, 0, data_bytes + RTE_PKTMBUF_HEADROOM, numa_node);
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
static int device_set_up(uint16_t port, uint16_t mtu_bytes, uint16_t *receive_frames, uint16_t *transmit_frames, void *pool)
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
    return failed;
}

static int device_start(uint16_t port)
{
    return rte_eth_dev_start(port);
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
    int failed = rte_eth_dev_info_get(port, &info);
    if (failed != 0)
        return failed;
    rte_eth_dev_stop(port);
    return rte_dev_remove(info.device);
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
    return rte_eth_tx_burst(port, 0, mbufs, (uint16_t)count);
}

static uint32_t receive(uint16_t port, struct slot *slots, uint32_t room)
{
    struct rte_mbuf *mbufs[BURST_FRAMES];
    if (room > BURST_FRAMES)
        room = BURST_FRAMES;
    uint32_t count = rte_eth_rx_burst(port, 0, mbufs, (uint16_t)room);
    for (uint32_t at = 0; at < count; at++) {
        slots[at].mbuf = mbufs[at];
        slots[at].data = rte_pktmbuf_mtod(mbufs[at], uint8_t *);
        slots[at].part_bytes = rte_pktmbuf_data_len(mbufs[at]);
        slots[at].frame_bytes = rte_pktmbuf_pkt_len(mbufs[at]);
    }
    return count;
}

/* Copies a frame that lies in several mbufs, at most `room` bytes of it. The parts' own lengths count, whatever the first says. */
static uint32_t gather(const struct slot *slot, uint8_t *out, uint32_t room)
{
    uint32_t used = 0;
    for (const struct rte_mbuf *part = slot->mbuf; part != NULL && used < room; part = part->next) {
        uint32_t bytes = rte_pktmbuf_data_len(part);
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
    int (*device_set_up)(uint16_t, uint16_t, uint16_t *, uint16_t *, void *);
    int (*device_start)(uint16_t);
    int (*device_is_up)(uint16_t);
    int (*device_stats)(uint16_t, struct stats *);
    int (*device_unmake)(uint16_t);
    void *(*pool_make)(const char *, uint32_t, uint32_t, uint16_t, int32_t);
    uint32_t (*pool_in_use)(const void *);
    void (*pool_free)(void *);
    int (*slots_take)(void *, struct slot *, uint32_t);
    void (*slots_free)(const struct slot *, uint32_t);
    uint32_t (*transmit)(uint16_t, const struct slot *, uint32_t);
    uint32_t (*receive)(uint16_t, struct slot *, uint32_t);
    uint32_t (*gather)(const struct slot *, uint8_t *, uint32_t);
};

__attribute__((visibility("default"))) const struct shim tsumuji_dpdk_shim = {
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
    .device_is_up = device_is_up,
    .device_stats = device_stats,
    .device_unmake = device_unmake,
    .pool_make = pool_make,
    .pool_in_use = pool_in_use,
    .pool_free = pool_free,
    .slots_take = slots_take,
    .slots_free = slots_free,
    .transmit = transmit,
    .receive = receive,
    .gather = gather,
};
