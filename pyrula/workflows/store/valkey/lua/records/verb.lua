#!lua
-- unpause, retry: a record's run that is held goes on; a pause that wasn't read is taken back.
--
-- KEYS  1  the address's hash, 2  its board, 3  the run's hash, 4  its events, 5  its inbox, 6  the address's lanes
-- ARGV  1..4  channel, id, position, verb
--       5, 6  number of this call, event
-- reply    {verdict, status}, verdict one of ok, refused, missing, elsewhere (handed over)
--
-- Keeps: a call sent twice (same number) is answered twice, done once.
local stream, board, hash, events, inbox, lanes = unpack(KEYS)
local channel, id, position, verb, call, event = arg(), arg(), arg(), arg(), arg(), arg()
local below = redis.call('HGET', stream, 'below')
if elsewhere(hash, board, lanes, position, below) then
  return {'elsewhere'}
end
local state = load(hash, board, position, below)
if not state then
  return {'missing'}
end
if state.b == call then
  return {'ok', state.s}
end
local dropped = false
if verb == 'unpause' and not ENDED[state.s] then
  for _, message in ipairs(unread(inbox, state, 0)) do
    if message[2] == 'pause' then
      redis.call('HDEL', inbox, message[1])
      dropped = true
    end
  end
end
if state.s ~= 'paused' and not dropped then
  return {'refused', state.s}
end
state.b = call
if state.s == 'paused' then
  state.s, state.u = 'queued', state.u + 1
  redis.call('HSET', hash, 'error', '')
  redis.call('RPUSH', events, event)
end
notify(channel, stream, board, redis.call('HGET', stream, 'worker') or '', id, position, state)
save(hash, state)
changed(channel, id)
return {'ok', state.s}
