#!lua flags=allow-oom
-- Everything under `below` is over. Lanes that are home and have their floor there are forgotten.
--
-- KEYS  1  the source's hash, 2  the address's hash, 3  its board, 4  its lanes, 5  the shard's unfinished runs
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
local lanes, away = redis.call('HGETALL', KEYS[4]), false
for place = 1, #lanes, 2 do
  local floor, head = string.match(lanes[place + 1], '^(-?%d+) (.+)$')
  if redis.call('HEXISTS', KEYS[5], head) == 1 then
    away = true
  elseif tonumber(floor) < tonumber(ARGV[2]) then
    redis.call('HDEL', KEYS[4], lanes[place])
  end
end
if not away then
  redis.call('EXPIRE', KEYS[4], ARGV[3])
end
return 1
