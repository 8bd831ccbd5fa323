#!lua
-- Writes a change and stops the run until it is unpaused or cancelled; one that failed until it is retried or cancelled.
--
-- KEYS, ARGV  as in library.lua and change.lua
--       then  reason, '1' if it failed
-- reply    {'parked'} or {'lost'}
local record, _, other = held(ID, HASH, LINK, WORKER, EPOCH)
if not record then
  return {other and other.h == LEASE and 'parked' or 'lost'}
end
local _, whole = write(record)
if not whole then
  return {'gap', record.n}
end
for _, message in ipairs((unread(INBOX, record, 0))) do
  if message[2] == 'pause' then
    redis.call('HDEL', INBOX, message[1])
  end
end
leave(record)
record.s = 'paused'
redis.call('HSET', HASH, 'error', arg())
record.F = arg() == '1' or nil
save(ID, record)
changed(ID)
return {'parked'}
