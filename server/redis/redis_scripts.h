// The scripts that change sessions in Redis. Each is atomic, and every one that writes a session
// checks in the same step that the caller owns it.
//
// Keys of the store:
//   ovq:sessions    set: ids of all sessions
//   ovq:session:ID  hash: `owner`, the server that owns it (absent: none does); `epoch`, the number
//                   of acquisitions so far; `seq`, the number of the owner's last write in this
//                   epoch; `parts` and `count`, the parts of its snapshot; `nonce` of its creation
//   ovq:journal:ID  string: the journal (server/store/journal.h)
//   ovq:text:ID     string: the text, with its frame; maybe absent
//   ovq:part:NAME:I string: part I, from 1, of a snapshot
//   ovq:lease:NAME  string: the server NAME lives; ends with its lease. "COUNT MS SINCE": how many
//                   times it was renewed, for how long, and the COUNT since which it was never over
//   ovq:asked:ID    string: some server asks for the session ("1"), or its owner declined ("no")
//   ovq:asks:NAME   list: ids for which the server NAME is asked
//
// Every script sees the keys of RedisOwnership::Script and ARGV[1], this server's name. The
// numbered writes, which begin with OVQ_REDIS_FENCE, have ARGV[2], the epoch in which the server
// owns the session, ARGV[3], the number of the write, and ARGV[4], the numbers of which `seq` must
// be one before it, each between spaces ("": any). A write whose number is not above `seq` is done
// already: its acknowledgement was lost. They return GONE if there is no such session, where
// nothing else is said. Their errors: FENCED, the server does not own the session in this epoch;
// CONFLICT, `seq` is another. Scripts that create or acquire a session have NOLEASE, the server's
// lease is over; the one that creates, EXISTS.
#pragma once

