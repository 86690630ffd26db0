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

// It worked.
#define TSUMUJI_OK 0

// An argument makes no sense: NULL where something is needed, a number out of range.
#define TSUMUJI_EINVAL -1

// Not now: nothing has come, or the queue is full. Try again, or wait.
#define TSUMUJI_EAGAIN -2

// It did not happen within the given time.
#define TSUMUJI_ETIMEDOUT -3

// A message is larger than the buffer (it waits for a larger one), or than the peer takes.
#define TSUMUJI_EMSGSIZE -4

// The peer is dead: nothing was heard from it for too long, or it left. See tsumuji_reconnect.
#define TSUMUJI_EPEER -5

// There is no such other member.
#define TSUMUJI_EUNKNOWN -6

// No memory for a copy of the message.
#define TSUMUJI_ENOMEM -7

// The link failed for good: close the handle.
#define TSUMUJI_ELINK -8

// The endpoint cannot be opened; the text says why, and what mends it.
#define TSUMUJI_EOPEN -9

// The handle belongs to another thread. See tsumuji_acquire_ownership.
#define TSUMUJI_ETHREAD -10

// The handle is in use: a callback used the handle that called it.
#define TSUMUJI_EBUSY -11

// A bug in the library; the handle can only be closed.
#define TSUMUJI_EPANIC -12

// Members do not agree: on a collective operation, its length, root or table of algorithms, or on the congestion control.
#define TSUMUJI_EMISMATCH -13

// Messages that earlier calls took were lost with their peer, or are given up by tsumuji_close; the text says how many, to whom. Told once,
// and the call does nothing else: send again.
#define TSUMUJI_ELOST -14

// Messages of one channel arrive in the order sent.
#define TSUMUJI_ORDERED 0

// Messages arrive as they are complete.
#define TSUMUJI_UNORDERED 1

// Priorities are 0 to 3, 0 the most urgent: urgent messages never wait behind others.
#define TSUMUJI_URGENT 0

// The usual priority.
#define TSUMUJI_NORMAL 2

// The least urgent: bulk transfers.
#define TSUMUJI_BULK 3

// How many channel ids programs have, in each class and priority: 0 to 65279. Those above are for libraries.
#define TSUMUJI_CHANNEL_IDS 65280

// The channel that most programs use: ordered, of usual priority, with id 0.
#define TSUMUJI_DEFAULT_CHANNEL 131072

// Added to the channel of a tsumuji_send: more messages follow at once, so this one may wait for the first that is sent without it, for the
// next call that polls, or for the assistant. What waits shares frames and calls of the link.
#define TSUMUJI_MORE 1073741824

// A wait without limit.
#define TSUMUJI_FOREVER -1

// Every peer.
#define TSUMUJI_ALL -1

// As fast as credit and link allow.
#define TSUMUJI_PACE_FREE 0

// As fast as the receiver has lately answered, evenly, so that little waits there: the paper's "slow write".
#define TSUMUJI_PACE_DRAIN -1

// The group of all nodes; ranks are node numbers.
#define TSUMUJI_WORLD 0

// Elements of reductions.
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

// How two elements become one. Integers wrap around; of NaN and a number, minimum and maximum take the number.
#define TSUMUJI_SUM 1

// The product.
#define TSUMUJI_PRODUCT 2

// The smaller one.
#define TSUMUJI_MINIMUM 3

// The larger one.
#define TSUMUJI_MAXIMUM 4

// An endpoint as C programs hold it.
typedef struct tsumuji tsumuji;

// Who takes part, and where each is reached.
typedef struct tsumuji_members tsumuji_members;

// What an endpoint is told once, when it is opened.
typedef struct tsumuji_options tsumuji_options;

// Reaches an endpoint from any thread; tsumuji_thread_sender_new makes one.
typedef struct tsumuji_thread_sender tsumuji_thread_sender;

// A message that arrived. Of a borrowed message, data is valid until tsumuji_release.
typedef struct tsumuji_message {
  // The message; NULL where it was copied to the program's own buffer.
  const void *data;
  // Its length.
  size_t bytes;
  // Who sent it.
  int from;
  // The channel it came by.
  int channel;
  // Of a borrowed message: its name, for tsumuji_release.
  uint64_t borrow;
} tsumuji_message;

