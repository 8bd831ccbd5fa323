#!lua flags=allow-oom
-- Writes a change and ends the run.
--
-- KEYS  as in library.lua and change.lua, then the idempotency key's entry if there is one, for a record's run the keys of
--       its lane (inbox.lua)
-- ARGV  as in library.lua and change.lua
--       then  status, value, error or '', what the parent gets, number of events, events
-- reply    {'ok', status, unread messages, entries of the outbox} or {'lost'}
--
-- Keeps: the first finish stands; its lease may send it again. With the status go result, retention, the parent's
-- message, the children's cancels and the next run of the lane, so none of them is ever missing.
local record, live, other = held(ID, HASH, LINK, WORKER, EPOCH)
if not record then
  if other and not live and other.f == LEASE and other.l == LINK then
    return {'ok', other.s, (unread(INBOX, other, 0)), 1}
  end
  return {'lost'}
end
local _, whole = write(record)
if not whole then
  return {'gap', record.n}
end
local status, value, error, payload = arg(), arg(), arg(), arg()
in_pieces('RPUSH', EVENTS, take(count()))
let_go(ID, record)
record.f = LEASE
leave_lane(ID, record)
terminate(ID, record, lasting(record), HASH, EXTRAS, status, value, error, payload, RETENTION)
return {'ok', status, (unread(INBOX, record, 0)), redis.call('HLEN', OUT)}
