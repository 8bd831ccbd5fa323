#!lua
-- Writes a change, and lets the run wait in the store unless a message its holder hasn't seen would wake it.
--
-- KEYS, ARGV  as in library.lua and change.lua
--       then  status, number of waits, and of each: kind, name, deadline in microseconds or ''
-- reply    {'parked'}, {'ok', messages numbered above `seen`} if it is still held, or {'lost'}
--
-- Keeps: a run that is parked has its timer; a second sending of a park that was done changes nothing.
local record, _, other = held(ID, HASH, LINK, WORKER, EPOCH)
if not record then
  return {other and other.h == LEASE and 'parked' or 'lost'}
end
local seen, whole = write(record)
if not whole then
  return {'gap', record.n}
end
local status, waits, due = arg(), {}, nil
for place = 1, count() do
  local kind, name, deadline = arg(), arg(), arg()
  waits[place] = {kind, name, deadline}
  if deadline ~= '' and (not due or tonumber(deadline) < tonumber(due)) then
    due = deadline
  end
end
local found, met = unread(INBOX, record, seen, function(kind, name)
  return wakes(waits, kind, name)
end)
if met then
  save(ID, record)
  return {'ok', found}
end
leave(record)
record.s, record.p = status, waits
if due and tonumber(due) <= now() then
  enqueue(ID, record)
  return {'parked'}
end
if due then
  redis.call('ZADD', TIMER, due, ID)
end
save(ID, record)
changed(ID)
return {'parked'}