// A best-effort message, sent or received: what a board's values travel in, or whatever a program makes of it.
typedef struct tsumuji_datagram {
  // The values.
  const void *data;
  // Their length.
  size_t bytes;
  // Who sent it; not looked at when sent.
  int from;
  // The life of the one who sent it; not looked at when sent.
  uint32_t incarnation;
  // Which of the program's own uses; boards use 0.
  uint16_t channel_id;
  // Not used; 0.
  uint16_t reserved;
  // What it is about: a newer one of the same channel and key makes an older one worthless. On boards, the index of the first element.
  uint32_t key;
  // Period of the computation; wraps.
  uint32_t epoch;
  // Within its epoch, which is newer; wraps. On boards, the writer's lap.
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
  // Frames sent again, ever.
  uint64_t retransmitted_frames;
  // Frames that may still be sent before the peer must grant more.
  uint64_t credit_frames;
  // Datagrams that a newer one replaced before they began to leave, ever.
  uint64_t superseded_datagrams;
  // Datagrams that were dropped because their deadline had passed, ever.
  uint64_t late_datagrams;
  // Datagrams of several frames of which one was lost, ever.
  uint64_t lost_datagrams;
  // The other direction: frames that the peer may still send to us.
  uint64_t granted_frames;
  // Frames that it is granted ahead at present: its share of our window.
  uint64_t incoming_window_frames;
  // Memory that its messages take here.
  uint64_t incoming_bytes;
  // 1: its last frame said that more wait to be sent to us.
  uint64_t incoming_backlog;
  // 1: hello was exchanged with the peer's present life.
  uint64_t up;
} tsumuji_flow;

// State of another node's traffic with one of its peers.
typedef struct tsumuji_remote_flow {
  // With whom.
  uint64_t peer;
  // As that node sees it.
  struct tsumuji_flow flow;
} tsumuji_remote_flow;

// What tsumuji_poll calls, on the thread that polls; or, of a channel's own handler (tsumuji_open_channel), whichever thread drives the
// endpoint. Only `message` must be there; the others may be NULL. No callback may use the
// handle (TSUMUJI_EBUSY; tsumuji_reply and tsumuji_send_from send), leave by longjmp, or throw. What it is shown is valid until it
// returns.
typedef struct tsumuji_handler {
  // sizeof(tsumuji_handler).
  size_t size;
  // Given to every callback.
  void *context;
  // A message; it counts as consumed when the callback returns.
  void (*message)(void *context, const struct tsumuji_message *message);
  // A datagram.
  void (*datagram)(void *context, const struct tsumuji_datagram *datagram);
  // Hello was exchanged with this peer (again, after it was dead or restarted).
  void (*peer_up)(void *context, int peer);
  // The peer died, left or restarted; so many messages to it have failed.
  void (*peer_dead)(void *context, int peer, size_t failed_messages);
  // A message of tsumuji_send_tracked was acknowledged whole.
  void (*sent)(void *context, int peer, uint64_t id);
  // A message sent before the peer had said how much it takes was given up; text says why.
  void (*refused)(void *context, int peer, uint64_t id, const char *text);
  // An answer to tsumuji_ask_flows; next: from where to go on asking, or -1.
  void (*flows)(void *context, int node, const struct tsumuji_remote_flow *flows, size_t count, int next);
  // A tsumuji_try_send to that peer and channel that said TSUMUJI_EAGAIN may be tried again.
  void (*writable)(void *context, int peer, int channel_id);
} tsumuji_handler;

// What waits on an opened channel.
typedef struct tsumuji_channel {
  // Messages that arrived and were not taken.
  size_t messages;
  // What they and those that are borrowed take, with 64 bytes for each.
  size_t used_bytes;
  // As tsumuji_open_channel said.
  size_t budget_bytes;
  // Peers that were told to stop sending on it, and not yet to go on.
  size_t stopped_peers;
} tsumuji_channel;

// What was counted since the endpoint was opened.
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
  // Times that silence was probed.
  uint64_t probes;
  // Messages delivered.
  uint64_t delivered_messages;
  // Frames dropped because they were damaged, not understood, not for us, or not new.
  uint64_t dropped_frames;
  // Frames dropped because they did not come from where their source lives.
  uint64_t spoofed_source_frames;
  // Datagrams dropped because nobody took them.
  uint64_t dropped_datagrams;
  // Times that the link had no free place for a frame.
  uint64_t link_refusals;
  // Frames that the medium or the kernel reported dropped.
  uint64_t link_dropped_frames;
  // Broadcast frames overwritten before they were read.
  uint64_t link_overrun_frames;
  // Frames dropped on purpose (TSUMUJI_LOSS).
  uint64_t impaired_frames;
} tsumuji_counters;

// What peers may send ahead at present, and the memory for what has arrived.
typedef struct tsumuji_window {
  // Frames that may be granted to all peers together.
  uint64_t frames;
  // Most that `frames` can be: what the link's receive side holds.
  uint64_t frames_limit;
  // Of these, granted and not used yet.
  uint64_t granted_frames;
  // Memory that messages which arrived and were not consumed may take.
  uint64_t budget_bytes;
  // Of that, taken.
  uint64_t budget_used_bytes;
} tsumuji_window;

