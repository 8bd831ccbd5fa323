#!lua flags=allow-oom
-- Everything under `below` is over. Lanes that are home and have their floor there are forgotten.
--
-- KEYS  1  the source's hash, 2  the address's hash, 3  its board, 4  its lanes, 5  its idle lanes
-- ARGV  1..3  token, below, seconds to live
--       4..   positions that go from the board
-- reply    {1, lanes that were forgotten}; {0} if the token is another one
if redis.call('HGET', KEYS[1], 'token') ~= ARGV[1] then
  return {0}
end
redis.call('HSET', KEYS[2], 'below', ARGV[2])
for from = 4, #ARGV, 4000 do
  redis.call('HDEL', KEYS[3], unpack(ARGV, from, math.min(from + 3999, #ARGV)))
end
redis.call('EXPIRE', KEYS[2], ARGV[3])
redis.call('EXPIRE', KEYS[3], ARGV[3])
local gone = redis.call('ZRANGE', KEYS[5], '-inf', '(' .. ARGV[2], 'BYSCORE')
for from = 1, #gone, 4000 do
  local upto = math.min(from + 3999, #gone)
  redis.call('HDEL', KEYS[4], unpack(gone, from, upto))
  redis.call('ZREM', KEYS[5], unpack(gone, from, upto))
end
if redis.call('HLEN', KEYS[4]) == redis.call('ZCARD', KEYS[5]) then
  redis.call('EXPIRE', KEYS[4], ARGV[3])
  redis.call('EXPIRE', KEYS[5], ARGV[3])
end
return {1, gone}
