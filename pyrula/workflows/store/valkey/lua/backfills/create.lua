#!lua
-- Keeps the request of a backfill, unless there is one.
--
-- KEYS  1 index, 2 the backfill
-- ARGV  1 digest of its id, 2 seconds to live, 3 id, 4 request, 5 pace
-- reply    nothing; what stands is read after it
--
-- Keeps: the first request counts, until it was refused before it had a plan. The same request again changes the pace of
-- a backfill that isn't over, and nothing else.
local stored = redis.call('HMGET', KEYS[2], 'request', 'status', 'plan')
local status = stored[2]
if not stored[1] or (status == 'failed' and not stored[3]) then
  local time = redis.call('TIME')
  redis.call('DEL', KEYS[2])
  redis.call('HSET', KEYS[2], 'id', ARGV[3], 'request', ARGV[4], 'pace', ARGV[5], 'status', 'requested',
    'created', time[1] .. string.format('%06d', tonumber(time[2])))
  redis.call('ZADD', KEYS[1], 1, ARGV[1])
elseif stored[1] == ARGV[4] and status ~= 'completed' and status ~= 'cancelled' then
  redis.call('HSET', KEYS[2], 'pace', ARGV[5])
end
redis.call('EXPIRE', KEYS[1], ARGV[2])
redis.call('EXPIRE', KEYS[2], ARGV[2])
return 1