// A peer that may want to send, as a policy is shown it.
typedef struct tsumuji_sender {
  // Who.
  uint64_t peer;
  // 1: it has more to send.
  uint64_t active;
  // 1: it serves others too, and cannot use all that it is granted.
  uint64_t busy;
  // Of its last frame: 0 is the most urgent.
  uint64_t priority;
  // Of its messages that have begun to arrive: what has not.
  uint64_t remaining_bytes;
  // Memory that its messages take here.
  uint64_t memory_bytes;
  // Its frames that were used.
  uint64_t served_frames;
  // Granted and not yet used.
  uint64_t outstanding_frames;
  // What the usual rules would grant ahead, or under `suci` to be sent again.
  uint64_t usual_frames;
  // Frames that may be granted to all peers together, less where the path holds less.
  uint64_t pool_frames;
  // Peers that have more to send; under `suci`, that wait for permission to send again.
  uint64_t active_peers;
  // 1, under `suci` only: it asks to send again what was lost, and the answer is how much of that it may. Else the answer is how far
  // ahead it may send.
  uint64_t repairs;
  // Frames that may be granted to all peers together: what the link's receive side holds, or tsumuji_set_window's.
  uint64_t window_frames;
  // Granted to all peers together and not used yet; under `suci` permitted to be sent again and not come yet.
  uint64_t claimed_frames;
  // Bytes that the budget for messages which arrived still holds.
  uint64_t free_bytes;
  // Other nodes, active or not.
  uint64_t peers;
  // When the last frame came that brought data, in nanoseconds since the handle was opened.
  uint64_t now_ns;
} tsumuji_sender;

// How many frames this peer may have granted ahead; under `suci`, see `repairs`. Called for each data frame, by the thread that uses the handle or, while
// that one makes no call, by the library's own (option progress), never by two at a time: it must be quick, share what it reads with the
// program by atomics or a lock, and must not use the handle, leave by longjmp, or throw. `sender` is valid until it returns.
typedef uint64_t (*tsumuji_policy)(void *context, const struct tsumuji_sender *sender);

// Whose turn it is where memory is scarce: the active peer with the lowest answer begins the next message, or under `suci` is the first to
// be told that there is room. Called as a tsumuji_policy is, and on the same terms.
typedef uint64_t (*tsumuji_rank)(void *context, const struct tsumuji_sender *sender);

// What collective operations have counted since the handle was opened.
typedef struct tsumuji_collective_counters {
  // Operations begun.
  uint64_t operations;
  // Messages of no legal form, or of nobody's group.
  uint64_t malformed;
  // Messages for operations that were over.
  uint64_t late;
  // Messages that came before their operation was called here, and were kept.
  uint64_t early;
  // Messages dropped because their sender went beyond its credit.
  uint64_t overrun;
  // Frames broadcast by the link itself, repairs not counted.
  uint64_t native_frames;
  // Frames broadcast again.
  uint64_t native_repairs;
  // Pieces sent again reliably to one member.
  uint64_t native_resent;
  // Transfers read where their sender had them.
  uint64_t direct_reads;
} tsumuji_collective_counters;

// A reduction by a function of the program's own. Fields behind `function` may be left zero.
typedef struct tsumuji_combine {
  // sizeof(tsumuji_combine).
  size_t size;
  // Bytes of an element, 1 to 1048576.
  size_t element_bytes;
  // For each of `count` elements: result[i] becomes left[i] combined with right[i]. result is left or right itself, so element i is written
  // after it was read in both. All lie as elements of such a size must. Called within calls of this library, by their thread;
  // it must not use the handle (TSUMUJI_EBUSY), leave by longjmp, or throw. It must be associative, as far as floating point is.
  void (*function)(void *context, const void *left, const void *right, void *result, size_t count);
  // Given to every call; it must stay until the operation is over.
  void *context;
  // 0: operands may be exchanged. 1: they may not; left comes from the lower ranks.
  uint64_t ordered;
} tsumuji_combine;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The library's version, for example "0.1.0".
const char *tsumuji_version(void);

// What a code means, in general. Never NULL.
const char *tsumuji_strerror(int code);

// The particular text of the last failure in this thread: which peer, which file, what to do. Valid until the thread's next
// failure; "" before the first. Never NULL.
const char *tsumuji_last_error(void);

// New options, all as they are by default. Free them with tsumuji_options_free.
struct tsumuji_options *tsumuji_options_new(void);

// Sets one option; tsumuji(3) lists them all. For example "idle" to "sleep", "budget" to "8M", "dead-after" to "2.5".
int tsumuji_options_set(struct tsumuji_options *options, const char *name, const char *value);

// Frees options; NULL is nothing. Endpoints opened with them keep their own copy.
void tsumuji_options_free(struct tsumuji_options *options);

// A table without members. Free it with tsumuji_members_free.
struct tsumuji_members *tsumuji_members_new(void);

// Adds a member, at "HOST:PORT" (UDP), or at "packet:INTERFACE MAC", "xdp:INTERFACE MAC" or "dpdk:DEVICE MAC" (raw Ethernet).
// Members are 0, 1, 2 and so on, in any order; all processes add the same ones.
int tsumuji_members_add(struct tsumuji_members *members,
                        int node,
                        const char *address);

// Frees a table; NULL is nothing.
void tsumuji_members_free(struct tsumuji_members *members);

