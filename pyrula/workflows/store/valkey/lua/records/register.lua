#!lua
-- Makes the runs of a source's records reachable.
--
-- KEYS  1  the source's hash, 2  the address's hash, 3  its board
-- ARGV  1  token
--       2..7  source in hexadecimal, name, version, worker, metadata, below
--       8  incarnation, 9  seconds to live, 10  what of the board is of records that are no more: nothing, ended or
--          everything
-- reply    the board, flat, or {'lost'} if the token is another one
--
-- Keeps: nobody but the source's holder is told of its runs.
if redis.call('HGET', KEYS[1], 'token') ~= arg() then
  return {'lost'}
end
local source, name, version, worker, metadata, below = arg(), arg(), arg(), arg(), arg(), arg()
local incarnation, ttl, over = arg(), arg(), arg()
if over == 'everything' or (redis.call('HGET', KEYS[2], 'incarnation') or incarnation) ~= incarnation then
  redis.call('UNLINK', KEYS[3])
elseif over == 'ended' then
  local board = redis.call('HGETALL', KEYS[3])
  for place = 1, #board, 2 do
    if board[place + 1] == '-1' then
      redis.call('HDEL', KEYS[3], board[place])
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
