#!lua flags=allow-oom
-- Pauses, resumes or cancels a backfill.
--
-- KEYS  1 index, 2 the backfill, 3 its progress
-- ARGV  1 digest of its id, 2 seconds to live, 3 verb
-- reply    {1, the status it led to}, {0, the status that doesn't allow it}, {-1} there is no such backfill
--
-- Keeps: completed and cancelled are final. What is so already stays so, and is answered as done. Who holds a part hears
-- of it with its next save. `resume` opens stuck parts again.
local index, key = KEYS[1], KEYS[2]
local stored = redis.call('HMGET', key, 'status', 'plan')
local status = stored[1]
if not status then
  return {-1}
end
local going = stored[2] and 'running' or 'requested'
local wanted, allowed
if ARGV[3] == 'pause' then
  wanted, allowed = 'paused', status == 'requested' or status == 'running'
elseif ARGV[3] == 'resume' then
  wanted, allowed = going, status == 'paused' or status == 'failed'
else
  wanted, allowed = 'cancelled', status == 'requested' or status == 'running' or status == 'paused'
end
if status == wanted then
  return {1, status}
end
if not allowed then
  return {0, status}
end
if ARGV[3] == 'resume' then
  local fields = redis.call('HGETALL', key)
  for at = 1, #fields, 2 do
    local part = string.match(fields[at], '^h(%d+)$')
    if part and string.match(fields[at + 1], '^stuck ') then
      redis.call('HSET', key, fields[at], 'open' .. string.sub(fields[at + 1], 6))
      redis.call('HDEL', key, 'x' .. part)
    end
  end
  redis.call('HDEL', key, 'problem', 'finished')
elseif ARGV[3] == 'cancel' then
  local time = redis.call('TIME')
  redis.call('HSET', key, 'finished', time[1] .. string.format('%06d', tonumber(time[2])))
end
redis.call('HSET', key, 'status', wanted)
redis.call('ZADD', index, wanted == 'cancelled' and 0 or 1, ARGV[1])
for at = 1, 3 do
  redis.call('EXPIRE', KEYS[at], ARGV[2])
end
return {1, wanted}
