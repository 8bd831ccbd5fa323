#!lua flags=allow-oom
-- Whether lanes are home again: nothing of theirs is in the store any more, and their next record may run from its source.
--
-- KEYS  1  the source's hash, 2  the address's lanes, 3  the shard's unfinished runs
-- ARGV  1  token
--       2..   of each: lane, position of its next record
-- reply    'taken' (that record is in the store, or done), 'away' or 'home' of each; {'lost'} if the token is another one
--
-- Keeps: the floor is looked at before the head, so that an answer that was lost is given again.
local stored = redis.call('HMGET', KEYS[1], 'token', 'below')
if stored[1] ~= ARGV[1] then
  return {'lost'}
end
local answers = {}
for place = 2, #ARGV, 2 do
  local position = tonumber(ARGV[place + 1])
  local floor, head = string.match(redis.call('HGET', KEYS[2], ARGV[place]) or '', '^(-?%d+) (.+)$')
  if position < tonumber(stored[2] or '0') or (floor and position <= tonumber(floor)) then
    answers[#answers + 1] = 'taken'
  elseif head and redis.call('HEXISTS', KEYS[3], head) == 1 then
    answers[#answers + 1] = 'away'
  else
    answers[#answers + 1] = 'home'
  end
end
return answers
