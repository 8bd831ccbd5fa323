-- Messages to runs, and their end; put behind queue.lua in every script.

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
