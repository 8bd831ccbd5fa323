#!lua
-- Writes or deletes a schedule, if its revision is the expected one.
--
-- KEYS  1 schedules, 2 when those that aren't paused are due
-- ARGV  1 digest of its id, 2 expected revision or '', 3 microseconds when it is due or '', 4 the schedule, '' to delete
-- reply    1 written, 0 not
--
-- Keeps: a stored schedule is its revision, a space, and what the caller gave; the revision grows. A write sent twice is
-- answered as written.
local id = ARGV[1]
local stored = redis.call('HGET', KEYS[1], id)
local revision = stored and tonumber(string.match(stored, '^%d+')) or 0
if ARGV[2] ~= '' and ARGV[4] ~= '' and stored == string.format('%d ', tonumber(ARGV[2]) + 1) .. ARGV[4] then
  return 1
end
if ARGV[2] ~= '' and tonumber(ARGV[2]) ~= revision then
  return 0
end
redis.call('ZREM', KEYS[2], id)
if ARGV[4] == '' then
  return redis.call('HDEL', KEYS[1], id)
end
redis.call('HSET', KEYS[1], id, string.format('%d ', revision + 1) .. ARGV[4])
if ARGV[3] ~= '' then
  redis.call('ZADD', KEYS[2], ARGV[3], id)
end
return 1
