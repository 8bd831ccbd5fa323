#!lua flags=allow-oom
-- The run of a record that is complete and not kept: it isn't found any more.
--
-- KEYS  1  the source's hash, 2  the address's board
--       3..8  the run's hash, events, inbox, ids of messages met, when they were consumed, interrupts and children
--       9  the address's lanes
-- ARGV  1..5  token, channel, id, position, seconds
-- reply    1 done, 0 refused: the token is another one
local token, channel, id, position, seconds = arg(), arg(), arg(), arg(), arg()
if redis.call('HGET', KEYS[1], 'token') ~= token then
  return 0
end
if elsewhere(KEYS[3], KEYS[2], KEYS[9], position) then
  return 1
end
local state = load(KEYS[3], KEYS[2], position)
if not state or not ENDED[state.s] then
  redis.call('UNLINK', unpack(KEYS, 3, 8))
  redis.call('HSET', KEYS[3], 'gone', 1)
  redis.call('EXPIRE', KEYS[3], seconds)
end
redis.call('HDEL', KEYS[2], position)
changed(channel, id)
return 1
