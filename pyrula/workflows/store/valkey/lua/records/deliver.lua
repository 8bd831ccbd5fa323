#!lua
-- Puts a message into the inbox of a record's run, and tells its source's holder. Without a message: has the run's end
-- written down.
--
-- KEYS  1  the address's hash, 2  its board
--       3..8  the run's hash, events, inbox, ids of messages met, when they were consumed, interrupts and children
--       9  the address's lanes
-- ARGV  1..4  channel, id, position, incarnation
--       5..8  kind ('' for none), id, name, payload of the message
--       9..11 most unread messages, most runs on the board, seconds to live
--       12    event of a cancel's request
-- reply    {'elsewhere'} for a run that was handed over, else {verdict, status, '' or an update's answer, open interrupts}, verdict one of ok, dup, finished, waiting (not
--          on this interrupt), full, crowded, missing
--
-- Keeps: one message of an id; one resume of an interrupt.
local stream, board, hash, events, inbox, met, consumed, extras, lanes = unpack(KEYS)
local channel, id, position, incarnation = arg(), arg(), arg(), arg()
local kind, message, name, payload = arg(), arg(), arg(), arg()
local most, crowd, ttl, event = count(), count(), arg(), arg()
local about = redis.call('HMGET', stream, 'name', 'version', 'metadata', 'worker', 'incarnation', 'below')
if elsewhere(hash, board, lanes, position, about[6]) then
  return {'elsewhere'}
end
local state = load(hash, board, position, about[6])
local function answer(verdict, applied, open)
  return {verdict, state.s, applied or '', open or {}}
end
if not state then
  if about[5] ~= incarnation or tonumber(position) < tonumber(about[6]) or redis.call('HEXISTS', hash, 'gone') == 1 then
    return {'missing'}
  end
  if kind == 'resume' then
    return {'waiting', 'queued', '', {}}
  end
  if redis.call('HLEN', board) >= crowd then
    return {'crowded', 'queued'}
  end
  state = begin({hash, events, inbox, met, consumed, extras}, about)
end
local ended = ENDED[state.s]
local function put()
  if kind ~= '' then
    state.q = state.q + 1
    redis.call('HSET', inbox, state.q, cmsgpack.pack({kind, message, name, payload, now()}))
  end
  notify(channel, stream, board, about[4] or '', id, position, state)
  save(hash, state)
  for place = 2, 8 do
    redis.call('EXPIRE', KEYS[place], ttl)
  end
  return answer('ok')
end
if kind == '' then
  return ended and answer('finished') or put()
end
if kind == 'cancel' then
  if ended or state.x then
    return answer(state.x and 'dup' or 'ok')
  end
  state.x = true
  redis.call('RPUSH', events, event)
  return put()
end
local known = redis.call('HGET', met, kind .. ':' .. message)
if known and string.sub(known, 1, 1) == 'r' then
  known = false
end
if known and (known ~= '' or kind ~= 'update' or not ended) then
  return answer('dup', known)
end
if kind == 'resume' then
  local open = {}
  if not ended then
    for _, field in ipairs(redis.call('HKEYS', extras)) do
      if string.sub(field, 1, 1) == 'w' then
        open[#open + 1] = string.sub(field, 2)
      end
    end
  end
  if name == '' and #open == 1 then
    name = open[1]
  elseif name == '' or ended or redis.call('HEXISTS', extras, 'w' .. name) == 0 then
    return answer('waiting', '', open)
  end
elseif ended then
  return answer('finished')
end
if kind == 'pause' then
  if state.s == 'paused' then
    return answer('dup')
  end
  for _, found in ipairs(unread(inbox, state, 0)) do
    if found[2] == 'pause' then
      return answer('dup')
    end
  end
  return put()
end
if kind ~= 'child' and redis.call('HLEN', inbox) >= most then
  return answer('full')
end
if kind == 'resume' then
  redis.call('HDEL', extras, 'w' .. name)
end
redis.call('HSET', met, kind .. ':' .. message, '')
redis.call('ZREM', consumed, kind .. ':' .. message)
return put()
