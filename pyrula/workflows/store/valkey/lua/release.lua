#!lua flags=allow-oom
-- Lets a source go cleanly.
--
-- KEYS  1  the source's hash
-- ARGV  1  token
--       2  seconds to live
-- reply    1 released, 0 refused: the token is another one
--
-- Keeps: the token stays, since it fences whoever comes with a lower generation; the next claim counts no crash.
if redis.call('HGET', KEYS[1], 'token') ~= ARGV[1] then
  return 0
end
redis.call('HSET', KEYS[1], 'held', '0')
redis.call('HDEL', KEYS[1], 'crashes')
redis.call('EXPIRE', KEYS[1], ARGV[2])
return 1
