/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * tsumuji.h: user-level message passing for iterative computing on commodity PCs and plain Ethernet.
 *
 * The guide is docs/c.md, the manual tsumuji(3). suci.h has the calls of the Suci paper over the same library.
 *
 * Functions return 0 or more, or a code below 0 (TSUMUJI_E...); those that return a pointer return NULL then. Every failure sets
 * errno, and tsumuji_last_error() says in words what to do.
 *
 * A handle belongs to the thread that opened it, until that one calls tsumuji_release_ownership and another tsumuji_acquire_ownership. Calls of other threads
 * are refused with TSUMUJI_ETHREAD, and so are those of a child after fork().
 *
 * A pointer is NULL where that is said to mean something, or else points at what its type says, of the stated length; nothing else may
 * change it during the call. It needs no alignment. Texts are UTF-8, names of files any bytes; they end in a zero byte, within
 * 64 KiB. Handles, options and tables must come from this library; those that were closed or freed are refused with TSUMUJI_EINVAL
 * (freeing again is nothing). Where a structure's size is stated, 0 and more than 4096 are refused.
 */


#ifndef TSUMUJI_H
#define TSUMUJI_H

/* Made from bindings/c/src by `make headers`: change it there. */

#include <stddef.h>
#include <stdint.h>

/* The version of this header; tsumuji_version() is that of the library. */
#define TSUMUJI_VERSION "0.1.0"
#define TSUMUJI_VERSION_MAJOR 0
#define TSUMUJI_VERSION_MINOR 1
#define TSUMUJI_VERSION_PATCH 0

// Success.
#define TSUMUJI_OK 0

// An argument is invalid: NULL where something is needed, or a number out of range.
#define TSUMUJI_EINVAL -1

// Not now: nothing has arrived, or the queue is full. Try again, or wait.
#define TSUMUJI_EAGAIN -2

// It did not happen within the given time.
#define TSUMUJI_ETIMEDOUT -3

// A message is larger than the buffer (it waits for a larger one), or than the peer accepts.
#define TSUMUJI_EMSGSIZE -4

// The peer is dead: nothing was heard from it for too long, or it left. See tsumuji_reconnect.
#define TSUMUJI_EPEER -5

// There is no such other node.
#define TSUMUJI_EUNKNOWN -6

// No memory for a copy of the message, or for a board.
#define TSUMUJI_ENOMEM -7

// The link failed permanently: close the handle.
#define TSUMUJI_ELINK -8

// The endpoint cannot be opened; the text says why, and what to do.
#define TSUMUJI_EOPEN -9

// The handle belongs to another thread. See tsumuji_acquire_ownership. Callbacks on the progress assistant's thread get this, too.
#define TSUMUJI_ETHREAD -10

// The handle is in use: a callback used the handle that called it.
#define TSUMUJI_EBUSY -11

// A bug in the library; the handle can only be closed.
#define TSUMUJI_EPANIC -12

// Members disagree on a collective operation, its length, root, reduction or table of algorithms, or on the congestion control; or one has closed the
// group.
#define TSUMUJI_EMISMATCH -13

// Messages that earlier calls accepted were lost with their peer, or not delivered before tsumuji_close ended; the text says how many, to whom.
// Reported once, by a call that does nothing else: repeat that call.
#define TSUMUJI_ELOST -14

// Class: messages of one channel arrive in the order sent.
#define TSUMUJI_ORDERED 0

// Class: messages arrive when they are complete.
#define TSUMUJI_UNORDERED 1

// Most urgent priority; priorities are 0 to 3. Urgent messages leave before all others that wait, but share with them the room of the queue to a peer
// (option send-queue) and the receiver's memory: where either is used up, they wait, too.
#define TSUMUJI_URGENT 0

// The usual priority.
#define TSUMUJI_NORMAL 2

// The least urgent: bulk transfers.
#define TSUMUJI_BULK 3

// Number of channel ids for programs, in each class and priority: 0 to 65279. Higher ids are for libraries.
#define TSUMUJI_CHANNEL_IDS 65280

// The channel that most programs use: ordered, of normal priority, with id 0.
#define TSUMUJI_DEFAULT_CHANNEL 131072

// Added to the channel of a tsumuji_send: more messages follow at once, so this one may wait for the next that is sent without it, for a call that
// polls, or for the assistant. Waiting messages share frames and calls of the link.
#define TSUMUJI_MORE 1073741824

// A wait without limit.
#define TSUMUJI_FOREVER -1

// As receiver of a datagram: every peer. As owner of elements that are waited for: every other node.
#define TSUMUJI_ALL -1

// Pace: as fast as credit and link allow.
#define TSUMUJI_PACE_FREE 0

// Pace: as fast as the receiver has answered lately, evenly, so that few messages wait there: the paper's "slow write".
#define TSUMUJI_PACE_DRAIN -1

// The group of all nodes that there were when the handle was opened; ranks are node numbers. It never grows: nodes that tsumuji_update_members tells of
// belong to groups that are made with them.
#define TSUMUJI_WORLD 0

// Element types of reductions: int8_t.
#define TSUMUJI_INT8 1

// uint8_t.
#define TSUMUJI_UINT8 2

// int16_t.
#define TSUMUJI_INT16 3

// uint16_t.
#define TSUMUJI_UINT16 4

// int32_t.
#define TSUMUJI_INT32 5

// uint32_t.
#define TSUMUJI_UINT32 6

// int64_t.
#define TSUMUJI_INT64 7

// uint64_t.
#define TSUMUJI_UINT64 8

// float.
#define TSUMUJI_FLOAT 9

// double.
#define TSUMUJI_DOUBLE 10

// Operations on elements: the sum. Integers wrap around; of NaN and a number, minimum and maximum take the number.
#define TSUMUJI_SUM 1

// The product.
#define TSUMUJI_PRODUCT 2

// The smaller one.
#define TSUMUJI_MINIMUM 3

// The larger one.
#define TSUMUJI_MAXIMUM 4

// An endpoint as C programs hold it.
typedef struct tsumuji tsumuji;

// A vector of doubles that every node holds a copy of, and updates by broadcast; see tsumuji_board_open. It belongs to the thread that its endpoint
// belongs to.
typedef struct tsumuji_board tsumuji_board;

// Table of the members and their addresses.
typedef struct tsumuji_members tsumuji_members;

