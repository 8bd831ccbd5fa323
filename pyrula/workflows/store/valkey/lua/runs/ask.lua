#!lua
-- Puts a question to a run where a worker of its class finds it.
--
-- KEYS  own: 1 the run's hash
-- ARGV  2, 3  id of the chain, link
--       4..7  id, name, payload of the question, microseconds that it stays
-- reply    1, or 0 if there is no such run
local id, link, question, name, payload, stay = arg(), count(), arg(), arg(), arg(), count()
local record = load(id, KEYS[SHARED + 1])
if not record or link > record.l then
  return 0
end
redis.call('ZADD', ASK, 0, record.c .. question)
redis.call('HSET', ASKED, question, cmsgpack.pack({id, record.l, name, payload, now() + stay}))
for _, key in ipairs({ASK, ASKED}) do
  redis.call('EXPIRE', key, 3600)
end
redis.call('PUBLISH', CHANNEL .. ':ready', '')
return 1
