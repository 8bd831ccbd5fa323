#!lua
-- Queues a run, unless its id or its idempotency key was there before.
--
-- KEYS  own: 1 the run's hash, 2 its events, 3 its inbox, 4 ids of messages met, 5 the idempotency key's entry if any
-- ARGV  2..4  id, class, owner
--       5  digest of the params
--       6  event
--       7  version or ''
--       8, 9  digest of the name, '1' if it has an owner
--       10 priority's byte
--       11 '', or '1' and the run's gates: the seven parts of G in queue.lua
--       then  number of further fields of the hash, then the fields
--       then  '' or a first message: kind, id, name, payload
-- reply    {id of the run that is there, 1 if it is this one, 1 if it was submitted with these params}
--
-- Keeps: one run for an idempotency key of this shard.
local id, class, owner, digest, event, version = arg(), arg(), arg(), arg(), arg(), arg()
local workflow, owned, priority = arg(), arg(), count()
local gates
if arg() == '1' then
  gates = {arg(), count(), arg(), count(), count(), arg(), arg()}
end
local fields = take(2 * count())
if KEYS[SHARED + 5] then
  local entry = redis.call('GET', KEYS[SHARED + 5])
  if entry then
    local cut = string.find(entry, ' ', 1, true)
    local found = string.sub(entry, 1, cut - 1)
    return {found, found == id and 1 or 0, string.sub(entry, cut + 1) == digest and 1 or 0}
  end
end
local before = redis.call('HGET', KEYS[SHARED + 1], 'digest')
if before then
  return {id, 1, before == digest and 1 or 0}
end
redis.call('HSET', KEYS[SHARED + 1], 'digest', digest, 'created', string.format('%.0f', now()), unpack(fields))
if KEYS[SHARED + 5] then
  redis.call('SET', KEYS[SHARED + 5], id .. ' ' .. digest)
end
redis.call('RPUSH', KEYS[SHARED + 2], event)
local order = redis.call('HINCRBY', META, 'submit', 1)
local record = {
  s = 'new', c = class, o = owner, k = struct.pack('>BI8', priority, order), l = 1, e = 0, n = 0, a = 1, d = 0, q = 0,
  m = workflow, j = owned == '1' or nil, G = gates
}
if version ~= '' then
  record.v = version
end
local kind = arg()
if kind ~= '' then
  local message, name, payload = arg(), arg(), arg()
  redis.call('HSET', KEYS[SHARED + 4], kind .. ':' .. message, '')
  put(id, record, KEYS[SHARED + 3], kind, message, name, payload)
end
settle(id, record, KEYS[SHARED + 1], '')
enqueue(id, record)
return {id, 1, 1}
