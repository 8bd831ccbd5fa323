#!lua
-- Writes what the holder of a part has done.
--
-- KEYS  1 index, 2 the backfill, 3 its progress
-- ARGV  1 digest of its id, 2 seconds to live, 3 part, 4 worker, 5 token, 6 beat, 7 state, 8 problem or '',
--       9 '1' to let go of it, 10 progress
-- reply    the status after it, or '' if another take has replaced this one
--
-- Keeps: only the holder's saves count, in the order of their beats; one sent twice changes nothing. A part that isn't
-- open is held by nobody. With the last open part the backfill ends: failed if a part is stuck, with its problem.
local index, key = KEYS[1], KEYS[2]
local stored = redis.call('HMGET', key, 'status', 'h' .. ARGV[3])
if not stored[2] then
  return ''
end
local _, token, beat, worker = string.match(stored[2], '^(%a+) (%d+) (%d+) (.*)$')
if token ~= ARGV[5] or (worker ~= ARGV[4] and not (worker == '' and beat == ARGV[6])) then
  return ''
end
local status = stored[1]
if tonumber(ARGV[6]) > tonumber(beat) then
  local holder = (ARGV[9] == '1' or ARGV[7] ~= 'open') and '' or ARGV[4]
  redis.call('HSET', key, 'h' .. ARGV[3], ARGV[7] .. ' ' .. token .. ' ' .. ARGV[6] .. ' ' .. holder)
  redis.call('HSET', KEYS[3], ARGV[3], ARGV[10])
  if ARGV[8] ~= '' then
    redis.call('HSET', key, 'x' .. ARGV[3], ARGV[8])
  end
  if ARGV[7] ~= 'open' and (status == 'running' or status == 'paused') then
    local open, stuck = false, nil
    local fields = redis.call('HGETALL', key)
    for at = 1, #fields, 2 do
      local part = string.match(fields[at], '^h(%d+)$')
      if part then
        local state = string.match(fields[at + 1], '^%a+')
        open = open or state == 'open'
        if state == 'stuck' and (not stuck or tonumber(part) < tonumber(stuck)) then
          stuck = part
        end
      end
    end
    if not open then
      status = stuck and 'failed' or 'completed'
      local time = redis.call('TIME')
      redis.call('HSET', key, 'status', status, 'finished', time[1] .. string.format('%06d', tonumber(time[2])))
      if stuck then
        redis.call('HSET', key, 'problem', redis.call('HGET', key, 'x' .. stuck) or '')
      end
      redis.call('ZADD', index, 0, ARGV[1])
    end
  end
end
for at = 1, 3 do
  redis.call('EXPIRE', KEYS[at], ARGV[2])
end
return status
