#!lua flags=allow-oom
-- Moves `below` back: someone reset the positions, or the log is another one.
--
-- KEYS  1  the source's hash
--       2..n  all of the journal's buckets if the log is another one, else none
-- ARGV  1  token
--       2  below
--       3  '1' if the log is another one
--       4  seconds to live
-- reply    1 lowered, 0 refused: the token is another one
--
-- Keeps: without '1', `below` only moves back and the rows stay; with it nothing of the old log stays.
if redis.call('HGET', KEYS[1], 'token') ~= ARGV[1] then
  return 0
end
if ARGV[3] == '1' then
  for index = 2, #KEYS do
    redis.call('UNLINK', KEYS[index])
  end
  for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
    if string.match(field, '^b%d+$') then
      redis.call('HDEL', KEYS[1], field)
    end
  end
  redis.call('HDEL', KEYS[1], 'high', 'log', 'swept')
  redis.call('HSET', KEYS[1], 'below', ARGV[2])
else
  local before = redis.call('HGET', KEYS[1], 'below')
  if before and tonumber(ARGV[2]) < tonumber(before) then
    redis.call('HSET', KEYS[1], 'below', ARGV[2])
    redis.call('HDEL', KEYS[1], 'swept')
  end
end
redis.call('EXPIRE', KEYS[1], ARGV[4])
return 1
