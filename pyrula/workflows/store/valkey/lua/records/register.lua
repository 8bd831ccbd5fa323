#!lua
-- Makes the runs of a source's records reachable.
--
-- KEYS  1  the source's hash, 2  the address's hash, 3  its board, 4  its lanes, 5  its idle lanes, 6  the shard's unfinished
--       runs
-- ARGV  1  token
--       2..7  source in hexadecimal, name, version, worker, metadata, below
--       8  incarnation, 9  seconds to live, 10  what of the board is of records that are no more: nothing, ended or
--          everything; 11, 12  what the ids of its runs have before and behind the position
-- reply    the board, flat, or {'lost'} if the token is another one
--
-- Keeps: nobody but the source's holder is told of its runs.
if redis.call('HGET', KEYS[1], 'token') ~= arg() then
  return {'lost'}
end
local source, name, version, worker, metadata, below = arg(), arg(), arg(), arg(), arg(), arg()
local incarnation, ttl, over, first, last = arg(), arg(), arg(), arg(), arg()
if over == 'everything' or (redis.call('HGET', KEYS[2], 'incarnation') or incarnation) ~= incarnation then
  redis.call('UNLINK', KEYS[3])
elseif over == 'ended' then
  local board = redis.call('HGETALL', KEYS[3])
  for place = 1, #board, 2 do
    local gone = board[place + 1] == '-2' and redis.call('HEXISTS', KEYS[6], first .. board[place] .. last) == 0
    if gone or board[place + 1] == '-1' then
      redis.call('HDEL', KEYS[3], board[place])
    end
  end
end
if over ~= 'nothing' then
  for _, lane in ipairs(redis.call('ZRANGE', KEYS[5], 0, -1)) do
    redis.call('HDEL', KEYS[4], lane)
  end
  redis.call('UNLINK', KEYS[5])
end
if over == 'everything' then
  -- a lane that is away goes on, but its floor means nothing in another log
  local lanes = redis.call('HGETALL', KEYS[4])
  for place = 1, #lanes, 2 do
    local rest = string.match(lanes[place + 1], '^%S+( .*)$')
    if rest then
      redis.call('HSET', KEYS[4], lanes[place], '-1' .. rest)
    end
  end
end
redis.call(
  'HSET', KEYS[2], 'source', source, 'name', name, 'version', version, 'worker', worker, 'metadata', metadata,
  'below', below, 'incarnation', incarnation
)
redis.call('EXPIRE', KEYS[2], ttl)
redis.call('EXPIRE', KEYS[3], ttl)
return redis.call('HGETALL', KEYS[3])
