#!lua flags=allow-oom
-- What can be told of a run.
--
-- KEYS  own: 1 the run's hash, 2 its inbox, 3 interrupts and children
-- ARGV  2, 3  id of the chain, link
--       4     'status', 'result' or 'detail'
-- reply    {} if there is none; else {status, live link}, and for a result of an ended run {.., value, error}; for a detail
--          {.., value, error, attempt, deaths, worker, 1 if cancel was asked for, version, waits, unread messages, extras,
--          the hash}
local id, link, what = arg(), count(), arg()
local record, live = load(id, KEYS[SHARED + 1])
if not record or link > record.l then
  return {}
end
if what == 'status' or (what == 'result' and live) then
  return {record.s, record.l}
end
local ends = redis.call('HMGET', KEYS[SHARED + 1], 'value', 'error')
local value, error = ends[1] or 'null', ends[2] or ''
if live and record.s ~= 'paused' then
  error = ''
end
if what == 'result' then
  return {record.s, record.l, value, error}
end
return {
  record.s, record.l, value, error, record.a, record.d, record.w or '', record.x and 1 or 0, record.v or '',
  record.p or {}, (unread(KEYS[SHARED + 2], record, 0)), redis.call('HGETALL', KEYS[SHARED + 3]),
  redis.call('HMGET', KEYS[SHARED + 1], 'name', 'owner', 'metadata', 'params', 'created', 'finished', 'parent', 'wait')
}