// Options for opening an endpoint.
typedef struct tsumuji_options tsumuji_options;

// A handle with which any thread reaches an endpoint; see tsumuji_thread_sender_new.
typedef struct tsumuji_thread_sender tsumuji_thread_sender;

// A message that arrived. The data of a borrowed message are valid until tsumuji_release.
typedef struct tsumuji_message {
  // The message; NULL if it was copied to the program's own buffer.
  const void *data;
  // Its length in bytes.
  size_t bytes;
  // The sender.
  int from;
  // The channel on which it was sent.
  int channel;
  // Number of a borrowed message, for tsumuji_release.
  uint64_t borrow;
} tsumuji_message;

// A best-effort message, sent or received.
typedef struct tsumuji_datagram {
  // The payload.
  const void *data;
  // Its length in bytes.
  size_t bytes;
  // The sender; ignored when sent.
  int from;
  // Incarnation of the sender; ignored when sent.
  uint32_t incarnation;
  // Id of its channel.
  uint16_t channel_id;
  // Not used; 0.
  uint16_t reserved;
  // What the values are: a newer datagram of the same channel and key replaces an older one. For group memory, the index of the first element.
  uint32_t key;
  // Period of the computation; wraps.
  uint32_t epoch;
  // Which is newer within the epoch; wraps. For group memory, the writer's lap.
  uint32_t lap;
} tsumuji_datagram;

// State of the traffic with one peer.
typedef struct tsumuji_flow {
  // Smoothed round-trip time, in nanoseconds.
  uint64_t rtt_ns;
  // Its mean deviation, in nanoseconds.
  uint64_t rttvar_ns;
  // Frames sent and neither acknowledged nor lost.
  uint64_t in_flight_frames;
  // Bytes that the peer's program still has room for.
  uint64_t window_bytes;
  // Messages sent and not yet acknowledged.
  uint64_t queued_messages;
  // Their bytes.
  uint64_t queued_bytes;
  // Number of frames sent again.
  uint64_t retransmitted_frames;
  // Frames that may still be sent before the peer must grant more.
  uint64_t credit_frames;
  // Number of datagrams that a newer one replaced before they began to leave.
  uint64_t superseded_datagrams;
  // Number of datagrams dropped because their deadline had passed.
  uint64_t late_datagrams;
  // Number of datagrams of several frames of which one was lost.
  uint64_t lost_datagrams;
  // The other direction: frames that the peer may still send to us.
  uint64_t granted_frames;
  // Frames granted ahead to it at present: its share of our window.
  uint64_t incoming_window_frames;
  // Memory that its messages use here.
  uint64_t incoming_bytes;
  // 1: its last frame said that more wait to be sent to us.
  uint64_t incoming_backlog;
  // 1: hello was exchanged with the peer's present incarnation.
  uint64_t up;
} tsumuji_flow;

// State of another node's traffic with one of its peers.
typedef struct tsumuji_remote_flow {
  // Number of the peer.
  uint64_t peer;
  // The traffic as that node sees it.
  struct tsumuji_flow flow;
} tsumuji_remote_flow;

// Callbacks for tsumuji_poll, on the thread that polls; for a channel's own handler (tsumuji_open_channel), on whichever thread drives the endpoint.
// Only `message` is required; the others may be NULL. A callback must not use the handle (TSUMUJI_EBUSY, or TSUMUJI_ETHREAD on the progress assistant's
// thread; use tsumuji_reply and tsumuji_send_from), leave by longjmp, or throw. Its arguments are valid until it returns.
typedef struct tsumuji_handler {
  // sizeof(tsumuji_handler).
  size_t size;
  // First argument of every callback.
  void *context;
  // A message arrived; it counts as consumed when the callback returns.
  void (*message)(void *context, const struct tsumuji_message *message);
  // A datagram arrived.
  void (*datagram)(void *context, const struct tsumuji_datagram *datagram);
  // Hello was exchanged with this peer (again, after it was dead or restarted).
  void (*peer_up)(void *context, int peer);
  // The peer died, left or restarted; failed_messages messages to it have failed.
  void (*peer_dead)(void *context, int peer, size_t failed_messages);
  // A message of tsumuji_send_tracked was acknowledged, as tsumuji_is_sent says.
  void (*sent)(void *context, int peer, uint64_t id);
  // A message sent before the peer had announced its limit was dropped as too large; text says why.
  void (*refused)(void *context, int peer, uint64_t id, const char *text);
  // An answer to tsumuji_request_flows; next: the peer to ask on from, or -1.
  void (*flows)(void *context, int node, const struct tsumuji_remote_flow *flows, size_t count, int next);
  // A tsumuji_try_send to that peer and channel that returned TSUMUJI_EAGAIN may be tried again.
  void (*writable)(void *context, int peer, int channel_id);
} tsumuji_handler;

// State of an opened channel.
typedef struct tsumuji_channel {
  // Messages that arrived and were not taken.
  size_t messages;
  // Bytes of these and of borrowed messages, with 64 for each.
  size_t used_bytes;
  // Budget given to tsumuji_open_channel.
  size_t budget_bytes;
  // Peers that were told to stop sending on it, and not yet to go on.
  size_t stopped_peers;
} tsumuji_channel;

// Counters since the endpoint was opened.
typedef struct tsumuji_counters {
  // Frames written, of every kind.
  uint64_t sent_frames;
  // Their bytes.
  uint64_t sent_bytes;
  // Frames received, of every kind, dropped ones included.
  uint64_t received_frames;
  // Their bytes.
  uint64_t received_bytes;
  // Fragments sent again.
  uint64_t retransmitted_frames;
  // Fragments thought lost whose acknowledgement came after all.
  uint64_t spurious_losses;
  // Number of probes of silent peers.
  uint64_t probes;
  // Messages delivered.
  uint64_t delivered_messages;
  // Frames dropped because they were damaged, not understood, not for us, or not new.
  uint64_t dropped_frames;
  // Frames dropped because they did not come from the address of their source.
  uint64_t spoofed_source_frames;
  // Datagrams dropped because there was no receiver and no room.
  uint64_t dropped_datagrams;
  // Times that the link had no free slot for a frame.
  uint64_t link_refusals;
  // Frames that the medium or the kernel reported dropped.
  uint64_t link_dropped_frames;
  // Broadcast frames overwritten before they were read.
  uint64_t link_overrun_frames;
  // Frames dropped on purpose (TSUMUJI_LOSS).
  uint64_t impaired_frames;
} tsumuji_counters;

