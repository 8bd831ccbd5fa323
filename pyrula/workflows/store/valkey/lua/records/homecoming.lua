#!lua flags=allow-oom
-- How lanes stand, and whether their next record may run from its source. Behind the libraries of submitted runs
-- (record_scripts.py).
--
-- KEYS  own: 1 the source's hash, 2 the address's lanes
-- ARGV  2     token
--       3..5  most records and bytes behind a head, most bytes behind all heads
--       6..   of each: lane, position of its next record
-- reply    of each an answer and the id of its head or '', flat; {'lost'} if the token is another one. The answers: 'taken'
--          (that record is in the store, or done), 'home' (nothing of the lane is in the store), and of a lane that is away
--          'full', 'busy' if its head is ready or runs, else 'open'
--
-- Keeps: the floor is looked at before the head, so that an answer that was lost is given again.
local token, most_records, most_bytes, most_in_all = arg(), count(), count(), count()
local source, lanes = KEYS[SHARED + 1], KEYS[SHARED + 2]
local stored = redis.call('HMGET', source, 'token', 'below')
if stored[1] ~= token then
  return {'lost'}
end
local answers, below = {}, tonumber(stored[2] or '0')
for place = 6, #ARGV, 2 do
  local position, entry = tonumber(ARGV[place + 1]), read_lane(lanes, ARGV[place])
  local answer = 'open'
  if position < below or position <= entry.floor then
    answer = 'taken'
  elseif entry.head == '-' and entry.queued == 0 then
    answer = 'home'
  elseif
    entry.queued >= most_records or entry.bytes >= most_bytes
    or tonumber(redis.call('HGET', lanes, '#') or '0') >= most_in_all
  then
    answer = 'full'
  else
    local status = cmsgpack.unpack(redis.call('HGET', RUN, entry.head)).s
    if status == 'running' or status == 'queued' then
      answer = 'busy'
    end
  end
  answers[#answers + 1] = answer
  answers[#answers + 1] = entry.head == '-' and '' or entry.head
end
return answers