// Opens this process's endpoint as its environment says: in a process of `tsumuji launch`, or with TSUMUJI_CLUSTER and
// TSUMUJI_NODE. options may be NULL. The handle goes to *handle; close it with tsumuji_close.
int tsumuji_open_env(const struct tsumuji_options *options, struct tsumuji **handle);

// Opens the endpoint of node `node` of a cluster file (docs/c.md shows one).
int tsumuji_open_cluster(const char *path, int node, const struct tsumuji_options *options, struct tsumuji **handle);

// Opens the endpoint of member `node` of a table. link may be NULL (as the table says), or one link for all: "udp",
// "packet:INTERFACE", "xdp:INTERFACE", "dpdk:DEVICE".
int tsumuji_open_members(const struct tsumuji_members *members,
                         const char *link,
                         int node,
                         const struct tsumuji_options *options,
                         struct tsumuji **handle);

// Makes shared memory for `nodes` processes, and returns its descriptor, or a code below 0. Give it to them (by fork, or over a UNIX
// socket), and let each open its endpoint by tsumuji_open_shm. It is close-on-exec; the memory lives as long as somebody uses it.
int tsumuji_shm_create(int nodes);

// Opens the endpoint of node `node` of `nodes` processes that share the memory behind `fd`. The descriptor stays the caller's.
int tsumuji_open_shm(int fd,
                     int nodes,
                     int node,
                     const struct tsumuji_options *options,
                     struct tsumuji **handle);

// Waits at most timeout_us microseconds (negative: without limit) until what was sent is acknowledged, tells the peers that this
// node leaves, and frees all that the handle had, borrowed messages included. NULL is nothing. TSUMUJI_ELOST: closed, but something that was sent was lost, or
// not acknowledged in time. TSUMUJI_ELINK: closed, and the link failed. After other failures the handle stays as it is. A handle that was closed is TSUMUJI_EINVAL to every call.
int tsumuji_close(struct tsumuji *handle,
                  int64_t timeout_us);

// Gives the handle up, so that another thread can acquire_ownership it.
int tsumuji_release_ownership(struct tsumuji *handle);

// Makes the calling thread the handle's owner, after the last owner gave it up.
int tsumuji_acquire_ownership(struct tsumuji *handle);

// Tells the launcher why this process cannot go on; `tsumuji launch` prints it. Without launcher it does nothing.
int tsumuji_report_error(const char *text);

// The channel of a class (TSUMUJI_ORDERED or TSUMUJI_UNORDERED), a priority (0 to 3) and an id (below TSUMUJI_CHANNEL_IDS), or a code below 0.
int tsumuji_channel_of(int class_,
                       int priority,
                       int channel_id);

// Sends a copy of a message of up to 4 GiB - 1; waits while the queue to the peer is full, and receives meanwhile. It leaves at once if
// window and link permit, else as soon as they do, also while the program computes. Many small messages cost less between
// tsumuji_cork and tsumuji_uncork, or with TSUMUJI_MORE added to the channel of all but the last.
int tsumuji_send(struct tsumuji *handle,
                 int to,
                 int channel,
                 const void *data,
                 size_t bytes);

// Begins a batch: messages wait for each other, until they fill a call of the link or tsumuji_uncork ends the batch; calls that poll send
// what waits, too. Batches nest.
int tsumuji_cork(struct tsumuji *handle);

// Ends a batch: what waits leaves.
int tsumuji_uncork(struct tsumuji *handle);

// Sends a copy, or says TSUMUJI_EAGAIN if the queue to the peer is full, or its owner of the channel wants nothing more for now, or
// memory is short before something in the queue is acknowledged; tsumuji_wait_writable waits for all of them. TSUMUJI_ENOMEM: there is no memory, and nothing is in the queue.
int tsumuji_try_send(struct tsumuji *handle,
                     int to,
                     int channel,
                     const void *data,
                     size_t bytes);

// Like tsumuji_send, and puts into *id by what tsumuji_is_sent and tsumuji_wait_sent know the message.
int tsumuji_send_tracked(struct tsumuji *handle, int to, int channel, const void *data, size_t bytes, uint64_t *id);

// Sends a message from where the program has it, without a copy. The memory must stay as it is until release(context) is called, once:
// when the message is acknowledged or has failed, or could not be sent; in this or a later call, or by the progress assistant's thread. One
// of less than 4096 bytes is copied, and released before this returns. The same memory may be sent to several peers at a time. If id is not
// NULL, the message is known by *id, as one of tsumuji_send_tracked is: memory that is released and a message that is acknowledged are two
// things where it failed.
int tsumuji_send_shared(struct tsumuji *handle,
                        int to,
                        int channel,
                        const void *data,
                        size_t bytes,
                        void (*release)(void *context),
                        void *context,
                        uint64_t *id);

// 1: the peer has acknowledged the whole message; 0: not yet. Takes a turn. TSUMUJI_EPEER: it was lost with its peer.
int tsumuji_is_sent(struct tsumuji *handle, int to, uint64_t id);

