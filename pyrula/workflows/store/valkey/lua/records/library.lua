-- What the scripts about runs of records share; put between the first line and the rest of each (record_scripts.py).
--
-- The state of a run (field `here` of its hash) is a packed table: s status, q number of the last message, c what clients
-- did to it, u how often it was to go on, x cancel asked for, h holder of the last change and n its number, a attempt,
-- p waits. A hash with the field `gone` is of a run that isn't found any more.
local ENDED = {completed = true, failed = true, cancelled = true}

local at = 0
local function arg()
  at = at + 1
  return ARGV[at]
end
local function count()
  return tonumber(arg())
end
local function take(amount)
  local values = {}
  for place = 1, amount do
    values[place] = arg()
  end
  return values
end

local function now()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000000 + tonumber(time[2])
end

-- Nothing, if what is there is about a former record of that position: one that ended is on the board until it is
-- passed.
local function load(hash, board, position, below)
  local packed = redis.call('HGET', hash, 'here')
  local state = packed and cmsgpack.unpack(packed)
  if state and ENDED[state.s] and tonumber(position) >= tonumber(below or 0) then
    if redis.call('HEXISTS', board, position) == 0 then
      return nil
    end
  end
  return state
end

local function save(hash, state)
  redis.call('HSET', hash, 'here', cmsgpack.pack(state))
end

-- A run of which nothing was known until now. `keys` are its own, the hash first; `about` is what its source was registered with: name, version, metadata.
local function begin(keys, about)
  local hash = keys[1]
  redis.call('UNLINK', unpack(keys))
  redis.call(
    'HSET', hash, 'name', about[1], 'version', about[2], 'metadata', about[3], 'created', string.format('%.0f', now())
  )
  return {s = 'queued', q = 0, c = 0, u = 0, h = '', n = 0, a = 1}
end

-- Whether the run was handed over: then the scripts of submitted runs know of it. One that ended may be of a former record
-- of that position, as with `load`, unless its lane's floor says that it is of this one.
local function elsewhere(hash, board, lanes, position, below)
  local found = redis.call('HMGET', hash, 'handed', 'rec')
  if not found[1] or not found[2] then
    return found[1]
  end
  if tonumber(position) < tonumber(below or 0) or redis.call('HGET', board, position) == '-2' then
    return true
  end
  local floor = found[1] ~= '' and string.match(redis.call('HGET', lanes, found[1]) or '', '^%S+')
  return floor and tonumber(position) <= tonumber(floor)
end

-- Messages numbered above `seen`, as {number, kind, id, name, payload, time}, up to 4 MiB.
local function unread(inbox, state, seen)
  local found, numbers, size = {}, {}, 0
  if state.q <= seen then
    return found
  end
  for _, number in ipairs(redis.call('HKEYS', inbox)) do
    if tonumber(number) > seen then
      numbers[#numbers + 1] = tonumber(number)
    end
  end
  table.sort(numbers)
  for _, number in ipairs(numbers) do
    local packed = redis.call('HGET', inbox, number)
    if size < 4194304 then
      local message = cmsgpack.unpack(packed)
      size = size + #packed
      found[#found + 1] = {number, message[1], message[2], message[3], message[4], message[5]}
    end
  end
  return found
end

local function in_pieces(command, key, values)
  -- the interpreter's stack holds about 8,000 values
  for from = 1, #values, 4000 do
    redis.call(command, key, unpack(values, from, math.min(from + 3999, #values)))
  end
end

local function changed(channel, id)
  redis.call('PUBLISH', channel .. ':r:' .. id, '')
end

-- A client has done something to the run: its holder is to look.
local function notify(channel, stream, board, worker, id, position, state)
  state.c = state.c + 1
  redis.call('HSET', board, position, state.c)
  redis.call('HINCRBY', stream, 'news', 1)
  redis.call('PUBLISH', channel .. ':w:' .. worker, id)
end
