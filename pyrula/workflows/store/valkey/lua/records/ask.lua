#!lua
-- Puts a question to a record's run where its source's holder finds it.
--
-- KEYS  1  the address's hash, 2  its questions, 3  the run's hash, 4  the address's board, 5  its lanes
-- ARGV  1..4  channel, id, position, incarnation
--       5..8  id, name, payload of the question, microseconds that it stays
-- reply    1, 0 if there can't be such a run, 2 if it was handed over
local channel, id, position, incarnation = arg(), arg(), count(), arg()
local question, name, payload, stay = arg(), arg(), arg(), count()
local stored = redis.call('HMGET', KEYS[1], 'incarnation', 'below', 'worker')
if elsewhere(KEYS[3], KEYS[4], KEYS[5], position, stored[2]) then
  return 2
end
if not load(KEYS[3], KEYS[4], position, stored[2]) then
  local gone = redis.call('HEXISTS', KEYS[3], 'gone') == 1
  if gone or stored[1] ~= incarnation or position < tonumber(stored[2]) then
    return 0
  end
end
if not stored[3] then
  return 1
end
redis.call('HSET', KEYS[2], question, cmsgpack.pack({id, name, payload, now() + stay}))
redis.call('EXPIRE', KEYS[2], 3600)
redis.call('HINCRBY', KEYS[1], 'news', 1)
redis.call('PUBLISH', channel .. ':w:' .. stored[3], id)
return 1