// The window granted to peers at present, and the memory for arrived messages.
typedef struct tsumuji_window {
  // Frames that may be granted to all peers together.
  uint64_t frames;
  // Upper limit of `frames`: the capacity of the link's receive side.
  uint64_t frames_limit;
  // Frames of these that are granted and not used yet.
  uint64_t granted_frames;
  // Budget for messages that arrived and were not consumed.
  uint64_t budget_bytes;
  // Bytes of it that are used.
  uint64_t budget_used_bytes;
} tsumuji_window;

// A peer that may want to send, as a policy sees it.
typedef struct tsumuji_sender {
  // Number of the peer.
  uint64_t peer;
  // 1: it has more to send.
  uint64_t active;
  // 1: it also serves other peers, and cannot use its whole grant.
  uint64_t busy;
  // Priority of its last frame: 0 is the most urgent.
  uint64_t priority;
  // Bytes still to come of its messages that have begun to arrive.
  uint64_t remaining_bytes;
  // Memory that its messages use here.
  uint64_t memory_bytes;
  // Number of frames it has sent.
  uint64_t served_frames;
  // Frames granted and not used yet.
  uint64_t outstanding_frames;
  // Frames that the usual rules would grant ahead, or under `suci` permit to be sent again.
  uint64_t usual_frames;
  // Frames that may be granted to all peers together, less if the path holds fewer.
  uint64_t pool_frames;
  // Number of peers that have more to send; under `suci`, that wait for permission to send again.
  uint64_t active_peers;
  // 1, under `suci` only: the peer asks to send lost frames again, and the answer is how many of them it may. Otherwise the answer is how far
  // ahead it may send.
  uint64_t repairs;
  // Frames that may be granted to all peers together: the capacity of the link's receive side, or as set by tsumuji_set_window.
  uint64_t window_frames;
  // Frames granted to all peers together and not used yet; under `suci`, permitted to be sent again and not arrived yet.
  uint64_t claimed_frames;
  // Free bytes of the budget for arrived messages.
  uint64_t free_bytes;
  // Number of other nodes, active or not.
  uint64_t peers;
  // Time of the last frame with data, in nanoseconds since the handle was opened.
  uint64_t now_ns;
} tsumuji_sender;

// Returns how many frames may be granted ahead to this peer; under `suci`, see `repairs`. Called for each data frame, by the thread that uses the
// handle or, while that one makes no call, by the library's own thread (option progress), never by two at a time. It must be quick, share data with
// the program only by atomics or a lock, and must not use the handle, leave by longjmp, or throw. `sender` is valid until it returns.
typedef uint64_t (*tsumuji_policy)(void *context, const struct tsumuji_sender *sender);

// Ranks peers if memory is scarce: the active peer with the lowest result begins the next message, or under `suci` is the first to be told that
// there is room. The rules of tsumuji_policy apply.
typedef uint64_t (*tsumuji_rank)(void *context, const struct tsumuji_sender *sender);

// Counters of collective operations since the handle was opened.
typedef struct tsumuji_collective_counters {
  // Operations begun.
  uint64_t operations;
  // Messages of invalid form, or of an unknown group.
  uint64_t malformed;
  // Messages for operations that were over.
  uint64_t late;
  // Messages that arrived before their operation was called here, and were kept.
  uint64_t early;
  // Messages dropped because their sender exceeded its credit.
  uint64_t overrun;
  // Frames broadcast by the link, without repairs.
  uint64_t native_frames;
  // Frames broadcast again.
  uint64_t native_repairs;
  // Pieces sent again reliably to one member.
  uint64_t native_resent;
  // Transfers read in the sender's memory.
  uint64_t direct_reads;
} tsumuji_collective_counters;

// A reduction by a function of the program. Fields after `function` may be zero.
typedef struct tsumuji_combine {
  // sizeof(tsumuji_combine).
  size_t size;
  // Bytes of an element, 1 to 1048576.
  size_t element_bytes;
  // For each of `count` elements: result[i] becomes left[i] combined with right[i]. result is left or right itself, so element i is written after
  // both were read. All are aligned as elements of that size must be. Called within calls of this library, by their thread; it must not use the
  // handle (TSUMUJI_EBUSY), leave by longjmp, or throw. It must be associative, as far as floating point is.
  void (*function)(void *context, const void *left, const void *right, void *result, size_t count);
  // First argument of every call; it must stay valid until the operation is over.
  void *context;
  // 0: operands may be exchanged. 1: they may not; left comes from the lower ranks.
  uint64_t ordered;
} tsumuji_combine;

// Numbers of updates that a board refused, by reason.
typedef struct tsumuji_board_drops {
  // Every element is held of this lap or a newer one: repetitions, repairs that were not needed, late frames.
  uint64_t not_newer;
  // With NaN or infinity, which would spread through any iteration.
  uint64_t not_finite;
  // With elements that the sender does not own: the nodes disagree on the offsets.
  uint64_t not_owner;
  // Of a process that another has replaced.
  uint64_t other_incarnation;
  // Without elements, with a part of one, with a lap of 0, or of another epoch than 0: not sent by a board of this library.
  uint64_t malformed;
} tsumuji_board_drops;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The library's version, for example "0.1.0".
const char *tsumuji_version(void);

// General meaning of a code. Never NULL.
const char *tsumuji_strerror(int code);

// Text of the last failure in this thread: which peer, which file, what to do. Valid until the thread's next failure; "" before the first. Never
// NULL.
const char *tsumuji_last_error(void);

// Makes options with their default values. Free them with tsumuji_options_free.
struct tsumuji_options *tsumuji_options_new(void);

// Sets one option; tsumuji(3) lists them all. For example "idle" to "sleep", "budget" to "8M", "dead-after" to "2.5".
int tsumuji_options_set(struct tsumuji_options *options, const char *name, const char *value);

// Frees options; NULL has no effect. Endpoints opened with them keep their own copy.
void tsumuji_options_free(struct tsumuji_options *options);

// Makes a table without members. Free it with tsumuji_members_free.
struct tsumuji_members *tsumuji_members_new(void);

