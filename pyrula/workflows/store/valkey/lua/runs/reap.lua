#!lua flags=allow-oom
-- Requeues runs of a worker that is dead, or that leaves; 64 a call, the caller goes on until none is left.
--
-- KEYS  as in library.lua
-- ARGV  2, 3  worker, its digest
--       4     the counter it must still have, '' if it leaves by itself
-- reply    {runs requeued, 1 if there are more}
--
-- Keeps: who beats is not reaped. A dead worker's runs have their epoch raised and their death counted; who left is not
-- charged. The counter goes after the last run.
local worker, digest, counter = arg(), arg(), arg()
if counter ~= '' and redis.call('HGET', BEAT, worker) ~= counter then
  return {0, 0}
end
local members = redis.call('ZRANGE', HELD, '[' .. digest, '(' .. digest .. '\255', 'BYLEX', 'LIMIT', 0, 64)
for _, member in ipairs(members) do
  local id = string.sub(member, 13)
  local record = cmsgpack.unpack(redis.call('HGET', RUN, id))
  if counter ~= '' then
    record.e = record.e + 1
    record.d = record.d + 1
    record.y = record.z
  else
    record.h = holder(record)
  end
  let_go(id, record)
  enqueue(id, record)
end
if #members == 64 then
  return {64, 1}
end
redis.call('HDEL', BEAT, worker)
redis.call('HDEL', REPLY, worker)
return {#members, 0}
