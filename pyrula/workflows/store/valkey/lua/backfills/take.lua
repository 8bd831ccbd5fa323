#!lua
-- Gives a part of a running backfill to a worker.
--
-- KEYS  1 index, 2 the backfill, 3 its progress
-- ARGV  1 digest of its id, 2 seconds to live, 3 part, 4 worker, 5 token and 6 beat of the hold it replaces, or ''
-- reply    {token, progress}, or {} if the part isn't to be had
--
-- Keeps: a hold is `state token beat worker`; the token grows with every take. A part is to be had if it is open and
-- nobody has it, or whoever has it stands still since the caller saw it, or the caller has it itself: its take was sent
-- twice (nothing saved since, the same token), or it has let go of it without saying so. Asking for one that another has
-- leaves the worker's name as a wish, which goes with the next take, whoever's it is.
local key = KEYS[2]
local stored = redis.call('HMGET', key, 'status', 'h' .. ARGV[3])
if stored[1] ~= 'running' or not stored[2] then
  return {}
end
local state, token, beat, worker = string.match(stored[2], '^(%a+) (%d+) (%d+) (.*)$')
if state ~= 'open' then
  return {}
end
if not (worker == '' or worker == ARGV[4] or (token == ARGV[5] and beat == ARGV[6])) then
  redis.call('HSET', key, 'wish', ARGV[4])
  return {}
end
redis.call('HDEL', key, 'wish')
if worker ~= ARGV[4] or beat ~= '0' then
  token = string.format('%d', tonumber(token) + 1)
  redis.call('HSET', key, 'h' .. ARGV[3], 'open ' .. token .. ' 0 ' .. ARGV[4])
end
for at = 1, 3 do
  redis.call('EXPIRE', KEYS[at], ARGV[2])
end
return {token, redis.call('HGET', KEYS[3], ARGV[3])}
