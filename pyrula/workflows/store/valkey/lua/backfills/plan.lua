#!lua
-- Gives a requested backfill its parts, or the reason why it can have none.
--
-- KEYS  1 index, 2 the backfill, 3 its progress
-- ARGV  1 digest of its id, 2 seconds to live, 3 plan, 4 problem or ''
--       5..  part, progress, part, progress...
-- reply    1 planned or refused, 0 it isn't requested (any more)
--
-- Keeps: the first plan counts. Without parts there is nothing to do, so the backfill is completed.
local index, key, progress = KEYS[1], KEYS[2], KEYS[3]
if redis.call('HGET', key, 'status') ~= 'requested' then
  return 0
end
local time = redis.call('TIME')
local now = time[1] .. string.format('%06d', tonumber(time[2]))
local status = 'running'
if ARGV[4] ~= '' then
  status = 'failed'
  redis.call('HSET', key, 'problem', ARGV[4], 'finished', now)
else
  redis.call('HSET', key, 'plan', ARGV[3], 'started', now)
  redis.call('DEL', progress)
  for at = 5, #ARGV, 2 do
    redis.call('HSET', key, 'h' .. ARGV[at], 'open 0 0 ')
    redis.call('HSET', progress, ARGV[at], ARGV[at + 1])
  end
  if #ARGV < 5 then
    status = 'completed'
    redis.call('HSET', key, 'finished', now)
  end
end
redis.call('HSET', key, 'status', status)
redis.call('ZADD', index, status == 'running' and 1 or 0, ARGV[1])
for at = 1, 3 do
  redis.call('EXPIRE', KEYS[at], ARGV[2])
end
return 1
