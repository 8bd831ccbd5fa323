#!lua
-- Writes a change of a record's run, with its rows of the source's journal.
--
-- KEYS  1  the source's hash, 2  the journal's bucket, 3  the address's hash, 4  its board, 5  the shard's outbox
--       6..11  the run's hash, events, inbox, ids of messages met, when they were consumed, interrupts and children
--       12     the address's lanes, 13  the journal that the run has once it is in the store
-- ARGV  1..5  token, number of this sending, high mark, witness or '', seconds to live (as in append.lua)
--       6..8  channel, id, position
--       9..14 number of the bucket, bytes to set, holder, number of the change, retention, status
--       then  error or ''; attempt or ''; waits, each counted: kind, name, deadline in microseconds or ''; and counted:
--             rows to set (index, data), rows to delete, message numbers consumed, updates applied (id, outcome's letter
--             and value), interrupts opened (id, payload) and closed, children (id, policy), events
--       then  '' or an end: status, value, error or '', seconds to keep it, seconds to keep it if a client has done
--             something to the run and the former are 0: else nothing of it stays; for a redrive: what it is executed
--             from, or '', and counted: rows (index, data)
-- reply    1 written, 0 refused: the token is another one
--
-- Keeps: as append.lua. A change is written once, by its holder and number; an end is the last one. With the end of a run
-- go the cancels of its children.
local source, bucket, stream, board, out = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local hash, events, inbox, met, consumed, extras = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[11]
local token, sending, high, witness, ttl = arg(), arg(), arg(), arg(), arg()
local channel, id, position = arg(), arg(), arg()
local shelf, size, holder, number, retention, status = arg(), arg(), arg(), count(), count(), arg()
local stored = redis.call('HMGET', source, 'token', 'seq', 'high')
if stored[1] ~= token then
  return 0
end
if stored[2] then
  local sender, one = string.match(sending, '^(%w+)%.(%d+)$')
  local former, last = string.match(stored[2], '^(%w+)%.(%d+)$')
  if sender == former and tonumber(one) <= tonumber(last) then
    return 1
  end
end
redis.call('HSET', source, 'seq', sending)
local about = redis.call('HMGET', stream, 'name', 'version', 'metadata', 'below')
if elsewhere(hash, board, KEYS[12], position, about[4]) then
  return 1
end
local state = load(hash, board, position, about[4])
if not state then
  state = begin({hash, events, inbox, met, consumed, extras}, about)
end
if ENDED[state.s] or (state.h == holder and number <= state.n) then
  return 1
end
if not stored[3] or tonumber(stored[3]) < tonumber(high) then
  redis.call('HSET', source, 'high', high)
end
if witness ~= '' then
  redis.call('HSET', source, 'log', witness)
end
local error, attempt, waits = arg(), arg(), {}
for place = 1, count() do
  waits[place] = {arg(), arg(), arg()}
end
local set = take(2 * count())
local deleted = take(count())
local numbers = take(count())
local applied = take(2 * count())
local opened = take(2 * count())
local closed = take(count())
local children = take(2 * count())
local told = take(count())
local shown = state.s ~= status
state.h, state.n, state.s, state.p = holder, number, status, #waits > 0 and waits or nil
if attempt ~= '' then
  state.a = tonumber(attempt)
end
redis.call('HSET', hash, 'error', error)
if #set > 0 then
  in_pieces('HSET', bucket, set)
  redis.call('HINCRBY', source, 'b' .. shelf, size)
end
in_pieces('HDEL', bucket, deleted)
local seconds = string.format('%.0f', now() / 1000000)
for _, one in ipairs(numbers) do
  local packed = redis.call('HGET', inbox, one)
  if packed then
    local message = cmsgpack.unpack(packed)
    local known = message[1] .. ':' .. message[2]
    if message[1] == 'child' then
      redis.call('HDEL', extras, 'c' .. message[2])
    end
    if redis.call('HEXISTS', met, known) == 1 then
      redis.call('ZADD', consumed, seconds, known)
    end
    redis.call('HDEL', inbox, one)
  end
end
if #numbers > 0 then
  local upto = string.format('%.0f', tonumber(seconds) - retention)
  for _, known in ipairs(redis.call('ZRANGE', consumed, '-inf', upto, 'BYSCORE', 'LIMIT', 0, 64)) do
    redis.call('HDEL', met, known)
    redis.call('ZREM', consumed, known)
  end
end
for place = 1, #applied, 2 do
  local known = 'update:' .. applied[place]
  redis.call('HSET', met, known, applied[place + 1])
  redis.call('ZADD', consumed, seconds, known)
  shown = true
end
for place = 1, #opened, 2 do
  redis.call('HSET', extras, 'w' .. opened[place], opened[place + 1])
  shown = true
end
for _, wait in ipairs(closed) do
  redis.call('HDEL', extras, 'w' .. wait)
end
for place = 1, #children, 2 do
  redis.call('HSETNX', extras, 'c' .. children[place], children[place + 1])
end
in_pieces('RPUSH', events, told)
redis.call('HSETNX', board, position, state.c)
local ended = arg()
if ended ~= '' then
  local value, failure = arg(), arg()
  ttl = tonumber(arg())
  local told = arg()
  state.s, state.p = ended, nil
  redis.call('HSET', hash, 'value', value, 'error', failure, 'finished', string.format('%.0f', now()))
  redis.call('HSET', board, position, -1)
  local kept = redis.call('HGETALL', extras)
  for place = 1, #kept, 2 do
    if string.sub(kept[place], 1, 1) == 'c' and kept[place + 1] == 'cancel' then
      local child = string.sub(kept[place], 2)
      redis.call('HSET', out, 'c' .. child, cmsgpack.pack({child, 'cancel', 'cancel', '', 'null'}))
    end
  end
  redis.call('UNLINK', extras)
  if ttl == 0 and state.c == 0 then
    redis.call('UNLINK', hash, events, inbox, met, consumed)
    redis.call('HDEL', board, position)
    for place = 1, 4 do
      redis.call('EXPIRE', KEYS[place], ARGV[5])
    end
    changed(channel, id)
    return 1
  end
  ttl = ttl > 0 and ttl or told
  shown = true
  local params, rows = arg(), take(2 * count())
  redis.call('UNLINK', KEYS[13])
  in_pieces('HSET', KEYS[13], rows)
  if params ~= '' then
    redis.call('HSET', hash, 'params', params)
  end
end
save(hash, state)
for place = 6, 11 do
  redis.call('EXPIRE', KEYS[place], ttl)
end
redis.call('EXPIRE', KEYS[13], ttl)
for place = 1, 4 do
  redis.call('EXPIRE', KEYS[place], ARGV[5])
end
if shown then
  changed(channel, id)
end
return 1