// Waits until the message is acknowledged: 1, or 0 if timeout_us microseconds have passed (negative: without limit).
int tsumuji_wait_sent(struct tsumuji *handle, int to, uint64_t id, int64_t timeout_us);

// Waits until a message of `bytes` can be queued to the peer on that channel at once: 1, or 0 if the time has passed.
int tsumuji_wait_writable(struct tsumuji *handle, int to, int channel, size_t bytes, int64_t timeout_us);

// Waits until all that was sent to living peers is acknowledged: 1, or 0 if the time has passed.
int tsumuji_flush(struct tsumuji *handle, int64_t timeout_us);

// Messages to the peer that are not yet acknowledged.
ptrdiff_t tsumuji_queue_length(struct tsumuji *handle, int to);

// Waits for a whole message on channels that nobody opened, without taking it. 1: there is one, of *bytes bytes (bytes may be NULL); 0: the time has passed.
int tsumuji_ready(struct tsumuji *handle,
                  size_t *bytes,
                  int64_t timeout_us);

// Takes the next message on channels that nobody opened into `buffer`; returns its length. about may be NULL. TSUMUJI_ETIMEDOUT: none came in time.
// TSUMUJI_EMSGSIZE: it has more than `room` bytes, and waits for a larger buffer.
ptrdiff_t tsumuji_recv(struct tsumuji *handle,
                       void *buffer,
                       size_t room,
                       struct tsumuji_message *about,
                       int64_t timeout_us);

// Like tsumuji_recv, without waiting: TSUMUJI_EAGAIN if there is none.
ptrdiff_t tsumuji_try_recv(struct tsumuji *handle, void *buffer, size_t room, struct tsumuji_message *about);

// Lends the next message on channels that nobody opened where it lies, without copying it. It counts against the endpoint's budget until
// it is given back with tsumuji_release. At most 65,536 are borrowed at a time.
int tsumuji_recv_borrow(struct tsumuji *handle,
                        struct tsumuji_message *message,
                        int64_t timeout_us);

// Gives a borrowed message back; its data must not be read any more, and becomes NULL.
int tsumuji_release(struct tsumuji *handle, struct tsumuji_message *message);

// Sends a datagram to one peer or to all (TSUMUJI_ALL): best effort. Where the link has no room for it now, it waits until a newer one of its
// channel and key takes its place, or until deadline_us microseconds have passed, and then it is dropped and counted (negative: no
// deadline; 0: it leaves now or not at all). Between tsumuji_cork and tsumuji_uncork it leaves with what else is sent, else at once. Returns
// for how many peers it neither left nor waits. One of up to tsumuji_datagram_capacity bytes is one frame, which reaches everybody on
// shared memory and raw Ethernet; a longer one goes to each peer by itself, as the peer's window permits.
int tsumuji_send_datagram(struct tsumuji *handle,
                          int to,
                          const struct tsumuji_datagram *datagram,
                          int64_t deadline_us);

// Takes the next datagram of an opened channel (-1: of those that nobody opened) that no callback was given, into `buffer`; returns its
// length. Of those of one source, channel and key only the newest waits. about may be NULL; its data is NULL. TSUMUJI_ETIMEDOUT: none came
// in time; TSUMUJI_EAGAIN with a timeout_us of 0: there is none. TSUMUJI_EMSGSIZE: it has more than `room` bytes, and waits for a larger buffer.
ptrdiff_t tsumuji_recv_datagram(struct tsumuji *handle,
                                int channel_id,
                                void *buffer,
                                size_t room,
                                struct tsumuji_datagram *about,
                                int64_t timeout_us);

// Longest datagram that is one frame, in bytes: on this link, and for every peer that was met so far.
ptrdiff_t tsumuji_datagram_capacity(struct tsumuji *handle);

// 1: one frame of this link reaches everybody.
int tsumuji_broadcasts(struct tsumuji *handle);

// Receives, hands over by the callbacks what comes on channels that nobody opened, minds timers and sends, until something was done or timeout_us microseconds have passed (0: one
// turn; negative: without limit). Returns how much was done.
int tsumuji_poll(struct tsumuji *handle,
                 const struct tsumuji_handler *handler,
                 int64_t timeout_us);

// One turn that keeps what arrives for later calls: lets a program that computes acknowledge, go on sending, and carry on collectives.
// Never waits.
// Returns how much was done.
int tsumuji_progress(struct tsumuji *handle);

// A descriptor for poll or epoll: readable when there may be something to do, once tsumuji_arm_fd was called. It stays the handle's.
int tsumuji_fd(struct tsumuji *handle);

// Asks that the next frame make the descriptor readable. 1: armed; 0: there is something to do now, so poll first.
int tsumuji_arm_fd(struct tsumuji *handle);

// Microseconds that an event loop may sleep before it must poll again; -1: until the descriptor is readable.
int64_t tsumuji_until_timer(struct tsumuji *handle);

