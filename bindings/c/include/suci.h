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

// Ids and their addresses. All processes must have the same ids.
typedef struct datagram_addrdb datagram_addrdb;

// State of the traffic with an id.
typedef struct datagram_flow {
  // Delay: smoothed round-trip time, in nanoseconds.
  uint64_t delay_ns;
  // Its mean deviation, in nanoseconds.
  uint64_t jitter_ns;
  // Bytes that the peer's input queue still has room for.
  uint64_t window;
  // Number of blocks written and not acknowledged yet.
  uint64_t queue_length;
  // Their bytes.
  uint64_t queue_bytes;
  // Number of packets sent again.
  uint64_t retransmitted;
} datagram_flow;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Makes an empty address database. Free it with datagram_addrdb_free.
struct datagram_addrdb *datagram_addrdb_new(void);

// Reads an address database: a line "ID ADDRESS [MAC]" for each id, # begins a comment; suci(3) lists the kinds of addresses.
// NULL: it cannot be read (errno, tsumuji_last_error).
struct datagram_addrdb *datagram_addrdb_read(const char *path);

// Adds an id (0 to 65535) with its address, written as in a file. 0, or -1 (errno).
int datagram_addrdb_add(struct datagram_addrdb *addrdb, int id, const char *address);

// Frees a database; NULL has no effect. Open sockets do not need it.
void datagram_addrdb_free(struct datagram_addrdb *addrdb);

// Opens the socket of id `myid`. myaddr: this process's address, or a link by name ("packet:eth1", "xdp:eth1", "dpdk:DEVICE", "udp"); NULL: as
// TSUMUJI_LINK or the database says. myport: the port of addresses that state none, or 0.
//
// In a process of `tsumuji launch` (or with TSUMUJI_CLUSTER) the endpoint comes from the environment: addrdb may then be NULL (ids are the nodes'
// numbers), myid may be -1 (datagram_id returns it), and address and port are ignored. NULL: it cannot be opened (errno, tsumuji_last_error).
datagram_socket *datagram(const struct datagram_addrdb *addrdb,
                          const char *myaddr,
                          int myport,
                          int myid);

// Waits up to 10 s for acknowledgements, tells the peers that this one leaves, and frees the socket. 0, or -1 (errno ECONNABORTED:
// it is closed, but blocks were lost or not acknowledged in time; EBADF: it was closed before; EPERM: it belongs to another thread; otherwise it is closed,
// and the link had failed).
int datagram_close(datagram_socket *sock);

// Sets the destination of the following writes. 0, or -1 (errno ENXIO: there is no such other id).
int datagram_destination(datagram_socket *sock, int id);

// Writes a block to the destination; waits while the queue to it is full. Returns len, or -1 (errno).
//
// It leaves at once if window and link permit, else in a later call, or by the library's own thread while the program computes.
int datagram_write(datagram_socket *sock,
                   const void *buf,
                   int len);

// As datagram_write, without waiting: -1 with errno EAGAIN if the queue is full.
int datagram_write0(datagram_socket *sock, const void *buf, int len);

// Reads the next block; waits for one. Returns its size, or -1 (errno EMSGSIZE: it has more than len bytes, and waits for a larger buffer).
// datagram_from returns its sender.
int datagram_read(datagram_socket *sock,
                  void *buf,
                  int len);

// As datagram_read, without waiting: -1 with errno EAGAIN if no block is complete.
int datagram_read0(datagram_socket *sock, void *buf, int len);

// The id that sent the last block read; -1 (errno) if none was read.
int datagram_from(datagram_socket *sock);

// Whether a block is complete: returns its size, after waiting for one at most sec + usec; 0 if there is none then. -1: an error (errno).
int datagram_ready(datagram_socket *sock,
                   int sec,
                   int usec);

// Waits at most sec + usec until a block of `size` bytes to `id` can be written without waiting, and until the window that `id` stated last takes it
// besides the blocks that are not acknowledged. A block larger than that window can be written when all are, as long as the window is not 0.
// 1: it can; 0: not yet; -1: an error (errno).
int datagram_wait(datagram_socket *sock,
                  int sec,
                  int usec,
                  int size,
                  int id);

// Number of blocks written to `id` and not acknowledged; -1: an error (errno).
int datagram_queue_length(datagram_socket *sock, int id);

// Receives acknowledgements, and retransmits to `id` now what would be retransmitted after the library's time-out: under the congestion control `credit`
// the oldest packet, which asks for an acknowledgement; under `suci` it asks for permission. Not while an answer may still be on its way, for a round
// trip. A dead peer is tried again; blocks lost with it are told once (errno ECONNABORTED). Returns how many packets were sent again meanwhile; -1: an error (errno).
int datagram_retransmission(datagram_socket *sock,
                            int id);

// Sets the window: bytes for blocks that arrived and were not read; peers wait when it is used. 0, or -1 (errno).
int datagram_set_window(datagram_socket *sock, size_t bytes);

// Slow write by the library: sets the pace of blocks to `id`. -1: as fast as it reads; 0: as fast as its window permits; else bytes a second.
// Returns 0, or -1 (errno).
int datagram_slow_write(datagram_socket *sock,
                        int id,
                        int64_t pace);

// State of the traffic with `id`; size: sizeof(datagram_flow). 0, or -1 (errno).
int datagram_get_flow(datagram_socket *sock, int id, struct datagram_flow *flow, size_t size);

// What `id` reports of its traffic with the id `about`: any process may read the flow of others. Waits at most sec + usec. 1: answered; 0: not yet;
// -1: an error (errno).
int datagram_get_remote_flow(datagram_socket *sock,
                             int id,
                             int about,
                             struct datagram_flow *flow,
                             size_t size,
                             int sec,
                             int usec);

// The socket's own id.
int datagram_id(datagram_socket *sock);

// Number of ids, the own one included. The first `room` of them, ascending, are written to ids, which may be NULL if room is 0.
int datagram_ids(datagram_socket *sock,
                 int *ids,
                 int room);

// The socket as a handle of tsumuji.h, for everything else an endpoint offers; nodes are numbered in order of ids. It belongs to the socket: do not
// close it.
tsumuji *datagram_handle(datagram_socket *sock);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* SUCI_H */
