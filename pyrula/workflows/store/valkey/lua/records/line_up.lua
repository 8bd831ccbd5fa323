#!lua
-- Takes records over that wait behind a head: each is a run from now on, queued in its lane, and its record is complete.
-- Behind the libraries of submitted runs (record_scripts.py).
--
-- KEYS  own: 1 the source's hash, 2 the address's board, 3 its lanes, 4 its queue
--       then of each record the seven keys of its run, as in hand_over.lua
-- ARGV  2     token
--       3..6  class, owner, digest of the name, version
--       7..9  name, metadata, event
--       10..12  most records and bytes behind a head, most bytes behind all heads
--       then  number of lanes, and of each: lane, number of records, and of each: id, position, what it is executed from
-- reply    of each lane {how many of its records are in the store or done, 'all', 'home' or 'full'}, or {'lost'}
--
-- Keeps: a lane's records are taken in order, up to the first that isn't; what is at or under its floor is in the store or
-- done, which is looked at first, so that an answer that was lost is given again. Nothing is put behind a head that is gone.
local token, class, owner, workflow, version = arg(), arg(), arg(), arg(), arg()
local name, metadata, event = arg(), arg(), arg()
local most_records, most_bytes, most_in_all = count(), count(), count()
local source, board, lanes, queue = unpack(KEYS, SHARED + 1, SHARED + 4)
local stored = redis.call('HMGET', source, 'token', 'below')
if stored[1] ~= token then
  return {'lost'}
end
local below, place = tonumber(stored[2] or '0'), SHARED + 5
local before = tonumber(redis.call('HGET', lanes, '#') or '0')
local in_all = before

-- What is known of the record's run so far; nil if that has ended while its record waited. What is there of a former
-- record of that position goes.
local function known(keys, position)
  if redis.call('EXISTS', keys[1]) == 0 then
    return {q = 0}
  end
  local packed = redis.call('HGET', keys[1], 'here')
  local state = packed and cmsgpack.unpack(packed)
  local counted = redis.call('HEXISTS', board, position) == 1
  if state and (state.s == 'completed' or state.s == 'failed' or state.s == 'cancelled') then
    if counted then
      return nil
    end
    state = nil
  end
  if not state then
    redis.call('UNLINK', unpack(keys))
    return {q = 0}
  end
  redis.call('HDEL', keys[1], 'here', 'error')
  redis.call('UNLINK', keys[2])
  for _, key in ipairs(keys) do
    redis.call('PERSIST', key)
  end
  if counted then
    redis.call('HSET', board, position, -2)
  end
  return state
end

local function begin(id, keys, state, params, lane)
  redis.call(
    'HSET', keys[1], 'name', name, 'version', version, 'metadata', metadata, 'created', string.format('%.0f', now()),
    'owner', '', 'params', params, 'digest', '', 'handed', lane
  )
  redis.call('RPUSH', keys[3], event)
  local key = struct.pack('>BI8', 128, redis.call('HINCRBY', META, 'submit', 1))
  local member = string.char(#lane) .. lane .. key .. struct.pack('>I4', #params) .. id
  redis.call('ZADD', queue, 0, member)
  save(id, {
    s = 'queued', c = class, o = owner, k = key, l = 1, e = 0, n = 0, a = 1, d = 0, q = state.q, m = workflow, v = version,
    x = state.x, A = now(), L = lane, B = member
  })
  if state.s then
    changed(id)
  end
end

local answers = {}
for number = 1, count() do
  local lane, amount = arg(), count()
  local entry, taken, stop, written = read_lane(lanes, lane), 0, nil, false
  for _ = 1, amount do
    local id, position, params = arg(), arg(), arg()
    if not stop and tonumber(position) >= below and tonumber(position) > entry.floor then
      local full = entry.queued >= most_records or entry.bytes + #params > most_bytes
      if entry.head == '-' and entry.queued == 0 then
        stop = 'home'
      elseif full or in_all + #params > most_in_all or redis.call('HEXISTS', RUN, id) == 1 then
        stop = 'full'
      else
        local keys = {unpack(KEYS, place, place + 6)}
        local state = known(keys, position)
        if state then
          begin(id, keys, state, params, lane)
          entry.queued, entry.bytes, in_all = entry.queued + 1, entry.bytes + #params, in_all + #params
        end
        entry.floor, written = tonumber(position), true
      end
    end
    if not stop then
      taken = taken + 1
    end
    place = place + 7
  end
  if written then
    write_lane(lanes, lane, entry)
  end
  answers[number] = {taken, stop or 'all'}
end
if in_all > before then
  redis.call('HSET', lanes, '#', in_all)
  redis.call('PERSIST', queue)
end
return answers