// Keeps what comes on `channel_id`, in every class and priority, apart from all else: for tsumuji_recv_on, tsumuji_recv_borrow_on and
// tsumuji_poll_on; or, if handler is not NULL, for its callbacks, which are called by whichever thread drives the endpoint: one
// that calls, or the progress assistant while the program computes. What waits or is borrowed counts against budget_bytes (0: 4 MiB), beside
// the endpoint's own budget, so a channel that nobody reads holds up no other. When half is used, peers are told to stop sending
// on it. What came before is its first. Its datagrams belong to it, too.
int tsumuji_open_channel(struct tsumuji *handle,
                         int channel_id,
                         size_t budget_bytes,
                         const struct tsumuji_handler *handler);

// Ends what tsumuji_open_channel began; its handler is called no more. Messages that nobody took are dropped; returns how many.
int tsumuji_close_channel(struct tsumuji *handle,
                          int channel_id);

// What waits on an opened channel; size: sizeof(tsumuji_channel).
int tsumuji_channel_state(struct tsumuji *handle, int channel_id, struct tsumuji_channel *state, size_t size);

// Waits for a whole message on an opened channel (-1: on those that nobody opened) from a peer (-1: from anyone) without taking it. 1: there
// is one, of *bytes bytes (bytes may be NULL); 0: the time has passed.
int tsumuji_ready_on(struct tsumuji *handle,
                     int channel_id,
                     int from,
                     size_t *bytes,
                     int64_t timeout_us);

// Takes the next message of an opened channel (-1: of those that nobody opened) from a peer (-1: from anyone), as tsumuji_recv does.
// TSUMUJI_EAGAIN with a timeout_us of 0: there is none.
ptrdiff_t tsumuji_recv_on(struct tsumuji *handle,
                          int channel_id,
                          int from,
                          void *buffer,
                          size_t room,
                          struct tsumuji_message *about,
                          int64_t timeout_us);

// Lends it, as tsumuji_recv_borrow does. It counts against the channel's budget until it is released.
int tsumuji_recv_borrow_on(struct tsumuji *handle,
                           int channel_id,
                           int from,
                           struct tsumuji_message *message,
                           int64_t timeout_us);

// As tsumuji_poll, of a channel that was opened without a handler: what comes on others waits for those who take it, and only `message`
// and `datagram` are called.
int tsumuji_poll_on(struct tsumuji *handle,
                    int channel_id,
                    const struct tsumuji_handler *handler,
                    int64_t timeout_us);

// Within a callback: sends a copy to whom the message came from, by its channel, when the callback's turn ends. TSUMUJI_EAGAIN: too much waits
// to be sent by callbacks.
int tsumuji_reply(const struct tsumuji_message *message,
                  const void *data,
                  size_t bytes);

// Within a callback: sends a copy to any peer, by any channel, when the callback's turn ends.
int tsumuji_send_from(const struct tsumuji_message *message, int to, int channel, const void *data, size_t bytes);

// By which any thread sends messages of this endpoint, and ends its waits. To be freed; it outlives the endpoint, and says so then. NULL:
// an error.
struct tsumuji_thread_sender *tsumuji_thread_sender_new(struct tsumuji *handle);

// Frees it. NULL is nothing.
void tsumuji_thread_sender_free(struct tsumuji_thread_sender *sender);

// Sends a copy from any thread; waits up to timeout_us microseconds (negative: without limit) while too much waits to be sent by threads,
// and says TSUMUJI_EAGAIN then. It leaves when the endpoint is driven next; the progress assistant is woken for it. Messages of one
// thread to one peer and channel arrive in the order sent. TSUMUJI_EINVAL (errno EBADF): the endpoint was closed.
int tsumuji_thread_send(const struct tsumuji_thread_sender *sender,
                        int to,
                        int channel,
                        const void *data,
                        size_t bytes,
                        int64_t timeout_us);

// Ends the call in which the endpoint waits for something to arrive, as if its time had passed; if there is none, the next one.
int tsumuji_thread_wake(const struct tsumuji_thread_sender *sender);

// Has the next message of an opened channel from a peer (-1: from anyone) put into `buffer`: the oldest that waits there, or the first that comes.
// Posts of a channel are filled in the order in which they were made. A long message lands there as its frames come, without another
// copy, whatever the program does meanwhile. The buffer is the library's until tsumuji_unpost or tsumuji_close; *post names it.
int tsumuji_post(struct tsumuji *handle,
                 int channel_id,
                 int from,
                 void *buffer,
                 size_t room,
                 uint64_t *post);

// Waits until a message has come for that buffer, or its channel was closed: 1, or 0 if timeout_us microseconds have passed (negative: without
// limit).
int tsumuji_wait_posted(struct tsumuji *handle,
                        uint64_t post,
                        int64_t timeout_us);

// Ends a post: the buffer is the program's again. Returns the length of the message that lies in it; about may be NULL. TSUMUJI_EAGAIN: none
// has come; one that was arriving there waits on its channel when it is whole. TSUMUJI_EMSGSIZE: the one that came is longer than
// the buffer, and waits on its channel.
ptrdiff_t tsumuji_unpost(struct tsumuji *handle,
                         uint64_t post,
                         struct tsumuji_message *about);