// Adds a member, at "HOST:PORT" (UDP), or at "packet:INTERFACE MAC", "xdp:INTERFACE MAC", "dpdk:DEVICE MAC" or "relay:NAME MAC" (raw Ethernet).
// Members are 0, 1, 2 and so on, in any order; all processes add the same ones.
int tsumuji_members_add(struct tsumuji_members *members,
                        int node,
                        const char *address);

// Frees a table; NULL has no effect.
void tsumuji_members_free(struct tsumuji_members *members);

// Opens this process's endpoint as its environment says: in a process of `tsumuji launch`, `tsumuji join`, `mpiexec`, `mpirun` or `srun`, or with
// TSUMUJI_CLUSTER (a hosts file) and TSUMUJI_NODE. options may be NULL. Writes the handle to *handle; close it with tsumuji_close.
int tsumuji_open_env(const struct tsumuji_options *options,
                     struct tsumuji **handle);

// Opens the endpoint of node `node` of a cluster file (docs/c.md shows one).
int tsumuji_open_cluster(const char *path, int node, const struct tsumuji_options *options, struct tsumuji **handle);

// Opens the endpoint of member `node` of a table. link may be NULL (as the table says), or one link for all: "udp",
// "packet:INTERFACE", "xdp:INTERFACE", "dpdk:DEVICE", "relay:NAME".
int tsumuji_open_members(const struct tsumuji_members *members,
                         const char *link,
                         int node,
                         const struct tsumuji_options *options,
                         struct tsumuji **handle);

// Makes shared memory for `nodes` processes, and returns its descriptor, or a code below 0. Pass it to them (by fork, or over a UNIX socket); each
// opens its endpoint with tsumuji_open_shm. It is close-on-exec; the memory lives as long as a process uses it.
int tsumuji_shm_create(int nodes);

// Opens the endpoint of node `node` of `nodes` processes that share the memory behind `fd`. The descriptor stays the caller's.
int tsumuji_open_shm(int fd,
                     int nodes,
                     int node,
                     const struct tsumuji_options *options,
                     struct tsumuji **handle);

// Closes a handle: waits at most timeout_us microseconds (negative: without limit) for acknowledgements, tells the peers that this node leaves, and
// frees everything of the handle, borrowed messages included. NULL has no effect. TSUMUJI_ELOST: closed, but messages were lost, or not acknowledged
// in time. TSUMUJI_ELINK: closed, and the link failed. After other failures the handle stays open. A closed handle is TSUMUJI_EINVAL to every call.
int tsumuji_close(struct tsumuji *handle,
                  int64_t timeout_us);

// Ends the calling thread's ownership of the handle, so that another thread can acquire it.
int tsumuji_release_ownership(struct tsumuji *handle);

// Makes the calling thread the handle's owner, after the last owner has released it.
int tsumuji_acquire_ownership(struct tsumuji *handle);

// Reports to the launcher why this process cannot go on; `tsumuji launch` prints it. Without launcher it has no effect.
int tsumuji_report_error(const char *text);

// The channel of a class (TSUMUJI_ORDERED or TSUMUJI_UNORDERED), a priority (0 to 3) and an id (below TSUMUJI_CHANNEL_IDS), or a code below 0.
int tsumuji_channel_of(int class_,
                       int priority,
                       int channel_id);

// Sends a copy of a message of up to 4 GiB - 1; while the queue to the peer is full, it waits and receives. The queue's room (option send-queue) is that
// of all messages to the peer, whatever their priority. The message leaves at once if window and link permit, else later, also while the program
// computes. Many small messages are sent faster between tsumuji_cork and tsumuji_uncork, or with TSUMUJI_MORE added to the channel of all but the last.
//
// A message longer than the receiver's budget (option budget) that the receiver does not take holds up everything that comes from its sender after it,
// urgent messages and collectives included.
int tsumuji_send(struct tsumuji *handle,
                 int to,
                 int channel,
                 const void *data,
                 size_t bytes);

// Begins a batch: messages wait for each other until they fill a call of the link, or until tsumuji_uncork; calls that poll send waiting messages,
// too. Batches nest.
int tsumuji_cork(struct tsumuji *handle);

// Ends a batch: waiting messages are sent.
int tsumuji_uncork(struct tsumuji *handle);

// Sends a copy, or returns TSUMUJI_EAGAIN: the queue to the peer is full, or the peer has stopped the channel, or there is no memory before a queued
// message is acknowledged; tsumuji_wait_writable waits for all three. TSUMUJI_ENOMEM: no memory, and no message in the queue.
int tsumuji_try_send(struct tsumuji *handle,
                     int to,
                     int channel,
                     const void *data,
                     size_t bytes);

// As tsumuji_send, and writes to *id the message's number for tsumuji_is_sent and tsumuji_wait_sent.
int tsumuji_send_tracked(struct tsumuji *handle, int to, int channel, const void *data, size_t bytes, uint64_t *id);

// Sends a message from the program's memory, without a copy. The memory must not change until release(context) is called, once: when the message was
// acknowledged, has failed, or could not be sent; in this or a later call, or by the progress assistant's thread. A message of less than 4096 bytes
// is copied, and released before this returns. The same memory may be sent to several peers at a time. If id is not NULL, *id becomes the message's
// number, as in tsumuji_send_tracked: ask with it whether the message was acknowledged, as memory is also released on failure.
int tsumuji_send_shared(struct tsumuji *handle,
                        int to,
                        int channel,
                        const void *data,
                        size_t bytes,
                        void (*release)(void *context),
                        void *context,
                        uint64_t *id);

// 1: the peer has acknowledged the whole message and, on an ordered channel, all before it; 0: not yet. Polls. TSUMUJI_EPEER: the message was lost with
// its peer. TSUMUJI_EINVAL: no message to this peer has this number yet; 0 never is one.
int tsumuji_is_sent(struct tsumuji *handle,
                    int to,
                    uint64_t id);

// Waits until the message is acknowledged: 1, or 0 after timeout_us microseconds (negative: without limit). Errors as of tsumuji_is_sent.
int tsumuji_wait_sent(struct tsumuji *handle,
                      int to,
                      uint64_t id,
                      int64_t timeout_us);

// Waits until a message of `bytes` can be queued to the peer on that channel at once: 1, or 0 after timeout_us.
int tsumuji_wait_writable(struct tsumuji *handle, int to, int channel, size_t bytes, int64_t timeout_us);

