#!lua
-- What stands between a run and its start.
--
-- KEYS  own: 1 the run's hash, for a record's run 2 its partition's lanes, 3 their queue
-- ARGV  2, 3  id of the chain, link
--       4     how many holders of slots to tell
-- reply    {} if there is none; else {since when it has its status or '', time, stamp or '', slots taken of its Limit's key,
--          some of their holders, when the next token of its Rate is due or '', the gate where it waits: 'l', 'r' or '',
--          runs of its owner ahead of it there (up to about a hundred), or of its lane, owners ahead of its own, the head
--          of its lane if it is queued behind that, or ''}
local id, link, told_holders = arg(), count(), count()
local record, live = load(id, KEYS[SHARED + 1])
if not record or link > record.l then
  return {}
end
local stamp = redis.call('HGET', KEYS[SHARED + 1], 'stamp') or ''
local present = string.format('%.0f', now())
if not live then
  return {'', present, stamp, 0, {}, '', '', 0, 0, ''}
end
local gates, used, holders, due = record.G, 0, {}, ''
if gates and gates[1] ~= '' then
  used = size(SLOT, gates[1])
  local slots = redis.call('ZRANGE', SLOT, '[' .. gates[1], '(' .. gates[1] .. '\255', 'BYLEX', 'LIMIT', 0, told_holders)
  for _, slot in ipairs(slots) do
    if string.sub(slot, 14, 14) ~= '~' then
      holders[#holders + 1] = string.sub(slot, 14)
    end
  end
end
if gates and gates[3] ~= '' and not record.P then
  due = string.format('%.17g', due_of({r = gates[3], t = gates[5]}))
end
local since = record.A and string.format('%.0f', record.A) or ''
if record.B then
  local entry, prefix = read_lane(KEYS[SHARED + 2], record.L), string.char(#record.L) .. record.L
  local ahead = redis.call('ZLEXCOUNT', KEYS[SHARED + 3], '[' .. prefix, '(' .. record.B)
  return {since, present, stamp, used, holders, due, '', ahead + 1, 0, entry.head}
end
if record.s ~= 'queued' then
  return {since, present, stamp, used, holders, due, '', 0, 0, ''}
end
local cid = cohort_of(record)
local place, key, gate, before = 'r' .. record.c, record.k, '', 0
if cid then
  local cohort = cmsgpack.unpack(redis.call('HGET', COHORT, cid))
  place, key, gate = place_of(cohort), cohort.k, string.sub(cohort.w, 1, 1)
  before = redis.call('ZLEXCOUNT', Q, '[c' .. cid, '(c' .. cid .. record.k)
end
local list = place .. record.o
for _, item in ipairs(redis.call('ZRANGE', Q, '[' .. list, '(' .. list .. key, 'BYLEX', 'LIMIT', 0, 100)) do
  local member = string.sub(item, #list + 10)
  before = before + (string.sub(member, 1, 1) == '~' and size(Q, 'c' .. string.sub(member, 2)) or 1)
end
local seat = redis.call('HGET', SEAT, list)
local owners = redis.call('ZLEXCOUNT', RING, '[' .. place, '(' .. place .. seat)
return {since, present, stamp, used, holders, due, gate, before, owners, ''}
