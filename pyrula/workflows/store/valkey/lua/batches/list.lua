#!lua flags=no-writes
-- What is gathered in some open batches.
--
-- KEYS  1 the shard's open batches
-- ARGV  digests of workflow, key and owner
-- reply    {the key's JSON, number of events, when it was opened, when it is due, owner or ''} of each that is
--          open
--
-- Keeps: nothing is written.
local found = {}
for place = 1, #ARGV do
  local packed = redis.call('HGET', KEYS[1], ARGV[place])
  if packed then
    local batch = cmsgpack.unpack(packed)
    found[#found + 1] = {batch.k, batch.n, batch.o, batch.d, batch.u or ''}
  end
end
return found
