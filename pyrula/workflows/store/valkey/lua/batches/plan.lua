#!lua
-- Says which run the first sealed batch becomes.
--
-- KEYS  as in library.lua
-- ARGV  as in library.lua
--       3  id of the batch, 4 its plan
-- reply    the plan that stands, '' if the batch isn't the first one any more
--
-- Keeps: the first plan stands, so that all who submit the batch submit the same run.
local packed = redis.call('LINDEX', SEALED, 0)
local batch = packed and cmsgpack.unpack(packed)
if not batch or batch[1] ~= ARGV[3] then
  return ''
end
if batch[7] == '' then
  batch[7] = ARGV[4]
  redis.call('LSET', SEALED, 0, cmsgpack.pack(batch))
end
return batch[7]
