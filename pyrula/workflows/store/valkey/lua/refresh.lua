#!lua flags=allow-oom
-- Extends the life of a source's keys.
--
-- KEYS  1  the source's hash
--       2..n  the journal's buckets
-- ARGV  1  token
--       2  seconds to live
-- reply    1 extended, 0 refused: the token is another one
--
-- Keeps: a journal lives as long as the state that registers its buckets, also while its group is idle.
if redis.call('HGET', KEYS[1], 'token') ~= ARGV[1] then
  return 0
end
for index = 1, #KEYS do
  redis.call('EXPIRE', KEYS[index], ARGV[2])
end
return 1
