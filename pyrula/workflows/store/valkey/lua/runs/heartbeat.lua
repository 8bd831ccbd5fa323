#!lua flags=allow-oom
-- Raises a worker's counter and tells what it holds.
--
-- KEYS  as in library.lua
-- ARGV  2, 3  worker, its digest
-- reply    {time in microseconds, {id, link, epoch, number of the last message} of each run}
--
-- Keeps: a counter's value never returns on this shard.
local worker, digest = arg(), arg()
redis.call('HSET', BEAT, worker, redis.call('HINCRBY', META, 'beat', 1))
local runs = {}
for _, member in ipairs(redis.call('ZRANGE', HELD, '[' .. digest, '(' .. digest .. '\255', 'BYLEX')) do
  local id = string.sub(member, 13)
  local record = cmsgpack.unpack(redis.call('HGET', RUN, id))
  runs[#runs + 1] = {id, record.l, record.e, record.q}
end
return {now(), runs}
