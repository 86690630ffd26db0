/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * suci.h: the calls of the paper "Suci: a UDP message library with user-level flow control", over any link of tsumuji.
 *
 * The manual is suci(3), an example examples/c/suci_loop.c. datagram_ready, datagram_wait, datagram_queue_length and
 * datagram_retransmission put flow control into the program's hands; everything else of tsumuji.h works on datagram_handle(sock).
 *
 * Functions return 0 or more, or -1 (NULL where they return a pointer) and set errno; tsumuji_last_error() says in words what to do.
 * Threads and pointers: see tsumuji.h.
 */


#ifndef SUCI_H
#define SUCI_H

/* Made from bindings/c/src by `make headers`: change it there. */

#include "tsumuji.h"

// An open socket: reaches every id of the address database.
typedef struct datagram_socket datagram_socket;

// Ids and where they are reached. All processes must hold the same ids.
typedef struct datagram_addrdb datagram_addrdb;

// What is known of the traffic with an id.
typedef struct datagram_flow {
  // Delay: smoothed round-trip time, in nanoseconds.
  uint64_t delay_ns;
  // Its mean deviation, in nanoseconds.
  uint64_t jitter_ns;
  // Bytes that the peer's input queue still has room for.
  uint64_t window;
  // Write blocks not yet acknowledged.
  uint64_t queue_length;
  // Their bytes.
  uint64_t queue_bytes;
  // Packets sent again, ever.
  uint64_t retransmitted;
} datagram_flow;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// An empty address database. Free it with datagram_addrdb_free.
struct datagram_addrdb *datagram_addrdb_new(void);

// Reads an address database: a line "ID ADDRESS [MAC]" for each id, # begins a comment; suci(3) lists the kinds of addresses.
// NULL: it cannot be read (errno, tsumuji_last_error).
struct datagram_addrdb *datagram_addrdb_read(const char *path);

// Adds an id (0 to 65535) with its address, written as in a file. 0, or -1 (errno).
int datagram_addrdb_add(struct datagram_addrdb *addrdb, int id, const char *address);

// Frees a database; NULL is nothing. Open sockets do not need it any more.
void datagram_addrdb_free(struct datagram_addrdb *addrdb);

// Opens the socket of id `myid`. myaddr: this process's address, or a link by name ("packet:eth1", "xdp:eth1", "dpdk:DEVICE", "udp"); NULL: as
// TSUMUJI_LINK or the database says. myport: the port of addresses that state none, or 0.
//
// In a process of `tsumuji launch` (or with TSUMUJI_CLUSTER) the endpoint comes from the environment: addrdb may then be NULL (ids are the
// nodes' numbers), myid may be -1 (datagram_id tells it), and address and port are not looked at.
// NULL: it cannot be opened (errno, tsumuji_last_error).
datagram_socket *datagram(const struct datagram_addrdb *addrdb,
                          const char *myaddr,
                          int myport,
                          int myid);

// Waits a moment until what was written is acknowledged, tells the peers, and frees what the socket had. 0, or -1 (errno EBADF: it was
// closed before).
int datagram_close(datagram_socket *sock);

// Chooses to whom the following writes go. 0, or -1 (errno ENXIO: there is no such other id).
int datagram_destination(datagram_socket *sock, int id);

// Writes a block to the destination; waits while the queue to it is full. Returns len, or -1 (errno).
//
// The last of many blocks that follow each other in a fast loop may leave with the next call only: before computing for long, call
// datagram_ready.
int datagram_write(datagram_socket *sock,
                   const void *buf,
                   int len);

// Like datagram_write, without waiting: -1 with errno EAGAIN if the queue is full.
int datagram_write0(datagram_socket *sock, const void *buf, int len);

// Reads the next block; waits for one. Returns its size, or -1 (errno EMSGSIZE: it has more than len bytes, and waits for a
// larger buffer). datagram_from tells who sent it.
int datagram_read(datagram_socket *sock,
                  void *buf,
                  int len);

// Like datagram_read, without waiting: -1 with errno EAGAIN if no block is complete.
int datagram_read0(datagram_socket *sock, void *buf, int len);

// The id that sent the block which was read last; -1 before the first (errno).
int datagram_from(datagram_socket *sock);

// Is a block complete? Returns its size at once; else tries to assemble one for at most sec + usec, and returns 0 if that fails. -1: an
// error (errno).
int datagram_ready(datagram_socket *sock,
                   int sec,
                   int usec);

// Waits at most sec + usec until a block of `size` bytes to `id` can be written without waiting. 1: now; 0: not yet; -1: an error (errno).
int datagram_wait(datagram_socket *sock,
                  int sec,
                  int usec,
                  int size,
                  int id);

// How many write blocks to `id` are not acknowledged; -1: an error (errno).
int datagram_queue_length(datagram_socket *sock, int id);

// Looks for acknowledgements, and sends again to `id` what has to be. A peer that was given up is tried again. Returns how many packets
// were sent again; -1: an error (errno).
int datagram_retransmission(datagram_socket *sock,
                            int id);

// The window: from now on blocks that arrived and were not read may take so many bytes; peers wait when they do. 0, or -1 (errno).
int datagram_set_window(datagram_socket *sock,
                        size_t bytes);

// Slow write, done by the library: from now on blocks leave to `id` at this pace. -1: as fast as it reads; 0: as fast as it lets us; else bytes a
// second. 0, or -1 (errno).
int datagram_slow_write(datagram_socket *sock,
                        int id,
                        int64_t pace);

// What is known of the traffic with `id`; size: sizeof(datagram_flow). 0, or -1 (errno).
int datagram_get_flow(datagram_socket *sock, int id, struct datagram_flow *flow, size_t size);

// What `id` says of its own traffic with the id `about`: any process may read the flow of others. Asks for at most sec + usec. 1: answered;
// 0: not yet; -1: an error (errno).
int datagram_get_remote_flow(datagram_socket *sock,
                             int id,
                             int about,
                             struct datagram_flow *flow,
                             size_t size,
                             int sec,
                             int usec);

// The socket's own id.
int datagram_id(datagram_socket *sock);

// How many ids there are, the own one included. The first `room` of them, ascending, go to ids, which may be NULL if room is 0.
int datagram_ids(datagram_socket *sock,
                 int *ids,
                 int room);

// The socket as a handle of tsumuji.h, for everything else an endpoint offers; nodes are numbered by the order of their ids. It stays
// the socket's: do not close it.
tsumuji *datagram_handle(datagram_socket *sock);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* SUCI_H */
