#!lua
-- Takes the run of a record over from its source's holder: from now on it is a run like those that were submitted, and the
-- record is complete. Behind the libraries of submitted runs (record_scripts.py).
--
-- KEYS  own: 1 the source's hash, 2 the journal's bucket, 3 the address's board, 4 its lanes, 5 its idle lanes
--       6..12 the run's hash, journal, events, inbox, ids of messages met, when they were consumed, interrupts and children
-- ARGV  2, 3  id, token
--       4, 5  position, lane ('' for none)
--       6..10 class, owner, digest of the name, version, attempt
--       11    what the run is executed from
--       12    number of the last message that the holder has
--       13    '', or what it failed with: then it is paused, and waits for a retry or a cancel
--       14..  event; status; and counted: waits (kind, name, deadline in microseconds or ''), rows (index, data)
-- reply    {'taken'}, {'ok', messages} if one of them wakes the run, {'away'} if the lane has another head or the id is a
--          run's of a former log, {'lost'}
--
-- Keeps: what is at or under a lane's floor, or was handed over, is in the store or done, and never taken again. The floor,
-- the run and the end of its rows in the source's journal are one step.
local id, token, position, lane = arg(), arg(), arg(), arg()
local class, owner, workflow, version, attempt, params, seen = arg(), arg(), arg(), arg(), count(), arg(), count()
local failure, event, status = arg(), arg(), arg()
local source, bucket, board, lanes, idle = unpack(KEYS, SHARED + 1, SHARED + 5)
local hash, journal, events, inbox = unpack(KEYS, SHARED + 6, SHARED + 9)
local stored = redis.call('HMGET', source, 'token', 'below')
if stored[1] ~= token then
  return {'lost'}
end
if tonumber(position) < tonumber(stored[2] or '0') or redis.call('HGET', board, position) == '-2' then
  return {'taken'}
end
local entry
if lane ~= '' then
  entry = read_lane(lanes, lane)
  if tonumber(position) <= entry.floor then
    return {'taken'}
  end
  if entry.head ~= '-' then
    return {'away'}
  end
end
if redis.call('HEXISTS', RUN, id) == 1 then
  return {'away'}
end
local state = cmsgpack.unpack(redis.call('HGET', hash, 'here'))
local waits, due = {}, nil
for place = 1, count() do
  local kind, name, deadline = arg(), arg(), arg()
  waits[place] = {kind, name, deadline}
  if deadline ~= '' and (not due or tonumber(deadline) < tonumber(due)) then
    due = deadline
  end
end
local order = redis.call('HINCRBY', META, 'submit', 1)
local record = {
  s = status, c = class, o = owner, k = struct.pack('>BI8', 128, order), l = 1, e = 1, n = 0, a = attempt, d = 0,
  q = state.q, m = workflow, v = version, x = state.x, p = waits, A = now(), L = lane
}
if failure ~= '' then
  record.F, record.p = true, nil
end
local found, met = unread(inbox, record, seen, function(kind, name)
  if failure ~= '' then
    return kind == 'cancel'
  end
  return wakes(waits, kind, name)
end)
if met then
  return {'ok', found}
end
local rows = take(2 * count())
redis.call('UNLINK', journal)
in_pieces('HSET', journal, rows)
for place = 1, #rows, 2 do
  redis.call('HDEL', bucket, position .. '.' .. rows[place])
end
redis.call('RPUSH', events, event)
redis.call('HSET', hash, 'owner', '', 'params', params, 'digest', '', 'handed', lane)
redis.call('HDEL', hash, 'here', 'error')
if failure ~= '' then
  redis.call('HSET', hash, 'error', failure)
end
for place = SHARED + 4, #KEYS do
  redis.call('PERSIST', KEYS[place])
end
redis.call('HSET', board, position, -2)
if entry then
  entry.floor, entry.head = tonumber(position), id
  write_lane(lanes, lane, entry)
  redis.call('ZREM', idle, lane)
end
if due and tonumber(due) <= now() then
  enqueue(id, record)
  return {'taken'}
end
if due then
  redis.call('ZADD', TIMER, due, id)
end
save(id, record)
changed(id)
return {'taken'}
