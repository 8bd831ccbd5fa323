#!lua
-- Puts an event into the batch of its workflow, key and owner.
--
-- KEYS  as in library.lua, 6 the event's id
-- ARGV  as in library.lua
--       3  id of the batch that this event may open
--       4  event, 5 its key's JSON
--       6  window in microseconds, 7 most events or '', 8 longest wait in microseconds or ''
--       9  bytes that the events of a batch may have, a comma for each included
--       10 seconds for which the event's id is known
--       11 what the event's id is called in a sealed batch
--       12 owner or ''
-- reply    {id of the batch that the event filled or '', id of its run if it is known or '', the first sealed batch if
--          this event sealed one or false}
--
-- Keeps: an event joins one batch, and gets the same answer again. A batch that is due when an event comes is sealed
-- before it. What the first event of a batch says of windows and numbers holds for all of it.
local known = redis.call('GET', KEYS[6])
if known then
  if string.sub(known, 1, 1) == '#' then
    return {string.sub(known, 2), '', head(now())}
  end
  return {'', known, false}
end
local event, present = ARGV[4], now()
local batch = seal_if_due(load(), present)
local pushed = false
if batch and batch.b + #event + 1 > tonumber(ARGV[9]) then
  seal(batch, 'size', '')
  batch, pushed = nil, true
end
if batch then
  redis.call('APPEND', EVENTS, ',' .. event)
else
  batch = {
    i = ARGV[3], k = ARGV[5], n = 0, b = 0, o = present, w = tonumber(ARGV[6]), m = tonumber(ARGV[7]),
    x = tonumber(ARGV[8]), u = ARGV[12] ~= '' and ARGV[12] or nil
  }
  redis.call('SET', EVENTS, event)
end
batch.n, batch.b = batch.n + 1, batch.b + #event + 1
if batch.m and batch.n >= batch.m then
  redis.call('SET', KEYS[6], '#' .. batch.i, 'EX', ARGV[10])
  seal(batch, 'max_events', ARGV[11])
  return {batch.i, '', head(present)}
end
redis.call('SET', KEYS[6], '', 'EX', ARGV[10])
if not batch.m then
  batch.d = math.min(present + batch.w, batch.x and batch.o + batch.x or math.huge)
else
  batch.d = batch.o + batch.w
end
redis.call('HSET', OPEN, DIGEST, cmsgpack.pack(batch))
redis.call('ZADD', DUE, microseconds(batch.d), 'o' .. DIGEST)
return {'', '', pushed and head(present) or false}
