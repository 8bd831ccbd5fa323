#!lua
-- Seals the open batch if it is due, and gives the first sealed one unless somebody has it.
--
-- KEYS  as in library.lua
-- ARGV  as in library.lua
-- reply    the sealed batch, or nothing
--
-- Keeps: the server's clock decides, not the taker's. What a taker leaves lying is given to the next one.
local present = now()
seal_if_due(load(), present)
local free = redis.call('ZSCORE', DUE, 's' .. DIGEST)
if free and tonumber(free) <= present then
  return head(present)
end
return false