// Waits until all messages to live peers are acknowledged: 1, or 0 after timeout_us.
int tsumuji_flush(struct tsumuji *handle, int64_t timeout_us);

// Number of messages to the peer that are not acknowledged yet.
ptrdiff_t tsumuji_queue_length(struct tsumuji *handle, int to);

// Waits for a message on channels that nobody opened, without taking it. 1: *bytes is its length (bytes may be NULL); 0: none in timeout_us.
int tsumuji_ready(struct tsumuji *handle,
                  size_t *bytes,
                  int64_t timeout_us);

// Copies the next message on channels that nobody opened into `buffer`, and returns its length. about may be NULL. TSUMUJI_ETIMEDOUT: none arrived
// in time; with a timeout_us of 0 it is TSUMUJI_EAGAIN. TSUMUJI_EMSGSIZE: it has more than `room` bytes, and waits for a larger buffer.
ptrdiff_t tsumuji_recv(struct tsumuji *handle,
                       void *buffer,
                       size_t room,
                       struct tsumuji_message *about,
                       int64_t timeout_us);

// As tsumuji_recv, without waiting: TSUMUJI_EAGAIN if there is none.
ptrdiff_t tsumuji_try_recv(struct tsumuji *handle, void *buffer, size_t room, struct tsumuji_message *about);

// Borrows the next message on channels that nobody opened, without a copy. It counts against the endpoint's budget until tsumuji_release. At most
// 65,536 messages are borrowed at a time. TSUMUJI_ETIMEDOUT: none arrived in time; with a timeout_us of 0 it is TSUMUJI_EAGAIN.
int tsumuji_recv_borrow(struct tsumuji *handle,
                        struct tsumuji_message *message,
                        int64_t timeout_us);

// Returns a borrowed message; its data must not be read any more, and becomes NULL.
int tsumuji_release(struct tsumuji *handle, struct tsumuji_message *message);

// Sends a datagram to one peer or to all (TSUMUJI_ALL), best effort. If the link has no room now, it waits until a newer one of its channel and key
// replaces it, or until deadline_us microseconds have passed, when it is dropped and counted (negative: no deadline; 0: it is sent now or dropped).
// Between tsumuji_cork and tsumuji_uncork it leaves with the batch, else at once. Returns the number of peers for which it was dropped at once. Up
// to tsumuji_datagram_capacity bytes it is one frame, which reaches all peers on shared memory and raw Ethernet; a longer one is sent to each peer
// separately, within its window.
int tsumuji_send_datagram(struct tsumuji *handle,
                          int to,
                          const struct tsumuji_datagram *datagram,
                          int64_t deadline_us);

// Copies the next datagram of an opened channel (-1: of channels that nobody opened), if no callback got it, into `buffer`; returns its length. Only
// the newest of each source, channel and key waits. about may be NULL; its data is NULL. TSUMUJI_ETIMEDOUT: none arrived in time; TSUMUJI_EAGAIN
// with a timeout_us of 0: there is none. TSUMUJI_EMSGSIZE: it has more than `room` bytes, and waits for a larger buffer.
ptrdiff_t tsumuji_recv_datagram(struct tsumuji *handle,
                                int channel_id,
                                void *buffer,
                                size_t room,
                                struct tsumuji_datagram *about,
                                int64_t timeout_us);

// Largest one-frame datagram in bytes, for this link and every peer met so far.
ptrdiff_t tsumuji_datagram_capacity(struct tsumuji *handle);

// 1: one frame of this link reaches all peers.
int tsumuji_broadcasts(struct tsumuji *handle);

// Receives, gives what arrives on channels that nobody opened to the callbacks, handles timers and sends, until something was done or timeout_us
// microseconds have passed (0: one poll; negative: without limit). Returns how much was done.
int tsumuji_poll(struct tsumuji *handle,
                 const struct tsumuji_handler *handler,
                 int64_t timeout_us);

// One poll that queues what arrives for later calls: lets a computing program acknowledge, go on sending, and advance collectives. Never waits.
// Returns how much was done.
int tsumuji_progress(struct tsumuji *handle);

// A descriptor for poll or epoll: readable when there may be something to do, once tsumuji_arm_fd was called. It belongs to the handle.
int tsumuji_fd(struct tsumuji *handle);

// Asks that the next frame make the descriptor readable. 1: armed; 0: there is something to do now, so poll first.
int tsumuji_arm_fd(struct tsumuji *handle);

// Microseconds after which an event loop must poll again; -1: when the descriptor becomes readable.
int64_t tsumuji_until_timer(struct tsumuji *handle);

// Opens `channel_id`, in every class and priority, with its own mailbox for tsumuji_recv_on, tsumuji_recv_borrow_on and tsumuji_poll_on; or, if
// handler is not NULL, with callbacks, called by whichever thread drives the endpoint: a calling thread, or the progress assistant while the program
// computes. Waiting and borrowed messages count against budget_bytes (0: 4 MiB), apart from the endpoint's own budget, so an unread channel does not
// block others, except by a message longer than the endpoint's budget (see tsumuji_send). When half is used, peers are told to stop sending on it.
// Messages that arrived before come first. Its datagrams belong to it, too.
int tsumuji_open_channel(struct tsumuji *handle,
                         int channel_id,
                         size_t budget_bytes,
                         const struct tsumuji_handler *handler);

// Closes an opened channel; its handler is not called any more. Messages that were not taken are dropped; returns their number.
int tsumuji_close_channel(struct tsumuji *handle,
                          int channel_id);

// State of an opened channel; size: sizeof(tsumuji_channel).
int tsumuji_channel_state(struct tsumuji *handle, int channel_id, struct tsumuji_channel *state, size_t size);

// Waits for a whole message on an opened channel (-1: on those that nobody opened) from a peer (-1: from any) without taking it. 1: *bytes is its
// length (bytes may be NULL); 0: none within timeout_us. TSUMUJI_EPEER: that peer is dead, and has left no message.
int tsumuji_ready_on(struct tsumuji *handle,
                     int channel_id,
                     int from,
                     size_t *bytes,
                     int64_t timeout_us);

// As tsumuji_recv, for an opened channel (-1: for those that nobody opened) and a peer (-1: any). TSUMUJI_EPEER: that peer is dead, and has left no
// message; one that is up again is waited for.
ptrdiff_t tsumuji_recv_on(struct tsumuji *handle,
                          int channel_id,
                          int from,
                          void *buffer,
                          size_t room,
                          struct tsumuji_message *about,
                          int64_t timeout_us);

