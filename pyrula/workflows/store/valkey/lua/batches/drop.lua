#!lua flags=allow-oom
-- Takes a batch off that has become a run.
--
-- KEYS  as in library.lua, 6 the id of the event that filled it, if one did
-- ARGV  as in library.lua
--       3  id of the batch, 4 id of the run
-- reply    the next sealed batch, or nothing
--
-- Keeps: the event that filled the batch is answered with its run from here on.
local packed = redis.call('LINDEX', SEALED, 0)
if packed and cmsgpack.unpack(packed)[1] == ARGV[3] then
  redis.call('LPOP', SEALED)
  if KEYS[6] then
    redis.call('SET', KEYS[6], ARGV[4], 'XX', 'KEEPTTL')
  end
  if redis.call('LLEN', SEALED) == 0 then
    redis.call('ZREM', DUE, 's' .. DIGEST)
  end
end
return head(now())
