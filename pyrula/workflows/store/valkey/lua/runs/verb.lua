#!lua
-- unpause: a paused run goes back to the queue, a pause that wasn't read is taken back.
-- retry: a failed or cancelled run goes back to the queue, with its journal and inbox; so does, by either, one that is
-- paused since it failed.
--
-- KEYS  own: 1 the run's hash, 2 its journal, 3 its events, 4 its inbox, 5, 6, 7 as in change.lua, 8 the idempotency
--       key's entry if there is one
-- ARGV  2..6  id of the chain, link, verb, number of this call, event up to the attempt's number, the rest of it
-- reply    {verdict, status, live link}, verdict ok, refused, missing, or link (journal
--          and events are another link's: send again)
--
-- Keeps: a call sent twice (same number) is answered twice, done once.
local id, link, verb, call, event, rest = arg(), count(), arg(), arg(), arg(), arg()
local record, live = load(id, KEYS[SHARED + 1])
if not record or link > record.l then
  return {'missing'}
end
local function drop(kind)
  local dropped = false
  for _, message in ipairs((unread(KEYS[SHARED + 4], record, 0))) do
    if message[2] == kind then
      redis.call('HDEL', KEYS[SHARED + 4], message[1])
      dropped = true
    end
  end
  return dropped
end
local function answer(verdict)
  return {verdict, record.s, record.l}
end
if link < record.l then
  return answer('link')
end
if record.b == call then
  return answer('ok')
end
record.b = call
if record.s == 'paused' and record.F then
  record.F, record.z, record.y = nil, nil, nil
  record.t, record.a, record.d = true, record.a + 1, 0
  redis.call('HDEL', KEYS[SHARED + 1], 'error')
  redis.call('RPUSH', KEYS[SHARED + 3], verb == 'retry' and event .. record.a .. rest or event)
  enqueue(id, record)
  return answer('ok')
end
if verb == 'unpause' then
  local dropped = live and drop('pause')
  if record.s == 'paused' then
    redis.call('HDEL', KEYS[SHARED + 1], 'error')
    redis.call('RPUSH', KEYS[SHARED + 3], event)
    if record.B then
      record.s, record.A = 'queued', now()
      save(id, record)
      changed(id)
    else
      enqueue(id, record)
    end
    return answer('ok')
  end
  if dropped then
    save(id, record)
    return answer('ok')
  end
  return answer('refused')
end
if record.s ~= 'failed' and record.s ~= 'cancelled' then
  return answer('refused')
end
drop('cancel')
record.x, record.z, record.y, record.f = nil, nil, nil, nil
record.t, record.a, record.d = true, record.a + 1, 0
for place = SHARED + 1, #KEYS do
  redis.call('PERSIST', KEYS[place])
end
settle(id, record, KEYS[SHARED + 1], '')
list_again(record)
redis.call('HDEL', KEYS[SHARED + 1], 'rec', 'finished', 'error', 'value')
redis.call('RPUSH', KEYS[SHARED + 3], event .. record.a .. rest)
enqueue(id, record)
return answer('ok')