// As tsumuji_recv_borrow, for channel and peer as in tsumuji_recv_on, TSUMUJI_EPEER included. The message counts against the channel's budget until it is
// released.
int tsumuji_recv_borrow_on(struct tsumuji *handle,
                           int channel_id,
                           int from,
                           struct tsumuji_message *message,
                           int64_t timeout_us);

// As tsumuji_poll, for a channel that was opened without a handler: messages of other channels wait for their receivers, and only `message` and
// `datagram` are called.
int tsumuji_poll_on(struct tsumuji *handle,
                    int channel_id,
                    const struct tsumuji_handler *handler,
                    int64_t timeout_us);

// Within a callback: sends a copy to the sender of the message, on its channel, at the end of the poll. TSUMUJI_EAGAIN: too many bytes sent by
// callbacks wait already.
int tsumuji_reply(const struct tsumuji_message *message,
                  const void *data,
                  size_t bytes);

// Within a callback: sends a copy to any peer, on any channel, at the end of the poll.
int tsumuji_send_from(const struct tsumuji_message *message, int to, int channel, const void *data, size_t bytes);

// Makes an object with which any thread sends messages of this endpoint, and ends its waits. Free it with tsumuji_thread_sender_free; it may outlive
// the endpoint. NULL: an error.
struct tsumuji_thread_sender *tsumuji_thread_sender_new(struct tsumuji *handle);

// Frees a sender. NULL has no effect.
void tsumuji_thread_sender_free(struct tsumuji_thread_sender *sender);

// Sends a copy from any thread. If too many bytes of threads wait already, it waits up to timeout_us microseconds (negative: without limit), and
// then returns TSUMUJI_EAGAIN. The message leaves when the endpoint is driven next; the progress assistant is woken. Messages of one thread to one
// peer and channel arrive in the order sent. TSUMUJI_EINVAL (errno EBADF): the endpoint was closed.
int tsumuji_thread_send(const struct tsumuji_thread_sender *sender,
                        int to,
                        int channel,
                        const void *data,
                        size_t bytes,
                        int64_t timeout_us);

// Ends the endpoint's present wait for an arrival, as if its time had passed; if there is none, the next one.
int tsumuji_thread_wake(const struct tsumuji_thread_sender *sender);

// Posts `buffer` for the next message of an opened channel from a peer (-1: from any): the oldest that waits there, or the next that arrives. Posts
// of a channel are filled in the order in which they were made. A long message is received directly into the buffer, whatever the program does
// meanwhile. The buffer belongs to the library until tsumuji_unpost or tsumuji_close; *post becomes the post's number.
int tsumuji_post(struct tsumuji *handle,
                 int channel_id,
                 int from,
                 void *buffer,
                 size_t room,
                 uint64_t *post);

// Waits until a message has filled the buffer, or its channel was closed: 1, or 0 after timeout_us microseconds (negative: without limit).
// TSUMUJI_EPEER: the post is for messages of one peer, which is dead; the buffer comes back by tsumuji_unpost.
int tsumuji_wait_posted(struct tsumuji *handle,
                        uint64_t post,
                        int64_t timeout_us);

// Ends a post: the buffer is the program's again. Returns the length of the message in it; about may be NULL. TSUMUJI_EAGAIN: no message has filled
// it; one that was arriving there waits on its channel when it is complete. TSUMUJI_EMSGSIZE: a message was longer than the buffer, and waits on its
// channel.
ptrdiff_t tsumuji_unpost(struct tsumuji *handle,
                         uint64_t post,
                         struct tsumuji_message *about);

// Number of this node.
int tsumuji_me(struct tsumuji *handle);

// Number of nodes, this one included, as of the last tsumuji_update_members: nodes are 0 to this - 1.
int tsumuji_nodes(struct tsumuji *handle);

// Takes over what this node has learned of its members: tsumuji_nodes, tsumuji_name and tsumuji_address show those that joined, and new addresses,
// from now on. Returns 1 if anything changed, else 0. Messages to and from new members pass before this call, too.
int tsumuji_update_members(struct tsumuji *handle);

// Name of a node ("node 2", a host's name); NULL if there is no such node. Valid until the handle is closed.
const char *tsumuji_name(struct tsumuji *handle, int which);

// Address of a node ("10.0.0.2:7000", an Ethernet address, an index in shared memory); NULL if there is no such node. Valid until the handle is
// closed.
const char *tsumuji_address(struct tsumuji *handle,
                            int which);

// TCP address of this node's metrics; NULL if the option "metrics" did not ask for one. Valid until the handle is closed.
const char *tsumuji_metrics_address(struct tsumuji *handle);

// Name of the link, without parameters: "shm", "udp", "packet", "xdp", "dpdk", "relay"; with "shm+" before it where nodes share hosts ("shm+udp"). Valid until the handle is closed.
const char *tsumuji_link_name(struct tsumuji *handle);

// 1: hello was exchanged with the peer's present incarnation.
int tsumuji_is_up(struct tsumuji *handle, int peer);

// 1: the peer is dead: nothing was heard from it for too long, or it left, and it has not come back.
int tsumuji_is_dead(struct tsumuji *handle, int peer);

// 1: the peer is not met because it uses the other congestion control; 0: not as far as is known.
int tsumuji_congestion_differs(struct tsumuji *handle, int peer);

// Waits until hello was exchanged with all peers; returns the number of those still missing after timeout_us. TSUMUJI_EPEER: a peer has died or
// left, and is not waited for; see tsumuji_reconnect.
int tsumuji_wait_up(struct tsumuji *handle,
                    int64_t timeout_us);

// Returns how many members are not met now, and writes who they are and what is known of the causes into text, for people: at most size bytes with
// the final 0, "" if all are met. Asks the kernel about them, which takes up to a tenth of a second for each of the first eight.
int tsumuji_absence(struct tsumuji *handle,
                    char *text,
                    size_t size);

// Tries a dead peer again: its process may have been restarted.
int tsumuji_reconnect(struct tsumuji *handle, int peer);

// State of the traffic with a peer; size: sizeof(tsumuji_flow).
int tsumuji_get_flow(struct tsumuji *handle, int peer, struct tsumuji_flow *flow, size_t size);

