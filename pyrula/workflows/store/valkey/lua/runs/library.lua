-- What the scripts of submitted runs share; put between the first line and the rest of each (run_scripts.py).
--
-- KEYS  the shard's structures, below, SHARED of them (run_scripts.py says how many), then `own`, those that the script
--       names itself: KEYS[SHARED + 1] on
-- ARGV  1      what channels begin with
--
-- A record (of a run that hasn't ended: in `run`, else in its hash's `rec`) is a packed table: s status, c class, o owner,
-- k sort key, l link, e epoch, w worker and its digest wd, n number of the last change, a attempt, d deaths, z run alone by
-- its holder, y died alone, t retried, x cancel asked for, q number of the last message, v version, p waits, h who left
-- it last, g who continued it last, f who ended it, b the last call of a verb; m, j, i, u, r as in listing.lua.
local RUN, Q, RING, SEAT, OWN, TIMER, HELD = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local BEAT, META, OUT, ASK, ASKED, REPLY = KEYS[8], KEYS[9], KEYS[10], KEYS[11], KEYS[12], KEYS[13]
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

-- The shard's time in microseconds; a server's clock that is set back doesn't hold the timers up.
local function now()
  local time = redis.call('TIME')
  local present = tonumber(time[1]) * 1000000 + tonumber(time[2])
  local last = tonumber(redis.call('HGET', META, 'now') or '0')
  if present < last then
    return last
  end
  if present - last > 1000000 then
    redis.call('HSET', META, 'now', string.format('%.0f', present))
  end
  return present
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

-- The queue of ready runs: docs/formats-runs.md, "The queue".
local function served(owner)
  local packed = redis.call('HGET', OWN, owner)
  if packed then
    local seats, last = struct.unpack('>I4I8', packed)
    return seats, last
  end
  return 0, 0
end

local function set_served(owner, seats, last)
  if seats == 0 then
    redis.call('HDEL', OWN, owner)
  else
    redis.call('HSET', OWN, owner, struct.pack('>I4I8', seats, last))
  end
end

local function sit(place, class, owner, turn, since)
  local position = struct.pack('>I8I8', turn, since)
  redis.call('HSET', SEAT, place, position)
  redis.call('ZADD', RING, 0, class .. position .. owner)
end

local function stand_up(place, class, owner)
  redis.call('ZREM', RING, class .. redis.call('HGET', SEAT, place) .. owner)
  redis.call('HDEL', SEAT, place)
  local seats, last = served(owner)
  set_served(owner, seats - 1, last)
end

local function first(key, prefix)
  return redis.call('ZRANGE', key, '[' .. prefix, '(' .. prefix .. '\255', 'BYLEX', 'LIMIT', 0, 1)[1]
end

local function enqueue(id, record)
  record.s, record.w, record.wd, record.p = 'queued', nil, nil, nil
  local place = record.c .. record.o
  redis.call('ZADD', Q, 0, place .. record.k .. id)
  if redis.call('HEXISTS', SEAT, place) == 0 then
    local tick = redis.call('HINCRBY', META, 'tick', 1)
    sit(place, record.c, record.o, tick, tick)
    local seats, last = served(record.o)
    set_served(record.o, seats + 1, last)
  end
  save(id, record)
  changed(id)
  redis.call('PUBLISH', CHANNEL .. ':ready', '')
end

local function dequeue(id, record)
  local place = record.c .. record.o
  redis.call('ZREM', Q, place .. record.k .. id)
  if not first(Q, place) then
    stand_up(place, record.c, record.o)
  end
end

local function let_go(id, record)
  redis.call('ZREM', HELD, record.wd .. id)
  record.w, record.wd, record.z = nil, nil, nil
end

-- Queues up to 64 runs whose time has come. The time of the next timer, or ''.
local function advance()
  prune_list(64, now)
  local due = redis.call('ZRANGE', TIMER, '-inf', string.format('%.0f', now()), 'BYSCORE', 'LIMIT', 0, 64)
  for _, id in ipairs(due) do
    redis.call('ZREM', TIMER, id)
    local packed = redis.call('HGET', RUN, id)
    if packed then
      enqueue(id, cmsgpack.unpack(packed))
    end
  end
  return redis.call('ZRANGE', TIMER, 0, 0, 'WITHSCORES')[2] or ''
end

local function wakes(waits, kind, name)
  if WAKING[kind] then
    return true
  end
  for _, wait in ipairs(waits or {}) do
    if wait[1] == kind and wait[2] == name then
      return true
    end
  end
  return false
end

-- Messages numbered above `seen`, as {number, kind, id, name, payload, time}, up to 4 MiB; `any(kind, name)` is asked
-- of every one.
local function unread(inbox, record, seen, any)
  local found, numbers, size, met = {}, {}, 0, false
  if record.q <= seen then
    return found, met
  end
  if record.q - seen <= 100 then
    for number = seen + 1, record.q do
      numbers[#numbers + 1] = number
    end
  else
    for _, number in ipairs(redis.call('HKEYS', inbox)) do
      if tonumber(number) > seen then
        numbers[#numbers + 1] = tonumber(number)
      end
    end
    table.sort(numbers)
  end
  for _, number in ipairs(numbers) do
    local packed = redis.call('HGET', inbox, number)
    if packed then
      local message = cmsgpack.unpack(packed)
      met = met or (any and any(message[1], message[3]))
      if size < 4194304 then
        size = size + #packed
        found[#found + 1] = {number, message[1], message[2], message[3], message[4], message[5]}
      end
    end
  end
  return found, met
end

local function put(id, record, inbox, kind, message, name, payload)
  record.q = record.q + 1
  redis.call('HSET', inbox, record.q, cmsgpack.pack({kind, message, name, payload, now()}))
  if (PARKED[record.s] and wakes(record.p, kind, name)) or (record.s == 'paused' and kind == 'cancel') then
    redis.call('ZREM', TIMER, id)
    enqueue(id, record)
    return
  end
  save(id, record)
  if record.s == 'running' then
    redis.call('PUBLISH', CHANNEL .. ':w:' .. record.w, run_id(id, record))
  end
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

-- The run's last word. `keys` are all that live on for the retention.
local function terminate(id, record, keys, hash, extras, status, value, error, payload, retention)
  record.s, record.p = status, nil
  list_until(id, record, retention, now)
  redis.call('HDEL', RUN, id)
  redis.call(
    'HSET', hash, 'value', value, 'error', error, 'finished', string.format('%.0f', now()), 'rec', cmsgpack.pack(record)
  )
  local parent = redis.call('HMGET', hash, 'parent', 'wait')
  if parent[1] then
    redis.call('HSET', OUT, 'p' .. id, cmsgpack.pack({parent[1], 'child', id, parent[2], payload}))
  end
  local kept = redis.call('HGETALL', extras)
  for place = 1, #kept, 2 do
    if string.sub(kept[place], 1, 1) == 'c' then
      local child = string.sub(kept[place], 2)
      if kept[place + 1] == 'cancel' then
        redis.call('HSET', OUT, 'c' .. child, cmsgpack.pack({child, 'cancel', 'cancel', '', 'null'}))
      end
      redis.call('HDEL', extras, kept[place])
    end
  end
  for _, key in ipairs(keys) do
    redis.call('EXPIRE', key, retention)
  end
  changed(id)
end
