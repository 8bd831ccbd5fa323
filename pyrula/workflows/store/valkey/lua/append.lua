#!lua
-- Writes the rows of one flush into a source's journal.
--
-- KEYS  1  the source's hash
--       2..n  the journal's buckets
-- ARGV  1  token
--       2  number of this sending: <sender>.<number>, a number that grows with every sending of that sender
--       3  high mark
--       4  witness, or '' to leave it
--       5  seconds to live
--       6  number of groups g
--       7..6+4g  per group, in order: place of its bucket in KEYS; bucket's number; number of rows to set, or minus the
--          number of rows to delete; bytes to set
--       then  per group: field, value, field, value... to set, or field, field... to delete
-- reply    1 written, 0 refused: the token is another one
--
-- Keeps: all rows or none, in the order given. A sending that arrives after a later one (its connection was slow and
-- it was sent again) changes nothing and is answered as written, since its rows went with the later copy. What the
-- server refuses for want of memory it refuses before the first write. Every bucket with rows is registered in the
-- source's hash (b<number>, bytes written since it was last swept); every key touched has a TTL.
local source = KEYS[1]
local stored = redis.call('HMGET', source, 'token', 'seq', 'high')
if stored[1] ~= ARGV[1] then
  return 0
end
if stored[2] then
  local sender, number = string.match(ARGV[2], '^(%w+)%.(%d+)$')
  local former, last = string.match(stored[2], '^(%w+)%.(%d+)$')
  if sender == former and tonumber(number) <= tonumber(last) then
    return 1
  end
end
redis.call('HSET', source, 'seq', ARGV[2])
if not stored[3] or tonumber(stored[3]) < tonumber(ARGV[3]) then
  redis.call('HSET', source, 'high', ARGV[3])
end
if ARGV[4] ~= '' then
  redis.call('HSET', source, 'log', ARGV[4])
end
local groups = tonumber(ARGV[6])
local at = 7 + 4 * groups
for group = 0, groups - 1 do
  local head = 7 + 4 * group
  local bucket, count = KEYS[tonumber(ARGV[head])], tonumber(ARGV[head + 2])
  local command, stop = 'HSET', at + 2 * count
  if count < 0 then
    command, stop = 'HDEL', at - count
  else
    redis.call('HINCRBY', source, 'b' .. ARGV[head + 1], ARGV[head + 3])
  end
  -- the interpreter's stack holds about 8,000 values
  while at < stop do
    local upto = math.min(at + 4000, stop)
    redis.call(command, bucket, unpack(ARGV, at, upto - 1))
    at = upto
  end
end
for index = 1, #KEYS do
  redis.call('EXPIRE', KEYS[index], ARGV[5])
end
return 1
