-- What append, park, pause, release and finish share: reads a lease and a change off ARGV and writes the change.
--
-- KEYS  own: 1 the run's hash, 2 its journal, 3 its events, 4 its inbox, 5 ids of messages met, 6 when they were
--       consumed, 7 open interrupts ('w..') and children ('c..')
-- ARGV  2..5  id of the chain, link, worker, epoch
--       6     retention in seconds
--       then  a change: number ('' for none), and if there is one: seen, attempt or '', '1' if alone; each counted:
--             rows to set (index, data), rows to delete, message numbers consumed, updates applied (id, outcome's
--             letter and value), interrupts opened (id, payload) and closed, children (id, policy), events
--
-- Keeps: a change is written once, by its number; numbers have no gap.
local HASH, JOURNAL, EVENTS, INBOX = KEYS[SHARED + 1], KEYS[SHARED + 2], KEYS[SHARED + 3], KEYS[SHARED + 4]
local MET, CONSUMED, EXTRAS = KEYS[SHARED + 5], KEYS[SHARED + 6], KEYS[SHARED + 7]
local ID, LINK, WORKER, EPOCH = arg(), count(), arg(), count()
local RETENTION = arg()
local LEASE = WORKER .. ' ' .. EPOCH

local function consume(record, numbers)
  local present = now() / 1000000
  for _, number in ipairs(numbers) do
    local packed = redis.call('HGET', INBOX, number)
    if packed then
      local message = cmsgpack.unpack(packed)
      local met = message[1] .. ':' .. message[2]
      if message[1] == 'child' then
        redis.call('HDEL', EXTRAS, 'c' .. message[2])
      end
      if redis.call('HEXISTS', MET, met) == 1 then
        redis.call('ZADD', CONSUMED, string.format('%.0f', present), met)
      end
      redis.call('HDEL', INBOX, number)
    end
  end
  local old = redis.call(
    'ZRANGE', CONSUMED, '-inf', string.format('%.0f', present - tonumber(RETENTION)), 'BYSCORE', 'LIMIT', 0, 64
  )
  for _, met in ipairs(old) do
    redis.call('HDEL', MET, met)
    redis.call('ZREM', CONSUMED, met)
  end
end

-- Reads the change and writes it unless it was. Gives `seen`, and false if a change before it is missing.
local function write(record)
  local number = arg()
  if number == '' then
    return 0, true
  end
  number = tonumber(number)
  local seen, attempt, alone = count(), arg(), arg()
  local set = take(2 * count())
  local deleted = take(count())
  local consumed = take(count())
  local applied = take(2 * count())
  local opened = take(2 * count())
  local closed = take(count())
  local children = take(2 * count())
  local events = take(count())
  if number <= record.n then
    return seen, true
  end
  if number ~= record.n + 1 then
    return seen, false
  end
  record.n, record.t = number, nil
  if #set > 0 or #deleted > 0 then
    record.d = 0
  end
  in_pieces('HSET', JOURNAL, set)
  in_pieces('HDEL', JOURNAL, deleted)
  if #consumed > 0 then
    consume(record, consumed)
  end
  for place = 1, #applied, 2 do
    local met = 'update:' .. applied[place]
    redis.call('HSET', MET, met, applied[place + 1])
    redis.call('ZADD', CONSUMED, string.format('%.0f', now() / 1000000), met)
  end
  for place = 1, #opened, 2 do
    redis.call('HSET', EXTRAS, 'w' .. opened[place], opened[place + 1])
  end
  for _, wait in ipairs(closed) do
    redis.call('HDEL', EXTRAS, 'w' .. wait)
  end
  for place = 1, #children, 2 do
    redis.call('HSETNX', EXTRAS, 'c' .. children[place], children[place + 1])
  end
  if #applied > 0 or #opened > 0 then
    changed(ID)
  end
  in_pieces('RPUSH', EVENTS, events)
  if attempt ~= '' then
    record.a = tonumber(attempt)
  end
  if alone == '1' then
    record.z = true
  end
  return seen, true
end

-- The record goes out of its holder's hands.
local function leave(record)
  record.h, record.A = LEASE, now()
  let_go(ID, record)
end
