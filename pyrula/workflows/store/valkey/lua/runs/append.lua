#!lua
-- Writes a change of a run's holder.
--
-- KEYS, ARGV  as in library.lua and change.lua
-- reply    {'ok', messages numbered above `seen`} or {'lost'}
--
-- Keeps: only the present lease writes.
local record = held(ID, HASH, LINK, WORKER, EPOCH)
if not record then
  return {'lost'}
end
local seen, whole = write(record)
if not whole then
  return {'gap', record.n}
end
save(ID, record)
local found = unread(INBOX, record, seen)
return {'ok', found}
