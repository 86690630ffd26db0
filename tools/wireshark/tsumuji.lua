-- Wireshark dissector of the tsumuji protocol, version 1 (docs/protocol.md; rule numbers below are its).
--
-- Try it:     tshark -X lua_script:tools/wireshark/tsumuji.lua -r trace.0.pcapng
-- Install it: copy this file into the folder that Wireshark names under Help, About, Folders, "Personal Lua Plugins".
--
-- Takes EtherType 0x88B5 (raw links, and every capture file of tsumuji's own), UDP on the ports of the preference
-- `tsumuji.udp_ports`, and UDP on any port if the payload is exactly one frame.
--
-- Under the congestion control `suci` a frame that is sent again keeps its number, and cannot be told from a copy.
--
-- Invariant: nothing is read that was not captured, so no frame, however mangled, ends in a Lua error. What a receiver would
-- drop is marked by an expert item. Left out on purpose: opening sealed frames; this file never sees a key.

local tsumuji = Proto("tsumuji", "tsumuji message passing")

local VERSION = 1
local BITMAP_BYTES_MAX = 512 -- R-4
local FRAME_BYTES_LEAST = 64 -- R-5
local TWO_32 = 4294967296
local ENVELOPE_BYTES, TAG_BYTES = 16, 16
-- R-62: what each step of a handshake carries between header and proof.
local PROOF_BYTES = 32
local BODY_BYTES = { [0] = 8 + 32, [1] = 8 + 32, [2] = 8 + 32 + 52, [3] = 8 + 52 }
-- The parts of each step's body: field and bytes.
local NOISE_PARTS = { { "ephemeral", 32 }, { "noise_key_id", 20 } }
local BODY_PARTS = {
    [0] = { { "asker_nonce", 8 }, { "zeros", 32 } },
    [1] = { { "asker_nonce", 8 }, { "cookie", 32 } },
    [2] = { { "asker_nonce", 8 }, { "cookie", 32 }, NOISE_PARTS[1], NOISE_PARTS[2] },
    [3] = { { "asker_nonce", 8 }, NOISE_PARTS[1], NOISE_PARTS[2] },
}
-- R-9: before each frame behind an Ethernet header; and what a raw link sends to make itself known to a switch: no frames.
local LENGTH_BYTES = 2
local ANNOUNCEMENT = "\0\0tsumuji is here"

local DATA, DATAGRAM, ACK, HELLO, WELCOME, RESET, CLOSE, SEALED, HANDSHAKE, ASK, GRANT = 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10
local CHECKED, CHECK_BYTES = 11, 8 -- R-90
local JOIN, ADMISSION, NO_ID, JOIN_TEXT_BYTES = 12, 13, 65535, 128 -- R-100
local KIND_NAMES = {
    [DATA] = "data", [DATAGRAM] = "datagram", [ACK] = "ack", [HELLO] = "hello", [WELCOME] = "welcome",
    [RESET] = "reset", [CLOSE] = "close", [SEALED] = "sealed", [HANDSHAKE] = "handshake",
    [ASK] = "ask", [GRANT] = "grant", [CHECKED] = "checked", [JOIN] = "join", [ADMISSION] = "admission",
}
-- Bytes before payload or bitmap.
local HEADER_BYTES = {
    [DATA] = 40, [DATAGRAM] = 24, [ACK] = 28, [HELLO] = 36, [WELCOME] = 36, [RESET] = 12, [CLOSE] = 28,
    [SEALED] = ENVELOPE_BYTES, [HANDSHAKE] = 16, [ASK] = 24, [GRANT] = 24,
    [CHECKED] = CHECK_BYTES, [JOIN] = 16, [ADMISSION] = 16,
}

local f = tsumuji.fields
local function field(name, make, ...)
    f[name] = make("tsumuji." .. name, ...)
end

-- R-1
field("version", ProtoField.uint8, "Version", base.DEC, nil, 0xf0)
field("kind", ProtoField.uint8, "Kind", base.DEC, KIND_NAMES, 0x0f)
field("flags", ProtoField.uint8, "Flags", base.HEX)
f.flag_ack_now = ProtoField.bool("tsumuji.flags.ack_now", "ACK_NOW: an acknowledgement is asked for", 8, nil, 0x01)
f.flag_final = ProtoField.bool("tsumuji.flags.final", "FINAL: to ask again is of no use (R-101)", 8, nil, 0x01)
f.flag_more = ProtoField.bool("tsumuji.flags.more", "MORE: more frames for this peer wait", 8, nil, 0x02)
f.flag_busy = ProtoField.bool("tsumuji.flags.busy", "BUSY: the sender serves other peers too", 8, nil, 0x04)
f.flag_refused = ProtoField.bool("tsumuji.flags.refused", "REFUSED: memory refused frames", 8, nil, 0x08)
f.flag_nack = ProtoField.bool("tsumuji.flags.nack", "NACK: the number stated is missing (suci)", 8, nil, 0x10)
f.flag_suci = ProtoField.bool("tsumuji.flags.suci", "SUCI: congestion control suci, not credit", 8, nil, 0x20)
f.flag_direct = ProtoField.bool("tsumuji.flags.direct", "DIRECT: without a number (R-96)", 8, nil, 0x20)
f.flag_takes_direct = ProtoField.bool("tsumuji.flags.takes_direct", "TAKES_DIRECT: direct messages are taken (R-97)", 8, nil, 0x40)
f.flag_bundle = ProtoField.bool("tsumuji.flags.bundle", "BUNDLE: several whole messages (R-10)", 8, nil, 0x40)
f.flag_sealed = ProtoField.bool("tsumuji.flags.sealed", "SEALED: reserved (R-7)", 8, nil, 0x80)
field("source", ProtoField.uint16, "Source")
field("destination", ProtoField.uint16, "Destination")
field("payload_bytes", ProtoField.uint16, "Payload bytes")
field("payload", ProtoField.bytes, "Payload")
field("bundled", ProtoField.bytes, "Message of the bundle")
field("bundle_messages", ProtoField.uint16, "Messages in the bundle")
field("padding", ProtoField.bytes, "Padding of the link")
field("announcement", ProtoField.string, "Announcement to the switch")
field("opaque", ProtoField.bytes, "Bytes not understood")
field("framed_bytes", ProtoField.uint16, "Bytes of the next frame")
-- R-2
field("session", ProtoField.uint32, "Session", base.HEX)
field("number", ProtoField.uint32, "Number")
field("ack", ProtoField.uint32, "Ack: all numbers below are answered")
field("credit", ProtoField.uint32, "Credit: numbers below may be sent")
field("message", ProtoField.uint32, "Message")
field("offset", ProtoField.uint32, "Offset")
field("length", ProtoField.uint32, "Length of the whole message")
field("floor_delta", ProtoField.uint16, "Number minus lowest unanswered")
field("floor", ProtoField.uint32, "Lowest number still unanswered")
field("credit_ahead", ProtoField.uint16, "Numbers from ack on that may be sent")
field("channel", ProtoField.uint8, "Channel", base.HEX)
local CLASSES = {[0] = "ordered", [1] = "unordered", [2] = "datagram of several frames"}
f.class = ProtoField.uint8("tsumuji.channel.class", "Class", base.DEC, CLASSES, 0x0c)
f.priority = ProtoField.uint8("tsumuji.channel.priority", "Priority", base.DEC, nil, 0x03)
f.channel_id = ProtoField.uint16("tsumuji.channel.id", "Channel id", base.DEC)
field("ack_delay", ProtoField.uint8, "Ack held back (4 µs)")
field("ack_delay_us", ProtoField.uint32, "Ack held back (µs)")
field("first_sent_in", ProtoField.framenum, "First sent in", base.NONE, frametype.RETRANS_PREV)
-- R-3
field("incarnation", ProtoField.uint32, "Incarnation", base.HEX)
field("epoch", ProtoField.uint32, "Epoch")
field("lap", ProtoField.uint32, "Lap")
field("key", ProtoField.uint32, "Key")
-- R-4
field("bitmap_bytes", ProtoField.uint16, "Bitmap bytes")
field("bitmap", ProtoField.bytes, "Bitmap")
field("arrived", ProtoField.uint32, "Arrived")
field("arrived_count", ProtoField.uint32, "Numbers arrived above ack")
field("window_kib", ProtoField.uint32, "Window (KiB)")
-- R-5
field("zero", ProtoField.uint16, "Zero")
field("pairing", ProtoField.uint32, "Pairing: sessions that the sender has ended")
field("nonce", ProtoField.uint32, "Nonce", base.HEX)
field("frame_bytes", ProtoField.uint32, "Largest frame taken")
field("first_credit", ProtoField.uint32, "Frames that may be sent at once")
field("message_limit", ProtoField.uint32, "Largest message taken")
field("taken", ProtoField.uint32, "Direct messages taken in the session before")
-- R-100
field("text_bytes", ProtoField.uint16, "Bytes of the text")
field("join_nonce", ProtoField.uint64, "Nonce", base.HEX)
field("text", ProtoField.string, "Name, or reason of a refusal")
-- R-71
field("round", ProtoField.uint32, "Round: times that the asker found frames lost")
field("first", ProtoField.uint32, "First number to be sent again")
field("again_frames", ProtoField.uint32, "Frames that wait to be sent again")
field("expected", ProtoField.uint32, "Number expected: all below have arrived")
field("granted_frames", ProtoField.uint32, "Frames that may be sent again")
-- Envelope
f.flag_readable = ProtoField.bool("tsumuji.flags.readable", "READABLE: only the tag protects the inner frame", 8, nil, 0x01)
f.flag_group = ProtoField.bool("tsumuji.flags.group", "GROUP: sealed with the sender's group key", 8, nil, 0x02)
f.flag_control = ProtoField.bool("tsumuji.flags.control", "CONTROL: for the peer's seal", 8, nil, 0x04)
field("inner_bytes", ProtoField.uint16, "Inner bytes")
field("key_id", ProtoField.uint32, "Key", base.HEX)
field("counter", ProtoField.uint64, "Counter")
field("inner", ProtoField.bytes, "Inner frame")
field("tag", ProtoField.bytes, "Tag")
-- R-90
field("checksum", ProtoField.uint32, "Checksum (CRC-32C)", base.HEX)
-- Handshake
local STEP_NAMES = { [0] = "ask", [1] = "challenge", [2] = "first", [3] = "second" }
field("body_bytes", ProtoField.uint16, "Body bytes")
field("step", ProtoField.uint8, "Step", base.DEC, STEP_NAMES)
field("key_print", ProtoField.bytes, "Name of the cluster key")
field("reserved", ProtoField.bytes, "Zero")
field("body", ProtoField.bytes, "Body")
field("asker_nonce", ProtoField.bytes, "Asker's nonce")
field("zeros", ProtoField.bytes, "As long as the answer")
field("cookie", ProtoField.bytes, "Cookie")
field("ephemeral", ProtoField.bytes, "Ephemeral public key")
field("noise_key_id", ProtoField.bytes, "Key id for the peer, encrypted, and its tag")
field("proof", ProtoField.bytes, "Proof of the key")

local function expert_item(name, text, group, severity)
    return ProtoExpert.new("tsumuji." .. name, text, group, severity)
end
local e = {
    truncated = expert_item("truncated", "shorter than it says", expert.group.MALFORMED, expert.severity.ERROR),
    version = expert_item("bad_version", "another version", expert.group.MALFORMED, expert.severity.ERROR),
    kind = expert_item("bad_kind", "impossible kind", expert.group.MALFORMED, expert.severity.ERROR),
    damaged = expert_item("damaged", "the checksum is wrong", expert.group.CHECKSUM, expert.severity.ERROR),
    malformed = expert_item("malformed", "fields contradict each other", expert.group.MALFORMED, expert.severity.ERROR),
    sealed = expert_item("sealed_flag", "flag 128: every node drops this frame", expert.group.SECURITY, expert.severity.WARN),
    flags = expert_item("unknown_flags", "flags that have no meaning in this kind", expert.group.PROTOCOL, expert.severity.NOTE),
    cut = expert_item("cut", "the capture holds only part of this frame", expert.group.UNDECODED, expert.severity.NOTE),
    again = expert_item("sent_again", "content sent again", expert.group.SEQUENCE, expert.severity.NOTE),
    refused = expert_item("memory_refused", "the receiver's memory refused frames", expert.group.SEQUENCE, expert.severity.WARN),
    nack = expert_item("number_missing", "a number is missing, what follows it was dropped", expert.group.SEQUENCE, expert.severity.NOTE),
    reset = expert_item("session_unknown", "the session is unknown to the sender", expert.group.SEQUENCE, expert.severity.WARN),
}
tsumuji.experts = { e.damaged, e.truncated, e.version, e.kind, e.malformed, e.sealed, e.flags, e.cut, e.again, e.refused, e.nack, e.reset }

-- Each kind's flags: field and bit, most telling first; the info column has their names.
local FLAGS = {
    [DATA] = { { "flag_ack_now", 1 }, { "flag_more", 2 }, { "flag_busy", 4 }, { "flag_direct", 32 }, { "flag_bundle", 64 }, { "flag_sealed", 128 } },
    [ACK] = { { "flag_ack_now", 1 }, { "flag_refused", 8 }, { "flag_nack", 16 }, { "flag_takes_direct", 64 }, { "flag_sealed", 128 } },
    [CLOSE] = { { "flag_ack_now", 1 }, { "flag_refused", 8 }, { "flag_nack", 16 }, { "flag_takes_direct", 64 }, { "flag_sealed", 128 } },
    [HELLO] = { { "flag_suci", 32 }, { "flag_sealed", 128 } },
    [WELCOME] = { { "flag_suci", 32 }, { "flag_sealed", 128 } },
    [SEALED] = { { "flag_readable", 1 }, { "flag_group", 2 }, { "flag_control", 4 } },
    [HANDSHAKE] = { { "flag_readable", 1 } },
    [CHECKED] = {},
    [ADMISSION] = { { "flag_final", 1 }, { "flag_sealed", 128 } },
}
local ONLY_SEALED = { { "flag_sealed", 128 } }

-- Envelopes and handshakes: their flags are others, or none.
local function is_seal(kind)
    return kind == SEALED or kind == HANDSHAKE or kind == CHECKED
end

local function has_bit(value, bit_value)
    return math.floor(value / bit_value) % 2 == 1
end

local function u8(tvb, at) return tvb(at, 1):uint() end
local function u16(tvb, at) return tvb(at, 2):le_uint() end
local function u32(tvb, at) return tvb(at, 4):le_uint() end

-- One frame while it is dissected: `captured` bytes can be read, `stated` is what was on the wire.
local function malformed(frame, what, item)
    frame.tree:add_proto_expert_info(item or e.malformed, what)
    frame.bad = frame.bad or (item == e.sealed and "DROPPED: " or "MALFORMED: ") .. what
end

local function add_flags(frame)
    local tvb, flags = frame.tvb, u8(frame.tvb, 1)
    local known = FLAGS[frame.kind] or ONLY_SEALED
    local tree = frame.tree:add(f.flags, tvb(1, 1))
    local words, rest = {}, flags
    for _, flag in ipairs(known) do
        tree:add(f[flag[1]], tvb(1, 1))
        if has_bit(flags, flag[2]) then
            words[#words + 1] = flag[1]:sub(#"flag_" + 1):upper()
            rest = rest - flag[2]
        end
    end
    if #words > 0 then
        tree:append_text(" (" .. table.concat(words, ", ") .. ")")
    end
    if rest ~= 0 then
        if is_seal(frame.kind) then -- R-61, R-62: flags from the future change what the rest means
            malformed(frame, "flags that this version does not know")
        else
            tree:add_proto_expert_info(e.flags)
        end
    end
    if not is_seal(frame.kind) and has_bit(flags, 128) then
        malformed(frame, "sealed by flag: every node drops it", e.sealed)
    end
    frame.words = words
end

-- What the frame says follows its header: adds those bytes and what follows them, and returns the range of the former.
local function add_rest(frame, at, bytes, as)
    local end_at = at + bytes
    if end_at > frame.stated then
        malformed(frame, string.format("%d bytes, and it states %d", frame.stated, end_at), e.truncated)
    end
    local there = math.min(bytes, frame.captured - at)
    local range
    if there > 0 then
        range = frame.tvb(at, there)
        frame.tree:add(as, range)
    end
    if frame.captured > end_at then
        frame.tree:add(f.padding, frame.tvb(end_at, frame.captured - end_at))
    end
    return range
end

local function add_ends(frame)
    frame.source, frame.destination = u16(frame.tvb, 2), u16(frame.tvb, 4)
    frame.tree:add_le(f.source, frame.tvb(2, 2))
    frame.tree:add_le(f.destination, frame.tvb(4, 2))
end

local function add_le(frame, name, at, bytes)
    frame.tree:add_le(f[name], frame.tvb(at, bytes))
end

-- Where each fragment was first seen, to tell repairs; emptied for each capture.
local first_seen = {}
function tsumuji.init()
    first_seen = {}
end

local function tell_repair(frame, number, key)
    local seen = first_seen[key]
    if not seen then
        if not frame.pinfo.visited then
            first_seen[key] = { frame = frame.pinfo.number, number = number }
        end
    -- The same number again is the same frame, captured at both ends or doubled on its way.
    elseif seen.number ~= number and seen.frame < frame.pinfo.number then
        local item = frame.tree:add(f.first_sent_in, seen.frame)
        item:set_generated()
        item:add_proto_expert_info(e.again)
        frame.words[#frame.words + 1] = "sent again"
    end
end

-- The messages of a bundle, each behind its length (R-10).
local function bundle(frame, payload, offset, length, unreliable)
    local at, count, bytes = 0, 0, payload:len()
    while at + 2 <= bytes do
        local size = payload(at, 2):le_uint()
        if at + 2 + size > bytes then
            break
        end
        count = count + 1
        if size > 0 then
            frame.tree:add(f.bundled, payload(at + 2, size))
        end
        at = at + 2 + size
    end
    if at < bytes or count < 2 or count > 256 or bytes > 16384 or offset ~= 0 or length ~= bytes or unreliable then
        malformed(frame, "no bundle of whole messages")
        return
    end
    frame.tree:add(f.bundle_messages, payload, count):set_generated()
    frame.words[#frame.words + 1] = count .. " messages"
end

local function data(frame) -- R-2
    local tvb, tree = frame.tvb, frame.tree
    add_ends(frame)
    local bytes = u16(tvb, 6)
    add_le(frame, "payload_bytes", 6, 2)
    add_le(frame, "session", 8, 4)
    add_le(frame, "number", 12, 4)
    add_le(frame, "ack", 16, 4)
    add_le(frame, "credit_ahead", 20, 2)
    local credit = (u32(tvb, 16) + u16(tvb, 20)) % TWO_32
    tree:add(f.credit, tvb(20, 2), credit):set_generated()
    add_le(frame, "message", 24, 4)
    add_le(frame, "offset", 28, 4)
    add_le(frame, "length", 32, 4)
    add_le(frame, "floor_delta", 36, 2)
    local session, number, message = u32(tvb, 8), u32(tvb, 12), u32(tvb, 24)
    local offset, length, delta, class_priority = u32(tvb, 28), u32(tvb, 32), u16(tvb, 36), u8(tvb, 38)
    if delta < 65535 then
        tree:add(f.floor, tvb(36, 2), (number - delta) % TWO_32):set_generated()
    end
    local channel_tree = tree:add(f.channel, tvb(38, 1))
    channel_tree:add(f.class, tvb(38, 1))
    channel_tree:add(f.priority, tvb(38, 1))
    channel_tree:add_le(f.channel_id, tvb(22, 2))
    local priority, id = class_priority % 4, u16(tvb, 22)
    local order = ({[0] = "ord", [1] = "unord", [2] = "dgram"})[math.floor(class_priority / 4)] or "?"
    local class = ({ord = "ordered", unord = "unordered", dgram = "datagram"})[order] or order
    if order == "?" then
        malformed(frame, string.format("%d is no class and priority", class_priority))
    end
    channel_tree:append_text(string.format(" (%s, priority %d, id %d)", class, priority, id))
    tree:add(f.ack_delay, tvb(39, 1))
    tree:add(f.ack_delay_us, tvb(39, 1), u8(tvb, 39) * 4):set_generated()
    if offset + bytes > length then
        malformed(frame, string.format("[%.0f..%.0f) lies beyond the message's %.0f bytes", offset, offset + bytes, length))
    elseif bytes == 0 and length ~= 0 then
        malformed(frame, "an empty fragment of a message that is not empty")
    end
    if not frame.bad then
        local key = string.format("%d %d %.0f %d %.0f %.0f", frame.source, frame.destination, session, class_priority * 65536 + id, message, offset)
        tell_repair(frame, number, key)
    end
    if class == "datagram" and offset == 0 and bytes >= 16 and frame.captured >= 56 then -- R-86
        add_le(frame, "epoch", 40, 4)
        add_le(frame, "lap", 44, 4)
        add_le(frame, "key", 48, 4)
    end
    local payload = add_rest(frame, 40, bytes, f.payload)
    if has_bit(u8(tvb, 1), 64) and bytes == 0 then
        malformed(frame, "no bundle of whole messages")
    elseif has_bit(u8(tvb, 1), 64) and payload and payload:len() == bytes then
        bundle(frame, payload, offset, length, class == "datagram")
    end
    frame.info = string.format("data %d→%d #%.0f msg %.0f [%.0f..%.0f)/%.0f %s prio%d%s ack %.0f credit %.0f",
        frame.source, frame.destination, number, message, offset, offset + bytes, length, order, priority,
        id > 0 and " ch" .. id or "", u32(tvb, 16), credit)
end

local function datagram(frame) -- R-3
    local tvb = frame.tvb
    frame.source = u16(tvb, 2)
    add_le(frame, "source", 2, 2)
    frame.tree:add_le(f.channel_id, tvb(4, 2))
    add_le(frame, "payload_bytes", 6, 2)
    add_le(frame, "incarnation", 8, 4)
    add_le(frame, "epoch", 12, 4)
    add_le(frame, "lap", 16, 4)
    add_le(frame, "key", 20, 4)
    add_rest(frame, 24, u16(tvb, 6), f.payload)
    frame.info = string.format("datagram %d ch%d epoch %.0f lap %.0f key %.0f, %d bytes",
        frame.source, u16(tvb, 4), u32(tvb, 12), u32(tvb, 16), u32(tvb, 20), u16(tvb, 6))
end

-- "5–9, 12": the numbers of a bitmap as text, at most `limit` runs of them.
local function runs_text(runs, limit)
    local words = {}
    for index, run in ipairs(runs) do
        if index > limit then
            words[#words + 1] = "…"
            break
        end
        words[#words + 1] = run[1] == run[2] and string.format("%.0f", run[1]) or string.format("%.0f–%.0f", run[1], run[2])
    end
    return table.concat(words, ", ")
end

local function ack(frame) -- R-4
    local tvb, tree = frame.tvb, frame.tree
    add_ends(frame)
    local bytes, acked = u16(tvb, 6), u32(tvb, 12)
    add_le(frame, "bitmap_bytes", 6, 2)
    add_le(frame, "session", 8, 4)
    add_le(frame, "ack", 12, 4)
    add_le(frame, "credit", 16, 4)
    add_le(frame, "window_kib", 20, 4)
    add_le(frame, "ack_delay_us", 24, 4)
    if bytes > BITMAP_BYTES_MAX then
        malformed(frame, string.format("a bitmap of %d bytes; the window has %d", bytes, BITMAP_BYTES_MAX))
    end
    local bitmap = add_rest(frame, 28, bytes, f.bitmap)
    local arrived, runs = {}, {}
    for at = 0, bitmap and math.min(bitmap:len(), BITMAP_BYTES_MAX) - 1 or -1 do
        local byte = u8(tvb, 28 + at)
        for i = 0, 7 do
            if byte % 2 == 1 then
                local number, run = (acked + 8 * at + i) % TWO_32, runs[#runs]
                arrived[#arrived + 1] = { at = 28 + at, number = number }
                if run and (run[2] + 1) % TWO_32 == number then
                    run[2] = number
                else
                    runs[#runs + 1] = { number, number }
                end
            end
            byte = math.floor(byte / 2)
        end
    end
    if #arrived > 0 then
        local list = tree:add(f.arrived_count, bitmap, #arrived)
        list:append_text(" (" .. runs_text(runs, 64) .. ")")
        list:set_generated()
        for _, one in ipairs(arrived) do
            list:add(f.arrived, tvb(one.at, 1), one.number):set_generated()
        end
    end
    if has_bit(u8(tvb, 1), 8) then
        tree:add_proto_expert_info(e.refused)
    end
    if has_bit(u8(tvb, 1), 16) then
        tree:add_proto_expert_info(e.nack)
    end
    frame.info = string.format("%s %d→%d ack %.0f credit %.0f window %.0f KiB%s", KIND_NAMES[frame.kind], frame.source, frame.destination, acked,
        u32(tvb, 16), u32(tvb, 20), #arrived > 0 and " and " .. runs_text(runs, 4) or "")
end

local function hello(frame) -- R-5
    local tvb = frame.tvb
    add_ends(frame)
    add_le(frame, "zero", 6, 2)
    add_le(frame, "incarnation", 8, 4)
    add_le(frame, "pairing", 12, 4)
    add_le(frame, "nonce", 16, 4)
    add_le(frame, "frame_bytes", 20, 4)
    add_le(frame, "first_credit", 24, 4)
    add_le(frame, "message_limit", 28, 4)
    add_le(frame, "taken", 32, 4)
    if u32(tvb, 8) == 0 then
        malformed(frame, "incarnation 0")
    elseif u16(tvb, 6) ~= 0 then
        malformed(frame, "bytes 6 and 7 are not zero")
    elseif u32(tvb, 20) < FRAME_BYTES_LEAST then
        malformed(frame, string.format("frames of %.0f bytes; the least is %d", u32(tvb, 20), FRAME_BYTES_LEAST))
    end
    add_rest(frame, 36, 0, f.payload)
    frame.info = string.format("%s %d→%d incarnation %08x pairing %.0f nonce %08x frames ≤ %.0f B, %.0f at once, messages ≤ %.0f B",
        KIND_NAMES[frame.kind], frame.source, frame.destination, u32(tvb, 8), u32(tvb, 12), u32(tvb, 16), u32(tvb, 20),
        u32(tvb, 24), u32(tvb, 28))
end

local function control(frame) -- R-6
    local tvb = frame.tvb
    add_ends(frame)
    add_le(frame, "zero", 6, 2)
    add_le(frame, "session", 8, 4)
    if u16(tvb, 6) ~= 0 then
        malformed(frame, "bytes 6 and 7 are not zero")
    end
    if frame.kind == RESET then
        frame.tree:add_proto_expert_info(e.reset)
    end
    add_rest(frame, 12, 0, f.payload)
    frame.info = string.format("%s %d→%d session %08x", KIND_NAMES[frame.kind], frame.source, frame.destination, u32(tvb, 8))
end

local function permit(frame) -- R-71
    local tvb, is_ask = frame.tvb, frame.kind == ASK
    add_ends(frame)
    add_le(frame, "zero", 6, 2)
    add_le(frame, "session", 8, 4)
    add_le(frame, "round", 12, 4)
    add_le(frame, is_ask and "first" or "expected", 16, 4)
    add_le(frame, is_ask and "again_frames" or "granted_frames", 20, 4)
    if u16(tvb, 6) ~= 0 then
        malformed(frame, "bytes 6 and 7 are not zero")
    end
    add_rest(frame, 24, 0, f.payload)
    local frames = u32(tvb, 20)
    local what
    if is_ask then
        what = frames > 0 and "to send %.0f frames from #%.0f again" or "for the window from #%.0f on"
    else
        what = frames > 0 and "%.0f frames from #%.0f again" or "nothing, #%.0f is expected"
    end
    what = frames > 0 and string.format(what, frames, u32(tvb, 16)) or string.format(what, u32(tvb, 16))
    frame.info = string.format("%s %d→%d round %.0f %s", KIND_NAMES[frame.kind], frame.source, frame.destination, u32(tvb, 12), what)
end

local dissect_frame

local function sealed(frame) -- R-61
    local tvb, tree = frame.tvb, frame.tree
    local flags, bytes = u8(tvb, 1), u16(tvb, 2)
    add_le(frame, "inner_bytes", 2, 2)
    add_le(frame, "key_id", 4, 4)
    add_le(frame, "counter", 8, 8)
    local end_at = ENVELOPE_BYTES + bytes
    -- R-65: between two seals, and always encrypted.
    if has_bit(flags, 4) and flags % 4 ~= 0 then
        malformed(frame, "CONTROL goes with no other flag")
    end
    if bytes == 0 then
        malformed(frame, "nothing is sealed in it")
    elseif end_at + TAG_BYTES > frame.stated then
        malformed(frame, string.format("%d bytes, and it states %d", frame.stated, end_at + TAG_BYTES), e.truncated)
    end
    local there = math.min(bytes, frame.captured - ENVELOPE_BYTES)
    local inner
    if there > 0 then
        local range = tvb(ENVELOPE_BYTES, there)
        -- One envelope only: an envelope within is not looked into.
        if there == bytes and has_bit(flags, 1) and not has_bit(flags, 4) and not frame.is_inner and not frame.bad then
            inner = dissect_frame(range:tvb(), frame.pinfo, tree, true)
        else
            tree:add(f.inner, range)
        end
    end
    local tag = math.min(TAG_BYTES, frame.captured - end_at)
    if tag > 0 then
        tree:add(f.tag, tvb(end_at, tag))
    end
    if frame.captured > end_at + TAG_BYTES then
        tree:add(f.padding, tvb(end_at + TAG_BYTES, frame.captured - end_at - TAG_BYTES))
    end
    frame.info = string.format("sealed key %08x counter %s, %d bytes%s", u32(tvb, 4), tostring(tvb(8, 8):le_uint64()), bytes,
        inner and ": " .. inner or "")
end

-- CRC-32C, its polynomial reversed, by a table of all bytes.
local bits = bit32 or bit
local CRC_TABLE = {}
for byte = 0, 255 do
    local sum = byte
    for _ = 1, 8 do
        local half = bits.rshift(sum, 1)
        sum = sum % 2 == 1 and bits.bxor(half, 0x82f63b78) or half
    end
    CRC_TABLE[byte] = sum
end

local function crc32c(text)
    local sum = 0xffffffff
    for at = 1, #text do
        sum = bits.bxor(bits.rshift(sum, 8), CRC_TABLE[bits.bxor(bits.band(sum, 255), text:byte(at))])
    end
    return bits.bxor(sum, 0xffffffff) % TWO_32
end

local function checked(frame) -- R-90
    local tvb, tree = frame.tvb, frame.tree
    local bytes, sum = u16(tvb, 2), u32(tvb, 4)
    add_le(frame, "inner_bytes", 2, 2)
    local item = tree:add_le(f.checksum, tvb(4, 4))
    local end_at = CHECK_BYTES + bytes
    if bytes == 0 then
        malformed(frame, "a checksum of nothing")
    elseif end_at > frame.stated then
        malformed(frame, string.format("%d bytes, and it states %d", frame.stated, end_at), e.truncated)
    end
    local there = math.min(bytes, frame.captured - CHECK_BYTES)
    local inner
    if there == bytes and not frame.bad then
        if crc32c(tvb:raw(0, 4) .. tvb:raw(CHECK_BYTES, bytes)) ~= sum then
            malformed(frame, "the checksum is wrong", e.damaged)
        else
            item:append_text(" (right)")
        end
    end
    if there > 0 then
        local range = tvb(CHECK_BYTES, there)
        if frame.is_inner or frame.bad then
            tree:add(f.inner, range)
        else
            inner = dissect_frame(range:tvb(), frame.pinfo, tree, true, bytes)
        end
    end
    if frame.captured > end_at then
        tree:add(f.padding, tvb(end_at, frame.captured - end_at))
    end
    frame.info = inner or string.format("checked, %d bytes", bytes)
end

local function handshake(frame) -- R-62
    local tvb, tree = frame.tvb, frame.tree
    local bytes, step = u16(tvb, 2), u8(tvb, 4)
    add_le(frame, "body_bytes", 2, 2)
    tree:add(f.step, tvb(4, 1))
    tree:add(f.reserved, tvb(5, 3))
    tree:add(f.key_print, tvb(8, 8))
    local end_at = 16 + bytes
    if end_at + PROOF_BYTES > frame.stated then
        malformed(frame, string.format("%d bytes, and it states %d", frame.stated, end_at + PROOF_BYTES), e.truncated)
    elseif bytes ~= BODY_BYTES[step] then
        malformed(frame, STEP_NAMES[step] and "a body that this step does not have" or "no such step")
    elseif u8(tvb, 5) + u16(tvb, 6) ~= 0 then
        malformed(frame, "bytes 5 to 7 are not zero")
    end
    local function add(parent, as, at, most)
        local there = math.min(most, frame.captured - at)
        return there > 0 and parent:add(as, tvb(at, there))
    end
    local body_tree, at = add(tree, f.body, 16, bytes), 16
    for _, part in ipairs(bytes == BODY_BYTES[step] and body_tree and BODY_PARTS[step] or {}) do
        add(body_tree, f[part[1]], at, part[2])
        at = at + part[2]
    end
    add(tree, f.proof, end_at, PROOF_BYTES)
    add(tree, f.padding, end_at + PROOF_BYTES, math.huge)
    frame.info = string.format("handshake %s key %s", STEP_NAMES[step] or "step " .. step, tostring(tvb(8, 8):bytes()):lower())
end

local function join(frame) -- R-100
    local tvb, is_ask, bytes = frame.tvb, frame.kind == JOIN, u16(frame.tvb, 6)
    add_ends(frame)
    add_le(frame, "text_bytes", 6, 2)
    add_le(frame, "join_nonce", 8, 8)
    local range = add_rest(frame, 16, bytes, f.text)
    if bytes > JOIN_TEXT_BYTES then
        malformed(frame, string.format("a text of %d bytes; at most %d", bytes, JOIN_TEXT_BYTES))
    elseif is_ask ~= (frame.source == NO_ID) then
        malformed(frame, is_ask and "a member that asks to become one" or "an answer of nobody")
    end
    local text = range and string.format(" %q", range:string()) or ""
    if is_ask then
        frame.info = (frame.destination == NO_ID and "join" or "join as " .. frame.destination) .. text
    elseif frame.destination == NO_ID then
        frame.info = string.format("admission refused by %d", frame.source) .. text
    else
        frame.info = string.format("admission by %d as %d", frame.source, frame.destination) .. text
    end
end

local DISSECT = {
    [DATA] = data, [DATAGRAM] = datagram, [ACK] = ack, [HELLO] = hello, [WELCOME] = hello, [RESET] = control, [CLOSE] = ack,
    [SEALED] = sealed, [HANDSHAKE] = handshake, [ASK] = permit, [GRANT] = permit,
    [CHECKED] = checked, [JOIN] = join, [ADMISSION] = join,
}

local function body(frame)
    local tvb, tree = frame.tvb, frame.tree
    local first = u8(tvb, 0)
    local version, kind = math.floor(first / 16), first % 16
    tree:add(f.version, tvb(0, 1))
    tree:add(f.kind, tvb(0, 1))
    frame.kind = kind
    local function opaque(from, info)
        if frame.captured > from then
            tree:add(f.opaque, tvb(from, frame.captured - from))
        end
        frame.info = info
    end
    if version ~= VERSION then
        malformed(frame, string.format("version %d; this is version %d's dissector", version, VERSION), e.version)
        return opaque(1, "version " .. version)
    elseif not DISSECT[kind] then
        malformed(frame, string.format("kind %d is not assigned", kind), e.kind)
        return opaque(1, "kind " .. kind)
    elseif frame.stated < HEADER_BYTES[kind] then
        malformed(frame, string.format("%d bytes; the header of this kind has %d", frame.stated, HEADER_BYTES[kind]), e.truncated)
        return opaque(1, KIND_NAMES[kind])
    elseif frame.captured < HEADER_BYTES[kind] then
        tree:add_proto_expert_info(e.cut)
        return opaque(1, KIND_NAMES[kind] .. " (cut by the capture)")
    end
    add_flags(frame)
    DISSECT[kind](frame)
    if frame.captured < frame.stated then
        tree:add_proto_expert_info(e.cut)
    end
end

-- Adds one frame to `parent` and returns its line for the info column. `stated`: its bytes, where the capture may have cut it.
function dissect_frame(tvb, pinfo, parent, is_inner, stated)
    local frame = {
        tvb = tvb, pinfo = pinfo, is_inner = is_inner,
        captured = tvb:len(), stated = stated or math.max(tvb:reported_len(), tvb:len()),
    }
    frame.tree = parent:add(tsumuji, tvb(0, frame.captured))
    body(frame)
    local info = frame.info
    if frame.words and #frame.words > 0 then
        info = info .. " [" .. table.concat(frame.words, ", ") .. "]"
    end
    if frame.bad then
        info = info .. " — " .. frame.bad
    end
    frame.tree:append_text(", " .. info)
    return info
end

function tsumuji.dissector(tvb, pinfo, tree)
    if tvb:len() == 0 then
        return 0
    end
    pinfo.cols.protocol = "tsumuji"
    pinfo.cols.info = dissect_frame(tvb, pinfo, tree, false)
    return tvb:len()
end

-- Behind an Ethernet header: frames one after another, each behind its length, then padding (R-9).
local ethernet = Proto("tsumuji_ethernet", "tsumuji message passing over Ethernet")

function ethernet.dissector(tvb, pinfo, tree)
    local captured, stated = tvb:len(), math.max(tvb:reported_len(), tvb:len())
    pinfo.cols.protocol = "tsumuji"
    if captured >= #ANNOUNCEMENT and tvb:raw(0, #ANNOUNCEMENT) == ANNOUNCEMENT then
        local line = tree:add(tsumuji, tvb(0, captured))
        line:add(f.announcement, tvb(LENGTH_BYTES, #ANNOUNCEMENT - LENGTH_BYTES))
        if captured > #ANNOUNCEMENT then
            line:add(f.padding, tvb(#ANNOUNCEMENT, captured - #ANNOUNCEMENT))
        end
        line:append_text(", announcement to the switch")
        pinfo.cols.info = "announcement to the switch"
        return captured
    end
    local around = tree:add(ethernet, tvb(0, captured))
    local lines, at = {}, 0
    while at + LENGTH_BYTES <= captured do
        local bytes = u16(tvb, at)
        if bytes == 0 then
            break
        end
        around:add_le(f.framed_bytes, tvb(at, LENGTH_BYTES))
        at = at + LENGTH_BYTES
        if at + bytes > stated then
            around:add_proto_expert_info(e.truncated, string.format("a frame of %d bytes; %d are left", bytes, stated - at))
            if at < captured then
                around:add(f.opaque, tvb(at, captured - at))
            end
            lines[#lines + 1] = "MALFORMED: a length beyond the end"
            at = captured
        elseif at < captured then
            local there = math.min(bytes, captured - at)
            lines[#lines + 1] = dissect_frame(tvb(at, there):tvb(), pinfo, tree, false, bytes)
            at = at + there
        end
    end
    if at < captured then
        around:add(f.padding, tvb(at, captured - at))
    end
    if captured < stated then
        around:add_proto_expert_info(e.cut)
    end
    pinfo.cols.info = table.concat(lines, " | ")
    return captured
end

-- Whether the bytes are exactly one frame, for UDP, which adds no padding. A random payload is one in 2^28 times and less.
local function is_one_frame(tvb)
    local stated, captured = tvb:reported_len(), tvb:len()
    if captured < 1 then
        return false
    end
    local first = u8(tvb, 0)
    local version, kind = math.floor(first / 16), first % 16
    local header = version == VERSION and HEADER_BYTES[kind]
    if not header or stated < header or captured < header then
        return false
    end
    local flags = u8(tvb, 1)
    for _, flag in ipairs(FLAGS[kind] or ONLY_SEALED) do
        if has_bit(flags, flag[2]) then
            flags = flags - flag[2]
        end
    end
    if flags ~= 0 then
        return false
    end
    if kind == SEALED then
        local bytes = u16(tvb, 2)
        return bytes > 0 and stated == ENVELOPE_BYTES + bytes + TAG_BYTES and not (u8(tvb, 1) > 4)
    end
    if kind == CHECKED then
        return u16(tvb, 2) > 0 and stated == CHECK_BYTES + u16(tvb, 2)
    end
    if kind == HANDSHAKE then
        local bytes = BODY_BYTES[u8(tvb, 4)]
        return bytes == u16(tvb, 2) and stated == header + bytes + PROOF_BYTES and u8(tvb, 5) + u16(tvb, 6) == 0
    end
    if kind == HELLO or kind == WELCOME then
        return stated == header and u16(tvb, 6) == 0 and u32(tvb, 8) ~= 0 and u32(tvb, 20) >= FRAME_BYTES_LEAST
    elseif kind == RESET or kind == ASK or kind == GRANT then
        return stated == header and u16(tvb, 6) == 0
    end
    local bytes = u16(tvb, 6)
    if stated ~= header + bytes then
        return false
    elseif kind == JOIN or kind == ADMISSION then
        return bytes <= JOIN_TEXT_BYTES and (kind == JOIN) == (u16(tvb, 2) == NO_ID)
    elseif kind == DATA then
        local length = u32(tvb, 32)
        return u32(tvb, 28) + bytes <= length and (bytes > 0 or length == 0)
    elseif kind == ACK or kind == CLOSE then
        return bytes <= BITMAP_BYTES_MAX
    end
    return true -- a datagram
end

local function heuristic(tvb, pinfo, tree)
    if not is_one_frame(tvb) then
        return false
    end
    tsumuji.dissector(tvb, pinfo, tree)
    return true
end

tsumuji.prefs.udp_ports = Pref.range("UDP ports", "7000", "Ports whose datagrams are frames, for example 7000-7031", 65535)

-- On the ports of the preference the frames that are none of ours go to whoever had the port before.
local by_port = Proto("tsumuji_udp", "tsumuji message passing on a stated UDP port")
local udp_table = DissectorTable.get("udp.port")
local previous = {}

function by_port.dissector(tvb, pinfo, tree)
    local before = previous[pinfo.dst_port] or previous[pinfo.src_port]
    if before and not is_one_frame(tvb) then
        return before:call(tvb, pinfo, tree)
    end
    return tsumuji.dissector(tvb, pinfo, tree)
end

local function ports_of(text)
    local ports = {}
    for first, last in string.gmatch(text .. ",", "(%d+)%-?(%d*)[, ]") do
        first, last = tonumber(first), tonumber(last) or tonumber(first)
        for port = math.max(first, 1), math.min(last, 65535) do
            ports[#ports + 1] = port
        end
    end
    return ports
end

local registered = {}
local function register_ports()
    for _, port in ipairs(registered) do
        udp_table:remove(port, by_port)
        if previous[port] then
            udp_table:add(port, previous[port])
        end
    end
    registered, previous = ports_of(tostring(tsumuji.prefs.udp_ports)), {}
    for _, port in ipairs(registered) do
        previous[port] = udp_table:get_dissector(port)
        udp_table:add(port, by_port)
    end
end

function tsumuji.prefs_changed()
    register_ports()
end

register_ports()
DissectorTable.get("ethertype"):add(0x88B5, ethernet)
tsumuji:register_heuristic("udp", heuristic)