// This node.
int tsumuji_me(struct tsumuji *handle);

// How many nodes there are, this one included: 0 to this - 1.
int tsumuji_nodes(struct tsumuji *handle);

// What people call a node ("node 2", a host's name); NULL if there is none. Valid until the handle is closed.
const char *tsumuji_name(struct tsumuji *handle, int which);

// Where a node is reached ("10.0.0.2:7000", an Ethernet address, a place in shared memory); NULL if there is no such node. Valid until the
// handle is closed.
const char *tsumuji_address(struct tsumuji *handle,
                            int which);

// Where this node's counters are read over TCP; NULL if the option "metrics" did not ask for that. Valid until the handle is closed.
const char *tsumuji_metrics_address(struct tsumuji *handle);

// The link, without parameters: "shm", "udp", "packet", "xdp", "dpdk". Valid until the handle is closed.
const char *tsumuji_link_name(struct tsumuji *handle);

// 1: hello was exchanged with the peer's present life.
int tsumuji_is_up(struct tsumuji *handle, int peer);

// 1: the peer is dead: nothing was heard from it for too long, or it left, and it has not come back.
int tsumuji_is_dead(struct tsumuji *handle, int peer);

// 1: the peer is not met because it runs the other congestion control; 0: as far as is known it does not.
int tsumuji_congestion_differs(struct tsumuji *handle, int peer);

// Waits until hello was exchanged with everybody; returns how many are still missing when the time has passed. TSUMUJI_EPEER: one has died or
// left, and is not waited for; see tsumuji_reconnect.
int tsumuji_wait_up(struct tsumuji *handle,
                    int64_t timeout_us);

// Tries a dead peer again: its process may have been restarted.
int tsumuji_reconnect(struct tsumuji *handle, int peer);

// State of the traffic with a peer; size: sizeof(tsumuji_flow).
int tsumuji_get_flow(struct tsumuji *handle, int peer, struct tsumuji_flow *flow, size_t size);

// What another node says of its traffic with `about`, in both directions; the library there answers whenever its program calls it. 1: answered;
// 0: not within timeout_us microseconds. size: sizeof(tsumuji_flow).
int tsumuji_get_remote_flow(struct tsumuji *handle,
                            int which,
                            int about,
                            struct tsumuji_flow *flow,
                            size_t size,
                            int64_t timeout_us);

// Asks a node for its flows without waiting: the answer comes to tsumuji_handler's flows, or is lost. From `first` on, at most `most`, and as
// many as fit a frame.
int tsumuji_ask_flows(struct tsumuji *handle,
                      int which,
                      int first,
                      int most);

// The same of its traffic with all its peers, in order of their numbers: the first `room` go to `flows`. Returns how many there are.
// TSUMUJI_ETIMEDOUT: it has not told all of them. size: sizeof(tsumuji_remote_flow).
int tsumuji_get_remote_flows(struct tsumuji *handle,
                             int which,
                             struct tsumuji_remote_flow *flows,
                             size_t size,
                             size_t room,
                             int64_t timeout_us);

// What was counted since the endpoint was opened; size: sizeof(tsumuji_counters).
int tsumuji_get_counters(struct tsumuji *handle, struct tsumuji_counters *counters, size_t size);

// Shows the present counters to `tsumuji top` and other readers now, as polling does ten times a second. Never waits.
int tsumuji_publish_metrics(struct tsumuji *handle);

// The windows at present; size: sizeof(tsumuji_window).
int tsumuji_get_window(struct tsumuji *handle, struct tsumuji_window *window, size_t size);

// From now on so many frames are granted to all peers together, from 1 to frames_limit.
int tsumuji_set_window(struct tsumuji *handle, size_t frames);

// From now on no more than so many frames are granted ahead to this peer; 0: no limit of its own.
int tsumuji_set_peer_window(struct tsumuji *handle, int peer, size_t frames);

// From now on messages that arrived and were not consumed may take so many bytes; peers wait when they do.
int tsumuji_set_budget(struct tsumuji *handle, size_t bytes);

// From now on `policy` decides how much peers may send to this node; NULL: the usual rules do. Whatever it says, the receive side is not overrun,
// and no peer stops for ever. Under the congestion control `suci` it is asked for each window that is stated, and for each peer that asks
// to send again.
int tsumuji_set_policy(struct tsumuji *handle,
                       tsumuji_policy policy,
                       void *context);

// From now on `rank` decides, where memory is scarce, who begins the next message; NULL: whose messages take the least. With or without
// tsumuji_set_policy. A message that its sender's others wait for goes first whatever it says.
int tsumuji_set_memory_rank(struct tsumuji *handle,
                            tsumuji_rank rank,
                            void *context);

// Has the policy asked again for every peer, where its mind has changed between two frames.
int tsumuji_regrant(struct tsumuji *handle);

