#!lua
-- Takes a source over: raises its token, so that every earlier holder is refused from here on.
--
-- KEYS  1  the source's hash
-- ARGV  1  generation
--       2  the token this claim replaces, as it is stored, or ''
--       3  claimant: the process (one store object) that claims
--       4  id of this claim, new for every claim
--       5  seconds to live
-- reply    {'ok', the source's hash flat} or {'stale', the stored token}
--
-- Keeps: the pair (token, claimant) never returns. A generation that is lower than the stored one, or the same one
-- but another process's, is refused unless the caller names the token it replaces; then the incarnation grows. A
-- claim sent twice (same id) changes nothing the second time. A holder that did not release counts as a crash,
-- unless it is the claimant itself.
local key, generation, claimant = KEYS[1], tonumber(ARGV[1]), ARGV[3]
local stored = redis.call('HMGET', key, 'token', 'claimant', 'claim', 'held')
local token, died = '1.' .. ARGV[1], '0'
if stored[1] then
  if stored[3] == ARGV[4] then
    return {'ok', redis.call('HGETALL', key)}
  end
  local dot = string.find(stored[1], '.', 1, true)
  local incarnation = string.sub(stored[1], 1, dot - 1)
  local before = tonumber(string.sub(stored[1], dot + 1))
  if ARGV[2] == stored[1] then
    incarnation = string.format('%d', tonumber(incarnation) + 1)
  elseif generation < before or (generation == before and stored[2] ~= claimant) then
    return {'stale', stored[1]}
  end
  token = incarnation .. '.' .. ARGV[1]
  if stored[2] ~= claimant and stored[4] == '1' then
    redis.call('HINCRBY', key, 'crashes', 1)
    died = '1'
  end
end
redis.call('HSET', key, 'token', token, 'claimant', claimant, 'claim', ARGV[4], 'held', '1', 'died', died)
redis.call('EXPIRE', key, ARGV[5])
return {'ok', redis.call('HGETALL', key)}
