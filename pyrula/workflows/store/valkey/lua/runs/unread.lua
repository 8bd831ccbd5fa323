#!lua flags=allow-oom
-- Messages of a held run numbered above `seen`.
--
-- KEYS  own: 1 the run's hash, 2 its inbox
-- ARGV  2..5  id of the chain, link, worker, epoch;  6 seen
-- reply    {'ok', messages} or {'lost'}
local id, link, worker, epoch, seen = arg(), count(), arg(), count(), count()
local record = held(id, KEYS[SHARED + 1], link, worker, epoch)
if not record then
  return {'lost'}
end
return {'ok', (unread(KEYS[SHARED + 2], record, seen))}
