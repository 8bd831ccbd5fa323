#!lua flags=allow-oom
-- Everything under `below` is over.
--
-- KEYS  1  the source's hash, 2  the address's hash, 3  its board
-- ARGV  1..3  token, below, seconds to live
--       4..   positions that go from the board
-- reply    1 done, 0 refused: the token is another one
if redis.call('HGET', KEYS[1], 'token') ~= ARGV[1] then
  return 0
end
redis.call('HSET', KEYS[2], 'below', ARGV[2])
for from = 4, #ARGV, 4000 do
  redis.call('HDEL', KEYS[3], unpack(ARGV, from, math.min(from + 3999, #ARGV)))
end
redis.call('EXPIRE', KEYS[2], ARGV[3])
redis.call('EXPIRE', KEYS[3], ARGV[3])
return 1