// What node `which` reports of its traffic with `about`, in both directions; the library there answers without its program; with the option
// progress=program only when the program calls it. 1: answered;
// 0: not within timeout_us microseconds. size: sizeof(tsumuji_flow).
int tsumuji_get_remote_flow(struct tsumuji *handle,
                            int which,
                            int about,
                            struct tsumuji_flow *flow,
                            size_t size,
                            int64_t timeout_us);

// Asks a node for its flows without waiting: the answer goes to tsumuji_handler's flows, or is lost. It holds flows of peers from `first` on: at
// most `most`, and at most 32.
int tsumuji_request_flows(struct tsumuji *handle,
                          int which,
                          int first,
                          int most);

// As tsumuji_get_remote_flow, for all peers of the node in order of their numbers: the first `room` are written to `flows`. Returns how many there
// are. TSUMUJI_ETIMEDOUT: not all answers arrived. size: sizeof(tsumuji_remote_flow).
int tsumuji_get_remote_flows(struct tsumuji *handle,
                             int which,
                             struct tsumuji_remote_flow *flows,
                             size_t size,
                             size_t room,
                             int64_t timeout_us);

// Counters since the endpoint was opened; size: sizeof(tsumuji_counters).
int tsumuji_get_counters(struct tsumuji *handle, struct tsumuji_counters *counters, size_t size);

// Publishes the present counters to `tsumuji top` and other readers, as polling does ten times a second. Never waits.
int tsumuji_publish_metrics(struct tsumuji *handle);

// State of the window; size: sizeof(tsumuji_window).
int tsumuji_get_window(struct tsumuji *handle, struct tsumuji_window *window, size_t size);

// Sets the number of frames granted to all peers together, at least 1; more than frames_limit is cut to that.
int tsumuji_set_window(struct tsumuji *handle, size_t frames);

// Sets the most frames that are granted ahead to this peer; 0: no limit of its own.
int tsumuji_set_peer_window(struct tsumuji *handle, int peer, size_t frames);

// Sets the budget in bytes for messages that arrived and were not consumed; peers wait when it is used.
int tsumuji_set_budget(struct tsumuji *handle, size_t bytes);

// Sets the policy that decides how much peers may send to this node; NULL: the usual rules. With any policy the receiver is not overrun, and no peer
// stops for ever. Under the congestion control `suci` it is called for each window that is announced, and for each peer that asks to send again.
int tsumuji_set_policy(struct tsumuji *handle,
                       tsumuji_policy policy,
                       void *context);

// Sets the rank that decides, if memory is scarce, which peer begins the next message; NULL: the one whose messages use the least memory. Works with
// or without tsumuji_set_policy. A message for which other messages of its sender wait always goes first.
int tsumuji_set_memory_rank(struct tsumuji *handle,
                            tsumuji_rank rank,
                            void *context);

// Asks the policy again for every peer, after its decision has changed between two frames.
int tsumuji_regrant(struct tsumuji *handle);

// Sets the pace of messages to this peer: TSUMUJI_PACE_FREE, TSUMUJI_PACE_DRAIN, or bytes a second.
int tsumuji_set_pace(struct tsumuji *handle, int peer, int64_t pace);

// Makes a group of `count` nodes, whose ranks are their places in `nodes`; returns its number. All of them make the same call, other nodes none.
// Groups of the same nodes are told apart by `tag`. A tag is used once for the same nodes in the same order, also after tsumuji_group_close
// (TSUMUJI_EINVAL); tag 0 with all nodes in order is TSUMUJI_WORLD. A handle makes at most 65,536 groups in its life, that one included.
// TSUMUJI_EUNKNOWN: there is no such node.
int tsumuji_group(struct tsumuji *handle,
                  const int *nodes,
                  size_t count,
                  uint32_t tag);

// Ends the use of a group. Members that call on it nevertheless get TSUMUJI_EMISMATCH, once this node makes a call.
int tsumuji_group_close(struct tsumuji *handle, int group);

// This node's rank in a group.
int tsumuji_group_rank(struct tsumuji *handle, int group);

// Number of members of a group.
int tsumuji_group_size(struct tsumuji *handle, int group);

// Ends when every member has called it.
//
// For this and all operations below: all members of a group make the same calls in the same order. If request is NULL, the call waits for the
// operation's end. Otherwise it returns at once and writes to *request a number for tsumuji_test and tsumuji_wait; the buffers must then stay valid
// and unused until tsumuji_wait has returned or the handle is closed. TSUMUJI_EPEER: a member died, and the group cannot be used any more; or this node
// was restarted, and the group is one of its last incarnation. TSUMUJI_EMISMATCH: a member called something else: another operation, length or root, or a
// reduction by another operation, type, size of elements or `ordered`; or it has closed the group. TSUMUJI_EINVAL: the memory to receive into overlaps
// the memory to send.
int tsumuji_barrier(struct tsumuji *handle,
                    int group,
                    uint64_t *request);

// Copies the root's `data` to all members; `bytes` is the same on all.
int tsumuji_broadcast(struct tsumuji *handle, int group, int root, void *data, size_t bytes, uint64_t *request);

// Each member receives its part of the root's `send`: `bytes` bytes, into `receive`. counts: lengths of the members' parts; NULL: `bytes` each. send
// and counts are used on the root only.
int tsumuji_scatter(struct tsumuji *handle,
                    int group,
                    int root,
                    const void *send,
                    const size_t *counts,
                    void *receive,
                    size_t bytes,
                    uint64_t *request);

// The root receives each member's `send` of `bytes` bytes, one behind the other in order of ranks. counts: their lengths; NULL: `bytes` each.
// receive and counts are used on the root only.
int tsumuji_gather(struct tsumuji *handle,
                   int group,
                   int root,
                   const void *send,
                   size_t bytes,
                   void *receive,
                   const size_t *counts,
                   uint64_t *request);

// As tsumuji_gather, but all members receive everything. counts is used on all, and the same on all.
int tsumuji_all_gather(struct tsumuji *handle,
                       int group,
                       const void *send,
                       size_t bytes,
                       void *receive,
                       const size_t *counts,
                       uint64_t *request);

