#!lua
-- Puts a message into a run's inbox and wakes the run if it waits for that.
--
-- KEYS  own: 1 the run's hash, 2 its journal, 3 its events, 4 its inbox, 5 ids of messages met, 6 when they were
--       consumed, 7 interrupts and children, for a cancel then as in finish.lua
-- ARGV  2, 3  id of the chain, link
--       4..7  kind, id, name, payload of the message
--       8     most unread messages
--       9     retention in seconds
--       10, 11  for a cancel: event of the request, event of the end;  for a pause: event of the pause, ''
--       12    for a cancel: what the parent gets
-- reply    {verdict, status, live link, '' or an update's answer, open interrupts}, verdict one of ok, dup, finished,
--          waiting (not on this interrupt), full, missing, link (journal and events are another link's: send again)
--
-- Keeps: one message of an id; one resume of an interrupt. A cancel before the first claim is the end, and so is that of a
-- run that is paused since it failed: it has no body that could clean up.
local id, link = arg(), count()
local kind, message, name, payload = arg(), arg(), arg(), arg()
local most, retention, event, ended, result = count(), arg(), arg(), arg(), arg()
local hash, inbox, extras = KEYS[SHARED + 1], KEYS[SHARED + 4], KEYS[SHARED + 7]
local record, live = load(id, hash)
if not record or link > record.l then
  return {'missing'}
end
local function answer(verdict, applied, open)
  return {verdict, record.s, record.l, applied or '', open or {}}
end
if link < record.l and (kind == 'cancel' or kind == 'pause') then
  return answer('link')
end
if kind == 'cancel' then
  if not live or record.x then
    return answer(record.x and 'dup' or 'ok')
  end
  record.x = true
  if record.e > 0 and not record.F then
    redis.call('RPUSH', KEYS[SHARED + 3], event)
    put(id, record, inbox, kind, message, name, payload)
    return answer('ok')
  end
  if record.s == 'queued' and not record.B then
    dequeue(id, record)
  end
  record.F = nil
  redis.call('RPUSH', KEYS[SHARED + 3], ended)
  leave_lane(id, record)
  terminate(id, record, lasting(record), hash, extras, 'cancelled', 'null', '', result, retention)
  return answer('ok')
end
local met = kind .. ':' .. message
local known = redis.call('HGET', KEYS[SHARED + 5], met)
if known and string.sub(known, 1, 1) == 'r' then
  known = false
end
if known and (known ~= '' or kind ~= 'update' or live) then
  return answer('dup', known)
end
if kind == 'resume' then
  local open = {}
  if live then
    for _, field in ipairs(redis.call('HKEYS', extras)) do
      if string.sub(field, 1, 1) == 'w' then
        open[#open + 1] = string.sub(field, 2)
      end
    end
  end
  if name == '' and #open == 1 then
    name = open[1]
  elseif name == '' or not live or redis.call('HEXISTS', extras, 'w' .. name) == 0 then
    return answer('waiting', '', open)
  end
elseif not live then
  return answer('finished')
end
if kind == 'pause' then
  if record.s == 'running' then
    for _, found in ipairs((unread(inbox, record, 0))) do
      if found[2] == 'pause' then
        return answer('dup')
      end
    end
    put(id, record, inbox, kind, message, name, payload)
    return answer('ok')
  end
  if record.s == 'paused' then
    return answer('dup')
  end
  if record.s == 'queued' and not record.B then
    dequeue(id, record)
  end
  redis.call('ZREM', TIMER, id)
  record.s, record.p, record.A = 'paused', nil, now()
  redis.call('HSET', hash, 'error', payload)
  redis.call('RPUSH', KEYS[SHARED + 3], event)
  save(id, record)
  changed(id)
  return answer('ok')
end
if kind ~= 'child' and redis.call('HLEN', inbox) >= most then
  return answer('full')
end
if kind == 'resume' then
  redis.call('HDEL', extras, 'w' .. name)
end
redis.call('HSET', KEYS[SHARED + 5], met, '')
redis.call('ZREM', KEYS[SHARED + 6], met)
put(id, record, inbox, kind, message, name, payload)
return answer('ok')
