-- What the scripts of submitted runs share; put between the first line and the rest of each (run_scripts.py).
--
-- KEYS  the shard's structures, below, SHARED of them (run_scripts.py says how many), then `own`, those that the script
--       names itself: KEYS[SHARED + 1] on
-- ARGV  1      what channels begin with
--
-- A record (of a run that hasn't ended: in `run`, else in its hash's `rec`) is a packed table: s status, c class, o owner,
-- k sort key, l link, e epoch, w worker and its digest wd, n number of the last change, a attempt, d deaths, z run alone by
-- its holder, y died alone, t retried, x cancel asked for, q number of the last message, v version, p waits, h who left
-- it last, g who continued it last, f who ended it, b the last call of a verb; m, j, i, u, r as in listing.lua; G, P
-- as in queue.lua; A since when it has this status, N number of its last word to an idempotency key elsewhere; L, B, F as in
-- inbox.lua; R it was redriven and goes on from a journal.
local RUN, Q, RING, SEAT, OWN, TIMER, HELD = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local BEAT, META, OUT, ASK, ASKED, REPLY = KEYS[8], KEYS[9], KEYS[10], KEYS[11], KEYS[12], KEYS[13]
local COHORT, GIDX, OPEN, SLOT, RATE = KEYS[15], KEYS[16], KEYS[17], KEYS[18], KEYS[19]
local CHANNEL = ARGV[1]
local PARKED = {sleeping = true, signal_waiting = true, interrupt_waiting = true, child_waiting = true, retrying = true}
local WAKING = {update = true, resume = true, cancel = true, pause = true}

local at = 2
local function arg()
  at = at + 1
  return ARGV[at - 1]
end
local function count()
  return tonumber(arg())
end

-- The shard's time in microseconds. Where the server's clock was set back, by a failover or by hand, time goes on at half
-- its pace until the clock has caught up: it never goes back, nor stands still.
local moment
local function now()
  if moment then
    return moment
  end
  local time = redis.call('TIME')
  local present = tonumber(time[1]) * 1000000 + tonumber(time[2])
  local kept = redis.call('HMGET', META, 'now', 'clock')
  local last, clock = tonumber(kept[1] or '0'), tonumber(kept[2] or nil)
  moment = present
  if clock and present >= clock then
    moment = math.max(present, last + math.floor((present - clock) / 2))
  elseif present < last then
    moment = last
  end
  if moment > present then
    if not clock or present < clock or moment - last > 1000000 then
      redis.call('HSET', META, 'now', string.format('%.0f', moment), 'clock', string.format('%.0f', present))
    end
  elseif clock or present - last > 1000000 then
    redis.call('HSET', META, 'now', string.format('%.0f', present))
    if clock then
      redis.call('HDEL', META, 'clock')
    end
  end
  return moment
end

local function load(id, hash)
  local packed = redis.call('HGET', RUN, id)
  if packed then
    return cmsgpack.unpack(packed), true
  end
  packed = redis.call('HGET', hash, 'rec')
  if packed then
    return cmsgpack.unpack(packed), false
  end
end

local function save(id, record)
  list(id, record, now)
  redis.call('HSET', RUN, id, cmsgpack.pack(record))
end

local function run_id(id, record)
  return record.l == 1 and id or id .. '~' .. record.l
end

local function changed(id)
  redis.call('PUBLISH', CHANNEL .. ':r:' .. id, '')
end

local function holder(record)
  return record.w .. ' ' .. record.e
end

-- The record if it is this lease's; else nil.
local function held(id, hash, link, worker, epoch)
  local record, live = load(id, hash)
  if live and record.s == 'running' and record.w == worker and record.e == epoch and record.l == link then
    return record, live
  end
  return nil, live, record
end

local function in_pieces(command, key, values)
  -- the interpreter's stack holds about 8,000 values
  for from = 1, #values, 4000 do
    redis.call(command, key, unpack(values, from, math.min(from + 3999, #values)))
  end
end

local function take(amount)
  local values = {}
  for place = 1, amount do
    values[place] = arg()
  end
  return values
end
