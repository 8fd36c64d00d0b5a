// The scripts that change sessions in Redis. Every one sees KEYS as RedisStore::Script lists them
// (1: the session, 2: this server's lease, 3: its journal, 4: its text, 5: all sessions) and
// ARGV[1], this server, and ARGV[2], the epoch in which it owns the session. Each may be run
// again after a lost acknowledgement.
#pragma once

namespace ovq::redis {

// Refuses whoever does not own the session in this epoch. It begins each script that writes.
#define OVQ_REDIS_FENCE                                                         \
  "local owner = redis.call('HGET', KEYS[1], 'owner')\n"                        \
  "if not owner then return 'GONE' end\n"                                       \
  "if owner ~= ARGV[1] or redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[2]\n"    \
  "   or redis.call('EXISTS', KEYS[2]) == 0 then\n"                             \
  "  return redis.error_reply('FENCED this server does not own the session')\n" \
  "end\n"

// Functions on the parts of a snapshot, PREFIX:1 to PREFIX:COUNT.
#define OVQ_REDIS_PARTS                                                             \
  "local function keep(prefix, count)\n"                                            \
  "  for i = 1, tonumber(count) do redis.call('PERSIST', prefix .. ':' .. i) end\n" \
  "end\n"                                                                           \
  "local function drop()\n"                                                         \
  "  local old = redis.call('HMGET', KEYS[1], 'parts', 'count')\n"                  \
  "  for i = 1, tonumber(old[2] or 0) do\n"                                         \
  "    redis.call('PEXPIRE', old[1] .. ':' .. i, 60000)\n"                          \
  "  end\n"                                                                         \
  "end\n"

// ARGV: 3 journal, 4 and 5 prefix and count of parts, 6 nonce, 7 id.
inline constexpr char kCreateScript[] = OVQ_REDIS_PARTS
    "local nonce = redis.call('HGET', KEYS[1], 'nonce')\n"
    "if nonce == ARGV[6] then return 'OK' end\n"
    "if nonce then return redis.error_reply('EXISTS there is such a session') end\n"
    "if redis.call('EXISTS', KEYS[2]) == 0 then\n"
    "  return redis.error_reply('FENCED the lease of this server is over')\n"
    "end\n"
    "redis.call('SET', KEYS[3], ARGV[3])\n"
    "redis.call('HSET', KEYS[1], 'owner', ARGV[1], 'epoch', 1, 'nonce', ARGV[6],\n"
    "           'parts', ARGV[4], 'count', ARGV[5])\n"
    "redis.call('SADD', KEYS[5], ARGV[7])\n"
    "keep(ARGV[4], ARGV[5])\n"
    "return 'OK'\n";

// ARGV: 3 size of the journal before, 4 entry.
inline constexpr char kAppendScript[] = OVQ_REDIS_FENCE
    "local size, at = redis.call('STRLEN', KEYS[3]), tonumber(ARGV[3])\n"
    "if size == at + #ARGV[4] and redis.call('GETRANGE', KEYS[3], at, -1) == ARGV[4] then\n"
    "  return 'OK'\n"
    "end\n"
    "if size ~= at then\n"
    "  return redis.error_reply('ERR journal: ' .. size .. ' bytes, expected ' .. at)\n"
    "end\n"
    "redis.call('APPEND', KEYS[3], ARGV[4])\n"
    "return 'OK'\n";

// ARGV: 3 size of the journal before, 4 journal, 5 and 6 prefix and count of parts.
inline constexpr char kSnapshotScript[] = OVQ_REDIS_FENCE OVQ_REDIS_PARTS
    "if redis.call('HGET', KEYS[1], 'parts') == ARGV[5] then return 'OK' end\n"
    "if redis.call('STRLEN', KEYS[3]) ~= tonumber(ARGV[3]) then\n"
    "  return redis.error_reply('ERR journal: changed by somebody else')\n"
    "end\n"
    "redis.call('SET', KEYS[3], ARGV[4])\n"
    "drop()\n"
    "redis.call('HSET', KEYS[1], 'parts', ARGV[5], 'count', ARGV[6])\n"
    "keep(ARGV[5], ARGV[6])\n"
    "return 'OK'\n";

// ARGV: 3 id.
inline constexpr char kRemoveScript[] = OVQ_REDIS_FENCE OVQ_REDIS_PARTS
    "drop()\n"
    "redis.call('DEL', KEYS[1], KEYS[3], KEYS[4])\n"
    "redis.call('SREM', KEYS[5], ARGV[3])\n"
    "return 'OK'\n";

// ARGV: 3 text, with its frame.
inline constexpr char kPutTextScript[] = OVQ_REDIS_FENCE
    "redis.call('SET', KEYS[4], ARGV[3])\n"
    "return 'OK'\n";

inline constexpr char kRemoveTextScript[] = OVQ_REDIS_FENCE
    "redis.call('DEL', KEYS[4])\n"
    "return 'OK'\n";

inline constexpr char kReleaseScript[] = OVQ_REDIS_FENCE
    "redis.call('HSET', KEYS[1], 'owner', '')\n"
    "return 'OK'\n";

// ARGV: 3 bytes of the journal that are whole.
inline constexpr char kCutScript[] = OVQ_REDIS_FENCE
    "redis.call('SET', KEYS[3], redis.call('GETRANGE', KEYS[3], 0, tonumber(ARGV[3]) - 1))\n"
    "return 'OK'\n";

// ARGV: 3 id. The parts stay under their names, which the session's hash has.
inline constexpr char kQuarantineScript[] = OVQ_REDIS_FENCE
    "for _, key in ipairs({KEYS[1], KEYS[3], KEYS[4]}) do\n"
    "  if redis.call('EXISTS', key) == 1 then redis.call('RENAME', key, 'damaged:' .. key) end\n"
    "end\n"
    "redis.call('SREM', KEYS[5], ARGV[3])\n"
    "return 'OK'\n";

// Acquires a session that no living server owns. ARGV: 3 id. Returns what became of it, its epoch,
// its journal, the bytes of its text and of its snapshot; for one elsewhere its owner and whether
// the request for it still stands.
inline constexpr char kAcquireScript[] =
    "local session = redis.call('HMGET', KEYS[1], 'owner', 'epoch', 'parts', 'count')\n"
    "local owner = session[1]\n"
    "if not owner then return {'NONE'} end\n"
    "if owner ~= ARGV[1] then\n"
    "  if owner ~= '' and redis.call('EXISTS', 'ovq:lease:' .. owner) == 1 then\n"
    "    return {'ELSEWHERE', owner, redis.call('EXISTS', 'ovq:asked:' .. ARGV[3])}\n"
    "  end\n"
    "  if redis.call('EXISTS', KEYS[2]) == 0 then\n"
    "    return redis.error_reply('FENCED the lease of this server is over')\n"
    "  end\n"
    "  redis.call('HSET', KEYS[1], 'owner', ARGV[1])\n"
    "  session[2] = redis.call('HINCRBY', KEYS[1], 'epoch', 1)\n"
    "end\n"
    "local bytes = 0\n"
    "for i = 1, tonumber(session[4]) do\n"
    "  bytes = bytes + redis.call('STRLEN', session[3] .. ':' .. i)\n"
    "end\n"
    "return {'MINE', tostring(session[2]), redis.call('GET', KEYS[3]) or '',\n"
    "        redis.call('STRLEN', KEYS[4]), bytes}\n";

// Renews a lease. Returns 0 if it is over.
inline constexpr char kRenewScript[] = "return redis.call('PEXPIRE', KEYS[2], ARGV[3])\n";

// Returns the journal, and the prefix and count of the parts of its snapshot.
inline constexpr char kReadScript[] =
    "local session = redis.call('HMGET', KEYS[1], 'parts', 'count')\n"
    "if not session[2] then return {} end\n"
    "return {redis.call('GET', KEYS[3]) or '', session[1], session[2]}\n";

}  // namespace ovq::redis