// Part i of this node's `send` goes to rank i, and part i of `receive` comes from rank i. Counts are lengths in bytes by rank; NULL: `bytes` each. If
// both counts are NULL on one member, they are on all: parts of one length may be combined by hosts.
int tsumuji_all_to_all(struct tsumuji *handle,
                       int group,
                       const void *send,
                       const size_t *send_counts,
                       void *receive,
                       const size_t *receive_counts,
                       size_t bytes,
                       uint64_t *request);

// 1: the operation is over, well or not, and tsumuji_wait returns at once; 0: not yet. Advances all operations.
int tsumuji_test(struct tsumuji *handle, uint64_t request);

// Waits until the operation is over, and returns its result. Each request is waited for once.
int tsumuji_wait(struct tsumuji *handle, uint64_t request);

// Has long transfers between processes of one host go through the link from now on, instead of being read in the sender's memory.
int tsumuji_forbid_direct_reads(struct tsumuji *handle);

// Counters of collective operations; size: sizeof(tsumuji_collective_counters).
int tsumuji_get_collective_counters(struct tsumuji *handle, struct tsumuji_collective_counters *counters, size_t size);

// The root gets in `receive` the combination of all members' `send`: `count` elements of a type (TSUMUJI_DOUBLE ...), by an operation (TSUMUJI_SUM
// ...). receive is used on the root only, and must not overlap send (TSUMUJI_EINVAL).
int tsumuji_reduce(struct tsumuji *handle,
                   int group,
                   int root,
                   const void *send,
                   void *receive,
                   size_t count,
                   int type_,
                   int operation,
                   uint64_t *request);

// As tsumuji_reduce, by a function of the program; *by is not used after the call has returned. Members compare element_bytes and ordered, but cannot
// compare functions.
int tsumuji_reduce_by(struct tsumuji *handle,
                      int group,
                      int root,
                      const void *send,
                      void *receive,
                      size_t count,
                      const struct tsumuji_combine *by,
                      uint64_t *request);

// Replaces `data` on all members by the combination of the elements of all; with the same bits on all.
int tsumuji_all_reduce(struct tsumuji *handle,
                       int group,
                       void *data,
                       size_t count,
                       int type_,
                       int operation,
                       uint64_t *request);

// As tsumuji_all_reduce, by a function of the program; *by is not used after the call has returned.
int tsumuji_all_reduce_by(struct tsumuji *handle,
                          int group,
                          void *data,
                          size_t count,
                          const struct tsumuji_combine *by,
                          uint64_t *request);

// Opens a board of zeros on `channel_id`, and writes it to *board; close it with tsumuji_board_close. Node i owns the range of elements from offsets[i]
// to offsets[i + 1] - 1, and is the only one to write them. offsets has nodes + 1 numbers: the first is 0, none is less than the one before, and the
// last is the number of elements, below 2^32. nodes is at most tsumuji_nodes. Channel and offsets are the same at all nodes. The channel belongs to the
// board: updates that arrive wait there for the board's calls, and messages are dropped, so it should not be 0, the default channel's. Updates that
// arrived before are taken in, too: a second board on a channel must go on with the laps of the first one.
int tsumuji_board_open(struct tsumuji *handle,
                       int channel_id,
                       const size_t *offsets,
                       int nodes,
                       struct tsumuji_board **board);

// Closes a board and its channel; NULL has no effect. Call it also when the endpoint was closed before.
int tsumuji_board_close(struct tsumuji_board *board);

// Writes `count` own elements from `first` on, without sending them. Laps count from 1, wrap to 1 behind 2^32 - 1, and must not go back; an update
// replaces only older laps, so each pass over the elements has a lap of its own.
int tsumuji_board_write(const struct tsumuji_board *board,
                        size_t first,
                        const double *values,
                        size_t count,
                        uint32_t lap);

// As tsumuji_board_write, and sends the elements to all nodes of the board, best effort and at once, in frames of as many elements as fit. values may
// be NULL: the elements as they are, with this lap. To keep copies fresher, publish a lap in pieces. Returns the number of frames that were dropped
// because the link had no room, counted for each peer. What is lost is made good by the next lap or tsumuji_board_repair. NaN and infinity are written
// and sent; other nodes refuse the frame that holds them, and count it.
int tsumuji_board_publish(const struct tsumuji_board *board,
                          size_t first,
                          const double *values,
                          size_t count,
                          uint32_t lap);

// Sends one frame of own elements again, as they were published, and goes on from there at the next call, round and round: repairs updates that were
// lost and have no successor yet. Call it every few milliseconds while others wait. Returns as tsumuji_board_publish.
int tsumuji_board_repair(const struct tsumuji_board *board);

// Takes in the updates that have arrived, handles timers and sends; if nothing was done, waits until something was, up to timeout_us microseconds (0:
// never waits; negative: without limit). Messages and datagrams of other channels wait for their receivers. Returns how much was done. Elements of
// other nodes change only in this call and in tsumuji_board_wait. Between such calls frames wait, of those that begin at the same element the newest, up
// to 4096 and 8 MiB; what exceeds that is lost.
int tsumuji_board_poll(const struct tsumuji_board *board,
                       int64_t timeout_us);

// Takes in updates until every element of node `owner` (TSUMUJI_ALL: of every other node) is of `lap` or newer. 1: they are; 0: not within timeout_us
// microseconds (0: as far as has arrived; negative: without limit). To bound staleness by k, wait for the own lap less k. A node that owns nothing
// is not waited for. TSUMUJI_EPEER: the node is dead, and has not sent them.
int tsumuji_board_wait(const struct tsumuji_board *board,
                       int owner,
                       uint32_t lap,
                       int64_t timeout_us);

// Copies `count` elements from `first` on to `values`. They need not be of one lap.
int tsumuji_board_get(const struct tsumuji_board *board, size_t first, double *values, size_t count);

// Newest lap of node `owner` (this node included) of which any element has arrived; 0: none. Laps of a process that ended count until another at the
// same node is heard of.
int64_t tsumuji_board_lap(const struct tsumuji_board *board,
                          int owner);

// Staleness of node `owner`: laps by which its oldest element here is behind its newest lap here; 0: all elements are of one lap. TSUMUJI_EAGAIN: an
// element has never arrived.
int64_t tsumuji_board_staleness(const struct tsumuji_board *board,
                                int owner);

// Numbers of updates that were refused; size: sizeof(tsumuji_board_drops).
int tsumuji_board_get_drops(const struct tsumuji_board *board, struct tsumuji_board_drops *drops, size_t size);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* TSUMUJI_H */
