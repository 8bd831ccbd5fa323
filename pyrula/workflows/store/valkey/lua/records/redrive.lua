#!lua
-- Queues the run of a dead-lettered record once more: as a run that was handed over, but of no lane. Behind the library of
-- submitted runs (record_scripts.py).
--
-- KEYS  own: 1 the address's hash, 2 its board, 3 its lanes
--       4..10 the run's hash, journal, events, inbox, ids of messages met, when they were consumed, interrupts and children
-- ARGV  2..5  id, position, incarnation, number of this call
--       6..8  class, owner, digest of the workflow's name
--       9     '1' if its holder says that the record is complete
--       10, 11 event of one that goes on from a journal, of one that begins anew
--       12    what it is executed from, as its letter says, or ''
--       then counted: rows (index, data) as the letter says
-- reply    {verdict, status, 1 if it goes on from a journal}; verdict ok, refused, bare (failed, and its record isn't kept),
--          open (nothing is kept, and it isn't known that the record is complete), missing
--
-- Keeps: a call sent twice (same number) is answered twice, done once; a run that is at work or completed isn't redriven.
-- Its lane has another head since it ended, or none, so it isn't away because of it.
local id, position, incarnation, call = arg(), arg(), arg(), arg()
local class, owner, workflow, complete = arg(), arg(), arg(), arg()
local resumed, afresh, params = arg(), arg(), arg()
local rows = take(2 * count())
local stream, board, lanes, hash, journal, events, inbox = unpack(KEYS, SHARED + 1, SHARED + 7)
local about = redis.call('HMGET', stream, 'name', 'version', 'metadata', 'below', 'incarnation')
if not about[1] then
  return {'missing', ''}
end
local mine = about[5] == incarnation
local passed = not mine or tonumber(position) < tonumber(about[4])
local mark = redis.call('HGET', board, position)
local found = redis.call('HMGET', hash, 'handed', 'here', 'params', 'metadata')
local record, live = load(id, hash)
if live then
  return {record.b == call and 'ok' or 'refused', record.s, record.R and 1 or 0}
end
-- what isn't on the board at a position that is still open is of a former record of that position
if record and not passed and mark ~= '-2' and read_lane(lanes, found[1]).floor < tonumber(position) then
  record = nil
end
local state = not record and found[2] and cmsgpack.unpack(found[2])
if state and not passed and not mark then
  state = nil
end
local status = (record or state or {s = ''}).s
if status ~= '' and status ~= 'failed' and status ~= 'cancelled' then
  return {'refused', status}
end
if status == '' and (params == '' or not (passed or complete == '1')) then
  return {params == '' and 'missing' or 'open', status}
end
if status ~= '' and not found[3] and params == '' then
  return {'bare', status}
end
if not record then
  local order = redis.call('HINCRBY', META, 'submit', 1)
  record = {
    o = owner, k = struct.pack('>BI8', 128, order), l = 1, e = 1, n = 0, a = state and state.a or 0,
    q = state and state.q or 0, m = workflow, L = ''
  }
end
for _, message in ipairs((unread(inbox, record, 0))) do
  if message[2] == 'cancel' or message[2] == 'pause' then
    redis.call('HDEL', inbox, message[1])
  end
end
record.x, record.z, record.y, record.f, record.v = nil, nil, nil, nil, nil
record.c, record.t, record.a, record.d, record.b = class, true, record.a + 1, 0, call
if status == '' then
  redis.call('UNLINK', unpack(KEYS, SHARED + 4, #KEYS))
  redis.call('HSET', hash, 'name', about[1], 'version', about[2], 'created', string.format('%.0f', now()))
end
if redis.call('EXISTS', journal) == 0 then
  in_pieces('HSET', journal, rows)
end
local goes_on = redis.call('EXISTS', journal) == 1
record.R = goes_on or nil
local metadata = cjson.decode(status == '' and about[3] or found[4])
metadata.redrive = (metadata.redrive or 0) + 1
redis.call('HSET', hash, 'owner', '', 'digest', '', 'metadata', cjson.encode(metadata))
if status == '' or not found[1] then
  redis.call('HSET', hash, 'handed', '')
end
if status == '' or not found[3] then
  redis.call('HSET', hash, 'params', params)
end
redis.call('HDEL', hash, 'here', 'rec', 'finished', 'error', 'value', 'gone')
if mine and not passed then
  redis.call('HSET', board, position, -2)
  redis.call('HINCRBY', stream, 'news', 1)
end
redis.call('RPUSH', events, goes_on and resumed or afresh)
for place = SHARED + 4, #KEYS do
  redis.call('PERSIST', KEYS[place])
end
list_again(record)
enqueue(id, record)
return {'ok', record.s, goes_on and 1 or 0}