// From now on messages leave to this peer at this pace: TSUMUJI_PACE_FREE, TSUMUJI_PACE_DRAIN, or so many bytes a second.
int tsumuji_set_pace(struct tsumuji *handle,
                     int peer,
                     int64_t pace);

// Makes a group of `count` nodes, whose ranks are their places in `nodes`; returns its number. Each of them makes the same call, others none.
// Several groups of the same nodes are told apart by `tag`.
int tsumuji_group(struct tsumuji *handle,
                  const int *nodes,
                  size_t count,
                  uint32_t tag);

// Ends the use of a group.
int tsumuji_group_close(struct tsumuji *handle, int group);

// This node's rank in a group.
int tsumuji_group_rank(struct tsumuji *handle, int group);

// How many members a group has.
int tsumuji_group_size(struct tsumuji *handle, int group);

// Ends when every member has called it.
//
// This and all operations below: all members of a group make the same calls in the same order. Where request is NULL the call waits for the
// operation's end. Otherwise it returns at once and writes to *request by what tsumuji_test and tsumuji_wait know the operation; the
// buffers must then stay, and be left alone, until tsumuji_wait has returned or the handle is closed.
// TSUMUJI_EPEER: a member died, and the group cannot be used any more. TSUMUJI_EMISMATCH: a member called something else.
int tsumuji_barrier(struct tsumuji *handle,
                    int group,
                    uint64_t *request);

// What `data` holds on the root it then holds on all; of one length on all.
int tsumuji_broadcast(struct tsumuji *handle, int group, int root, void *data, size_t bytes, uint64_t *request);

// Each member gets its part of the root's `send`, `bytes` long, in `receive`. counts: how long each member's part is; NULL: all `bytes`.
// send and counts are looked at on the root only.
int tsumuji_scatter(struct tsumuji *handle,
                    int group,
                    int root,
                    const void *send,
                    const size_t *counts,
                    void *receive,
                    size_t bytes,
                    uint64_t *request);

// The root gets each member's `send`, `bytes` long, one behind the other in order of ranks. counts: how long each is; NULL: all `bytes`.
// receive and counts are looked at on the root only.
int tsumuji_gather(struct tsumuji *handle,
                   int group,
                   int root,
                   const void *send,
                   size_t bytes,
                   void *receive,
                   const size_t *counts,
                   uint64_t *request);

// Like tsumuji_gather, and everybody gets everything. counts is looked at on all, and the same on all.
int tsumuji_all_gather(struct tsumuji *handle,
                       int group,
                       const void *send,
                       size_t bytes,
                       void *receive,
                       const size_t *counts,
                       uint64_t *request);

// Part i of this node's `send` goes to rank i, and part i of `receive` comes from there. Counts are lengths in bytes by rank; NULL: all `bytes`.
int tsumuji_all_to_all(struct tsumuji *handle,
                       int group,
                       const void *send,
                       const size_t *send_counts,
                       void *receive,
                       const size_t *receive_counts,
                       size_t bytes,
                       uint64_t *request);

// 1: the operation is over, well or not, and tsumuji_wait returns at once; 0: not yet. Carries on everything under way.
int tsumuji_test(struct tsumuji *handle, uint64_t request);

// Waits until the operation is over, and says how it ended. Each request is waited for once.
int tsumuji_wait(struct tsumuji *handle, uint64_t request);

// From now on long transfers between processes of one host come through the link, instead of being read where their sender has them.
int tsumuji_forbid_direct_reads(struct tsumuji *handle);

// size: sizeof(tsumuji_collective_counters).
int tsumuji_get_collective_counters(struct tsumuji *handle, struct tsumuji_collective_counters *counters, size_t size);

// The root gets in `receive` what the elements of all members' `send` come to: `count` of a type (TSUMUJI_DOUBLE ...), by an operation
// (TSUMUJI_SUM ...). receive is looked at on the root only.
int tsumuji_reduce(struct tsumuji *handle,
                   int group,
                   int root,
                   const void *send,
                   void *receive,
                   size_t count,
                   int type_,
                   int operation,
                   uint64_t *request);

// tsumuji_reduce by a function of the program's own; *by is not needed any more when the call returns.
int tsumuji_reduce_by(struct tsumuji *handle,
                      int group,
                      int root,
                      const void *send,
                      void *receive,
                      size_t count,
                      const struct tsumuji_combine *by,
                      uint64_t *request);

// `data` becomes on all members what the elements of all come to; the same bits on all.
int tsumuji_all_reduce(struct tsumuji *handle,
                       int group,
                       void *data,
                       size_t count,
                       int type_,
                       int operation,
                       uint64_t *request);

// tsumuji_all_reduce by a function of the program's own; *by is not needed any more when the call returns.
int tsumuji_all_reduce_by(struct tsumuji *handle,
                          int group,
                          void *data,
                          size_t count,
                          const struct tsumuji_combine *by,
                          uint64_t *request);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* TSUMUJI_H */
