#!lua
-- What can be told of a record's run.
--
-- KEYS  1  the run's hash, 2  its inbox, 3  interrupts and children, 4  the address's hash, 5  its board, 6  its lanes
-- ARGV  1  'status', 'result', 'held' or 'detail'
--       2  for 'held': messages numbered above this
--       3, 4  incarnation, position
-- reply    {'elsewhere'} for a run that was handed over; {} if there can't be such a run; {''} if there may be one of which nothing is known; else {status}, for a
--          result of an ended run {status, value, error}, for a held one {status, how often it was to go on, messages,
--          extras}, for a detail {status, attempt, cancel asked for, waits, messages, extras, fields of the hash}
local what, seen, incarnation, position = arg(), count(), arg(), count()
local stored = redis.call('HMGET', KEYS[4], 'incarnation', 'below')
if elsewhere(KEYS[1], KEYS[5], KEYS[6], position, stored[2]) then
  return {'elsewhere'}
end
local state = load(KEYS[1], KEYS[5], position, stored[2])
if not state then
  local gone = redis.call('HEXISTS', KEYS[1], 'gone') == 1
  if gone or stored[1] ~= incarnation or position < tonumber(stored[2]) then
    return {}
  end
  return {''}
end
if what == 'held' then
  return {state.s, state.u, unread(KEYS[2], state, seen), redis.call('HGETALL', KEYS[3])}
end
if what == 'status' or (what == 'result' and not ENDED[state.s]) then
  return {state.s}
end
if what == 'result' then
  return {state.s, unpack(redis.call('HMGET', KEYS[1], 'value', 'error'))}
end
return {
  state.s, state.a, state.x and 1 or 0, state.p or {}, unread(KEYS[2], state, 0), redis.call('HGETALL', KEYS[3]),
  redis.call('HMGET', KEYS[1], 'name', 'version', 'metadata', 'created', 'finished', 'value', 'error')
}
