-- Messages to runs, and their end; put behind queue.lua in every script.
--
-- A script that ends the run of a record names, behind the run's seven keys, those of its lane: its partition's lanes, queue
-- and idle lanes. In a record: L the lane, '' for a record's run that has none; B its member of the queue while it is behind
-- a head, and so in no place of queue.lua; F it is paused since it failed.
local LANE_SECONDS = 2592000

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

-- A word to the entry of the run's idempotency key, if that is on another shard: how long to live, '' with the run.
local function settle(id, record, hash, seconds)
  local far = redis.call('HGET', hash, 'far')
  if far then
    record.N = (record.N or -1) + 1
    redis.call('HSET', OUT, 'i' .. id .. ':' .. record.N, cmsgpack.pack({far, 'entry', id, record.N, seconds}))
  end
end

-- A lane of records' runs (docs/formats-records.md): its floor, its head or '-', how many runs are queued behind the head
-- and their bytes.
local function read_lane(lanes, lane)
  local packed = redis.call('HGET', lanes, lane) or '-1 - 0 0'
  local floor, head, queued, bytes = string.match(packed, '^(%S+) (%S+) (%d+) (%d+)$')
  return {floor = tonumber(floor), head = head, queued = tonumber(queued), bytes = tonumber(bytes)}
end

local function write_lane(lanes, lane, entry)
  redis.call('HSET', lanes, lane, string.format('%.0f %s %d %d', entry.floor, entry.head, entry.queued, entry.bytes))
end

-- The run of a record ends, and its lane goes on: behind a head the next of the queue becomes the head, and ready unless it
-- is paused. None left: the lane is home, and idle until its floor is passed.
local function leave_lane(id, record)
  local lanes, queue, idle, lane = KEYS[SHARED + 8], KEYS[SHARED + 9], KEYS[SHARED + 10], record.L
  if not lane or lane == '' then
    return
  end
  local entry, prefix = read_lane(lanes, lane), string.char(#lane) .. lane
  local function unqueue(member)
    local bytes = struct.unpack('>I4', member, #prefix + 10)
    entry.queued, entry.bytes = entry.queued - 1, entry.bytes - bytes
    redis.call('ZREM', queue, member)
    if redis.call('HINCRBY', lanes, '#', -bytes) <= 0 then
      redis.call('HDEL', lanes, '#')
    end
  end
  if record.B then
    unqueue(record.B)
    record.B = nil
  elseif entry.head == id then
    local member = first(queue, prefix)
    entry.head = member and string.sub(member, #prefix + 14) or '-'
    if member then
      unqueue(member)
      local following = cmsgpack.unpack(redis.call('HGET', RUN, entry.head))
      following.B = nil
      if following.s == 'queued' then
        enqueue(entry.head, following)
      else
        save(entry.head, following)
      end
    else
      redis.call('ZADD', idle, entry.floor, lane)
    end
  else
    -- it goes beside the lane, since it was retried after its end
    return
  end
  write_lane(lanes, lane, entry)
  if redis.call('HLEN', lanes) == redis.call('ZCARD', idle) then
    redis.call('EXPIRE', lanes, LANE_SECONDS)
    redis.call('EXPIRE', idle, LANE_SECONDS)
  end
end

-- The script's own keys that live as long as the run.
local function lasting(record)
  return {unpack(KEYS, SHARED + 1, record.L and SHARED + 7 or #KEYS)}
end

-- The run's last word. `keys` are all that live on for the retention.
local function terminate(id, record, keys, hash, extras, status, value, error, payload, retention)
  record.s, record.p = status, nil
  settle(id, record, hash, retention)
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
