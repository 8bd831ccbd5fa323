#!lua
-- Writes a change, ends this link of a chain and begins the next one in the same hands.
--
-- KEYS  as in library.lua and change.lua, then own 8 what is kept of this link, 9 the next link's events, then all that
--       is kept of the link that is one too many
-- ARGV  as in library.lua and change.lua
--       then  the next link's params, version ('' as before), class; number of events, events; the next link's first
-- reply    {'ok', epoch, version} or {'lost'}
--
-- Keeps: inbox, owner, place in the queue and ids of messages are the chain's; params, journal and events a link's. What
-- answers the old body's interrupts goes with it.
local record, live, other = held(ID, HASH, LINK, WORKER, EPOCH)
if not record then
  if live and other.g == LEASE and other.l == LINK + 1 and other.w == WORKER and other.e == EPOCH + 1 then
    return {'ok', other.e, other.v}
  end
  return {'lost'}
end
local _, whole = write(record)
if not whole then
  return {'gap', record.n}
end
local params, version, class = arg(), arg(), arg()
in_pieces('RPUSH', EVENTS, take(count()))
redis.call(
  'HSET', KEYS[SHARED + 8], 'params', redis.call('HGET', HASH, 'params'), 'version', record.v, 'attempt', record.a
)
for _, key in ipairs({JOURNAL, EVENTS, KEYS[SHARED + 8]}) do
  redis.call('EXPIRE', key, RETENTION)
end
redis.call('RPUSH', KEYS[SHARED + 9], arg())
for index = SHARED + 10, #KEYS do
  redis.call('UNLINK', KEYS[index])
end
redis.call('HSET', HASH, 'params', params)
for _, field in ipairs(redis.call('HKEYS', EXTRAS)) do
  if string.sub(field, 1, 1) == 'w' then
    redis.call('HDEL', EXTRAS, field)
  end
end
for _, number in ipairs(redis.call('HKEYS', INBOX)) do
  if cmsgpack.unpack(redis.call('HGET', INBOX, number))[1] == 'resume' then
    redis.call('HDEL', INBOX, number)
  end
end
record.g, record.l, record.e, record.n = LEASE, record.l + 1, record.e + 1, 0
record.a, record.d, record.z = 1, 0, nil
if version ~= '' then
  record.v, record.c = version, class
end
save(ID, record)
changed(ID)
return {'ok', record.e, record.v}
