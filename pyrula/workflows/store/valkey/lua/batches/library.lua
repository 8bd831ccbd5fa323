-- What the scripts of triggers share; put between the first line and the rest of each (run_batches.py), as far as it is
-- needed there, with the clock that the scripts of runs have: now().
--
-- KEYS  1 the shard's counters, 2 its open batches, 3 the events of this one, 4 the sealed batches of this workflow,
--       key and owner, 5 when there is something to take, of this workflow, 6.. what the script names itself
-- ARGV  1 digest of workflow, key and owner
--       2 microseconds for which a sealed batch is its taker's
--
-- An open batch is a packed table: i id, k the key's JSON, n events, b bytes of them, o when it was opened, d when it is
-- due, w window, m most events if it is a Collect, x longest wait if it has one, u owner if it has one; times in
-- microseconds. A sealed one is {id, params, count, reason, opened, id of the event that filled it, plan, key's JSON,
-- owner if it has one}.
local META, OPEN, EVENTS, SEALED, DUE = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local DIGEST, LEASE = ARGV[1], tonumber(ARGV[2])

local function microseconds(moment)
  return string.format('%.0f', moment)
end

local function load()
  local packed = redis.call('HGET', OPEN, DIGEST)
  return packed and cmsgpack.unpack(packed)
end

local function seal(batch, reason, event)
  local params = '{"key":' .. batch.k .. ',"events":[' .. redis.call('GET', EVENTS) .. '],"count":' .. batch.n .. '}'
  redis.call('RPUSH', SEALED, cmsgpack.pack({batch.i, params, batch.n, reason, batch.o, event, '', batch.k, batch.u}))
  redis.call('DEL', EVENTS)
  redis.call('HDEL', OPEN, DIGEST)
  redis.call('ZREM', DUE, 'o' .. DIGEST)
  -- at once, unless somebody is at an earlier one
  redis.call('ZADD', DUE, 'NX', 0, 's' .. DIGEST)
end

local function seal_if_due(batch, present)
  if batch and batch.d <= present then
    seal(batch, batch.x and batch.d >= batch.o + batch.x and 'max_wait' or 'window', '')
    return nil
  end
  return batch
end

-- The first sealed batch, for who asks; false if there is none.
local function head(present)
  local packed = redis.call('LINDEX', SEALED, 0)
  if not packed then
    return false
  end
  redis.call('ZADD', DUE, microseconds(present + LEASE), 's' .. DIGEST)
  return cmsgpack.unpack(packed)
end
