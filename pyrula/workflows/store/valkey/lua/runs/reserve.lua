#!lua
-- Keeps a submission whose run will lie on another shard, under its idempotency key.
--
-- KEYS  own: 1 the entry
-- ARGV  2  id of the run
--       3  digest of the params
--       4  retention in seconds
--       5  the submission
-- reply    {id of the run that the key stands for, 1 if it was submitted with these params, the submission that was kept or
--          '' if its run is known to be there}
--
-- Keeps: one run for an idempotency key. What is pending lives for the retention only: nobody was told of its run yet.
local id, digest, retention, submission = arg(), arg(), arg(), arg()
local entry = redis.call('GET', KEYS[SHARED + 1])
if not entry then
  entry = id .. ' ' .. digest .. ' -1\n' .. submission
  redis.call('SET', KEYS[SHARED + 1], entry, 'EX', retention)
end
local found, stored, pending = string.match(entry, '^(%S+) (%S+)[^\n]*\n?(.*)$')
return {found, stored == digest and 1 or 0, pending}
