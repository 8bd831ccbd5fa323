#!lua
-- Tells the entry of an idempotency key of a run on another shard that the run is there, and how long the entry is to live.
--
-- KEYS  own: 1 the entry
-- ARGV  2  id of the run
--       3  number of this word of the run's
--       4  seconds to live; '' for as long as the run
--
-- Keeps: a word that comes late, after a later one, changes nothing.
local id, number, seconds = arg(), count(), arg()
local entry = redis.call('GET', KEYS[SHARED + 1])
local found, digest, last = string.match(entry or '', '^(%S+) (%S+) (-?%d+)')
if found ~= id or number <= tonumber(last) then
  return
end
redis.call('SET', KEYS[SHARED + 1], id .. ' ' .. digest .. ' ' .. number)
if seconds ~= '' then
  redis.call('EXPIRE', KEYS[SHARED + 1], seconds)
end