namespace ovq::redis {

#define OVQ_REDIS_FENCE                                                                     \
  "local session = redis.call('HMGET', KEYS[1], 'owner', 'epoch', 'seq')\n"                 \
  "if not session[2] then return 'GONE' end\n"                                              \
  "if session[1] ~= ARGV[1] or session[2] ~= ARGV[2] then\n"                                \
  "  return redis.error_reply('FENCED this server does not own the session')\n"             \
  "end\n"                                                                                   \
  "if tonumber(session[3]) >= tonumber(ARGV[3]) then\n"                                     \
  "  redis.call('HSET', KEYS[1], 'seq', session[3])\n"                                      \
  "  return 'OK'\n"                                                                         \
  "end\n"                                                                                   \
  "if ARGV[4] ~= '' and not string.find(ARGV[4], ' ' .. session[3] .. ' ', 1, true) then\n" \
  "  return redis.error_reply('CONFLICT the last write was ' .. session[3] ..\n"            \
  "                           ', expected' .. ARGV[4])\n"                                   \
  "end\n"                                                                                   \
  "local function written()\n"                                                              \
  "  redis.call('HSET', KEYS[1], 'seq', ARGV[3])\n"                                         \
  "  return 'OK'\n"                                                                         \
  "end\n"

// Functions on the parts of a snapshot. Parts that no journal names any more stay for a minute, for
// whoever reads them.
#define OVQ_REDIS_PARTS                                                          \
  "local function there(prefix, count)\n"                                        \
  "  for i = 1, tonumber(count) do\n"                                            \
  "    if redis.call('EXISTS', prefix .. ':' .. i) == 0 then return false end\n" \
  "  end\n"                                                                      \
  "  return true\n"                                                              \
  "end\n"                                                                        \
  "local function keep(prefix, count)\n"                                         \
  "  for i = 1, tonumber(count) do\n"                                            \
  "    redis.call('PERSIST', prefix .. ':' .. i)\n"                              \
  "  end\n"                                                                      \
  "end\n"                                                                        \
  "local function late()\n"                                                      \
  "  return redis.error_reply('ERR parts of the snapshot are gone')\n"           \
  "end\n"                                                                        \
  "local function drop()\n"                                                      \
  "  local old = redis.call('HMGET', KEYS[1], 'parts', 'count')\n"               \
  "  for i = 1, tonumber(old[2] or 0) do\n"                                      \
  "    redis.call('PEXPIRE', old[1] .. ':' .. i, 60000)\n"                       \
  "  end\n"                                                                      \
  "end\n"

// ARGV: 2 id, 3 journal, 4 and 5 prefix and count of parts, 6 nonce.
inline constexpr char kCreateScript[] = OVQ_REDIS_PARTS
    "local session = redis.call('HMGET', KEYS[1], 'epoch', 'nonce')\n"
    "if session[1] and session[2] == ARGV[6] then\n"
    "  redis.call('HSET', KEYS[1], 'nonce', ARGV[6])\n"
    "  return 'OK'\n"
    "end\n"
    "if session[1] then return redis.error_reply('EXISTS there is such a session') end\n"
    "if redis.call('EXISTS', KEYS[2]) == 0 then\n"
    "  return redis.error_reply('NOLEASE the lease of this server is over')\n"
    "end\n"
    "if not there(ARGV[4], ARGV[5]) then return late() end\n"
    "redis.call('SET', KEYS[3], ARGV[3])\n"
    "redis.call('HSET', KEYS[1], 'owner', ARGV[1], 'epoch', 1, 'seq', 0, 'nonce', ARGV[6],\n"
    "           'parts', ARGV[4], 'count', ARGV[5])\n"
    "keep(ARGV[4], ARGV[5])\n"
    "redis.call('SADD', KEYS[5], ARGV[2])\n"
    "return 'OK'\n";

// ARGV: 5 entry.
inline constexpr char kAppendScript[] = OVQ_REDIS_FENCE
    "redis.call('APPEND', KEYS[3], ARGV[5])\n"
    "return written()\n";

// ARGV: 5 journal, 6 and 7 prefix and count of parts.
inline constexpr char kSnapshotScript[] = OVQ_REDIS_FENCE OVQ_REDIS_PARTS
    "if not there(ARGV[6], ARGV[7]) then return late() end\n"
    "redis.call('SET', KEYS[3], ARGV[5])\n"
    "drop()\n"
    "redis.call('HSET', KEYS[1], 'parts', ARGV[6], 'count', ARGV[7])\n"
    "keep(ARGV[6], ARGV[7])\n"
    "return written()\n";

// ARGV: 5 id. A session that is not there is removed.
inline constexpr char kRemoveScript[] =
    "if redis.call('EXISTS', KEYS[1]) == 0 then return 'OK' end\n" OVQ_REDIS_FENCE OVQ_REDIS_PARTS
    "drop()\n"
    "redis.call('DEL', KEYS[1], KEYS[3], KEYS[4])\n"
    "redis.call('SREM', KEYS[5], ARGV[5])\n"
    "return 'OK'\n";

// ARGV: 5 text, with its frame.
inline constexpr char kPutTextScript[] = OVQ_REDIS_FENCE
    "redis.call('SET', KEYS[4], ARGV[5])\n"
    "return written()\n";

inline constexpr char kRemoveTextScript[] = OVQ_REDIS_FENCE
    "redis.call('DEL', KEYS[4])\n"
    "return written()\n";

// ARGV: 5 bytes of the journal that are whole.
inline constexpr char kCutScript[] = OVQ_REDIS_FENCE
    "redis.call('SET', KEYS[3], redis.call('GETRANGE', KEYS[3], 0, tonumber(ARGV[5]) - 1))\n"
    "return written()\n";

// ARGV: 5 id. The parts stay under their names, which the session's hash has.
inline constexpr char kQuarantineScript[] = OVQ_REDIS_FENCE
    "for _, key in ipairs({KEYS[1], KEYS[3], KEYS[4]}) do\n"
    "  if redis.call('EXISTS', key) == 1 then redis.call('RENAME', key, 'damaged:' .. key) end\n"
    "end\n"
    "redis.call('SREM', KEYS[5], ARGV[5])\n"
    "return 'OK'\n";

// Gives a session up. ARGV: 2 epoch ("": any). Works where Redis's memory is full, too.
inline constexpr char kReleaseScript[] =
    "local session = redis.call('HMGET', KEYS[1], 'owner', 'epoch')\n"
    "if session[1] == ARGV[1] and (ARGV[2] == '' or session[2] == ARGV[2]) then\n"
    "  redis.call('HDEL', KEYS[1], 'owner')\n"
    "end\n"
    "return 'OK'\n";

// Acquires a session that no living server owns. ARGV: 2 what the owner's lease holds if that owner
// is dead although Redis does not know it yet ("": it is not); 3 "unasked" to leave a session alone
// for which some server asks. Returns {'NONE'}; {'ELSEWHERE',
// owner, its lease, 1 if the owner declined, milliseconds that the lease lasts}; or {'MINE', epoch,
// journal, bytes of the text, bytes of the snapshot}.
inline constexpr char kAcquireScript[] =
    "local session = redis.call('HMGET', KEYS[1], 'owner', 'epoch', 'parts', 'count')\n"
    "local owner = session[1]\n"
    "if not session[2] then return {'NONE'} end\n"
    "local dead = nil\n"
    "if owner and owner ~= ARGV[1] then\n"
    "  local lease = redis.call('GET', 'ovq:lease:' .. owner)\n"
    "  if lease and lease ~= ARGV[2] then\n"
    "    return {'ELSEWHERE', owner, lease, redis.call('GET', KEYS[6]) == 'no' and 1 or 0,\n"
    "            redis.call('PTTL', 'ovq:lease:' .. owner)}\n"
    "  end\n"
    "  if lease then dead = 'ovq:lease:' .. owner end\n"
    "end\n"
    "if ARGV[3] == 'unasked' and redis.call('EXISTS', KEYS[6]) == 1 then\n"
    "  return {'ELSEWHERE', '', '', 0, 0}\n"
    "end\n"
    "if redis.call('EXISTS', KEYS[2]) == 0 then\n"
    "  return redis.error_reply('NOLEASE the lease of this server is over')\n"
    "end\n"
    "redis.call('HSET', KEYS[1], 'owner', ARGV[1], 'seq', 0)\n"
    "local epoch = redis.call('HINCRBY', KEYS[1], 'epoch', 1)\n"
    "if dead then redis.call('DEL', dead) end\n"
    "redis.call('DEL', KEYS[6])\n"
    "local bytes = 0\n"
    "for i = 1, tonumber(session[4]) do\n"
    "  bytes = bytes + redis.call('STRLEN', session[3] .. ':' .. i)\n"
    "end\n"
    "return {'MINE', tostring(epoch), redis.call('GET', KEYS[3]) or '',\n"
    "        redis.call('STRLEN', KEYS[4]), bytes}\n";

// Renews the lease. ARGV: 2 count, 3 milliseconds. Returns since which count the lease was never
// over, so that a lease that was over is noticed even if the first answer after that is lost. Where
// Redis's memory is full, a lease that is there is still prolonged, but goes on to hold what it
// did.
inline constexpr char kRenewScript[] =
    "local held = redis.call('GET', KEYS[2])\n"
    "local since = held and string.match(held, '%d+$') or ARGV[2]\n"
    "local value = ARGV[2] .. ' ' .. ARGV[3] .. ' ' .. since\n"
    "local set = redis.pcall('SET', KEYS[2], value, 'PX', ARGV[3])\n"
    "if type(set) == 'table' and set.err then\n"
    "  if not held then return set end\n"
    "  redis.call('PEXPIRE', KEYS[2], ARGV[3])\n"
    "end\n"
    "return tonumber(since)\n";

// Returns {}, or {journal, prefix and count of the parts of its snapshot, seq}.
inline constexpr char kReadScript[] =
    "local session = redis.call('HMGET', KEYS[1], 'epoch', 'parts', 'count', 'seq')\n"
    "if not session[1] then return {} end\n"
    "return {redis.call('GET', KEYS[3]) or '', session[2], session[3], session[4]}\n";

}  // namespace ovq::redis
