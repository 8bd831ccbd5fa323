#!lua flags=allow-oom
-- Writes a change, if there is one, and gives the run back to the queue, uncharged.
--
-- KEYS, ARGV  as in library.lua and change.lua
-- reply    {'parked'} or {'lost'}
local record, _, other = held(ID, HASH, LINK, WORKER, EPOCH)
if not record then
  return {other and other.h == LEASE and 'parked' or 'lost'}
end
local _, whole = write(record)
if not whole then
  return {'gap', record.n}
end
leave(record)
enqueue(ID, record)
return {'parked'}
