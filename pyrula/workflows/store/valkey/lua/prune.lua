#!lua flags=allow-oom
-- Drops what an acknowledged commit has passed.
--
-- KEYS  1  the source's hash
--       2  the bucket that `below` falls into
--       3..n  buckets wholly under `below`
-- ARGV  1  token
--       2  below
--       3  witness, or '' to leave it
--       4  seconds to live
--       5  number of the bucket that `below` falls into
--       6..  numbers of the buckets in KEYS 3..n
-- reply    1 pruned (or already further), 0 refused: the token is another one
--
-- Keeps: `below` never moves back. Whole buckets go at once. In the bucket that `below` falls into, the fields under it
-- go when that is cheap (few fields) or worth it (256 positions or 1 MiB since the last time), never from a hash so
-- large that the walk would hold up the server. A `below` that moves on forgets the crashes.
local source, token, below = KEYS[1], ARGV[1], tonumber(ARGV[2])
local mark = 'b' .. ARGV[5]
local stored = redis.call('HMGET', source, 'token', 'below', 'swept', mark)
if stored[1] ~= token then
  return 0
end
local before = tonumber(stored[2] or '-1')
if below < before then
  return 1
end
if below > before then
  redis.call('HSET', source, 'below', ARGV[2])
  redis.call('HDEL', source, 'crashes')
end
if ARGV[3] ~= '' then
  redis.call('HSET', source, 'log', ARGV[3])
end
for index = 3, #KEYS do
  redis.call('UNLINK', KEYS[index])
  redis.call('HDEL', source, 'b' .. ARGV[index + 3])
end
redis.call('EXPIRE', source, ARGV[4])
if not stored[4] then
  return 1
end
local first = tonumber(ARGV[5]) * 1024
local swept = math.max(tonumber(stored[3] or '0'), first)
local size = redis.call('HLEN', KEYS[2])
if below <= swept or size > 20000 then
  return 1
end
if size > 256 and below - swept < 256 and tonumber(stored[4]) < 1048576 then
  return 1
end
local under = {}
for _, field in ipairs(redis.call('HKEYS', KEYS[2])) do
  if tonumber(string.match(field, '^%d+')) < below then
    under[#under + 1] = field
  end
end
for at = 1, #under, 4000 do
  redis.call('HDEL', KEYS[2], unpack(under, at, math.min(at + 3999, #under)))
end
if #under == size then
  redis.call('HDEL', source, mark, 'swept')
else
  redis.call('HSET', source, 'swept', ARGV[2], mark, '0')
end
return 1
