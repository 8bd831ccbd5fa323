#!lua
-- Messages of a held run numbered above `seen`.
--
-- KEYS  14 the run's hash, 15 its inbox
-- ARGV  2..5  id of the chain, link, worker, epoch;  6 seen
-- reply    {'ok', messages} or {'lost'}
local id, link, worker, epoch, seen = arg(), count(), arg(), count(), count()
local record = held(id, KEYS[14], link, worker, epoch)
if not record then
  return {'lost'}
end
return {'ok', (unread(KEYS[15], record, seen))}
