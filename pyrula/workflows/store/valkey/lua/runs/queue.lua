-- The queue: runs that are ready, and those that wait at the gates of flow control; put behind library.lua in every script.
-- docs/formats-runs.md, "The queue", has the structures and what moves a run through them.
--
-- A place is a ring of owners: 'r' class, the ready one, or 'w' class gate, those that wait there. An owner's seat in it has
-- a turn T and since when it waits, both ticks. An item of an owner in a place is a sort key and a run without gates, or '~'
-- and a cohort: all queued runs that have class, owner, gates and stamps in common, and so are blocked and freed together.
-- In a record: G gates as stamped, {Limit or '', max, Rate or '', microseconds a start, microseconds that a burst is ahead,
-- digest of the cohort with its token to be paid, and without}; P the token is paid.
-- A cohort: c class, o owner, l m Limit and max, r i t Rate and its microseconds, w the gate where it waits or '', k sort key
-- of its first run, n tick since when it waits, b how often the Rate sent it back, v a slot is reserved for it.
--
-- Keeps: slots are the runs that are held, and reservations. If the first cohort of a (gate, class) could start, one of them
-- is open, that is in the ready ring, or the gate's timer is set. So `wake` follows whatever frees a gate or takes an open
-- cohort away; one wake too few is a run that never starts.
local RESERVED_MICROSECONDS, BOUNCES = 10000000, 3
local touched, told = {}, false

local function tell_ready()
  if not told then
    told = true
    redis.call('PUBLISH', CHANNEL .. ':ready', '')
  end
end

local function first(key, prefix)
  return redis.call('ZRANGE', key, '[' .. prefix, '(' .. prefix .. '\255', 'BYLEX', 'LIMIT', 0, 1)[1]
end

local function size(key, prefix)
  return redis.call('ZLEXCOUNT', key, '[' .. prefix, '(' .. prefix .. '\255')
end

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

local function sit(place, owner, turn, since)
  local position = struct.pack('>I8I8', turn, since)
  redis.call('HSET', SEAT, place .. owner, position)
  redis.call('ZADD', RING, 0, place .. position .. owner)
end

local function rise(place, owner)
  redis.call('ZREM', RING, place .. redis.call('HGET', SEAT, place .. owner) .. owner)
end

local function tick()
  return redis.call('HINCRBY', META, 'tick', 1)
end

-- `since` is nil for what waits from now on.
local function add(place, owner, item, since)
  redis.call('ZADD', Q, 0, place .. owner .. item)
  if redis.call('HEXISTS', SEAT, place .. owner) == 0 then
    since = since or tick()
    sit(place, owner, since, since)
    local seats, last = served(owner)
    set_served(owner, seats + 1, last)
  end
end

local function remove(place, owner, item)
  redis.call('ZREM', Q, place .. owner .. item)
  if not first(Q, place .. owner) then
    rise(place, owner)
    redis.call('HDEL', SEAT, place .. owner)
    local seats, last = served(owner)
    set_served(owner, seats - 1, last)
  end
end

-- The cohort to which a queued run belongs; nil if no gate is before it.
local function cohort_of(record)
  local gates = record.G
  if not gates then
    return nil
  end
  if gates[3] ~= '' and not record.P then
    return record.c .. gates[6]
  end
  return gates[1] ~= '' and record.c .. gates[7] or nil
end

local function place_of(cohort)
  return cohort.w == '' and 'r' .. cohort.c or 'w' .. cohort.c .. cohort.w
end

-- When the next start is due, by the theoretical arrival time that the gate keeps (GCRA).
local function due_of(cohort)
  return math.max(tonumber(redis.call('ZSCORE', RATE, cohort.r) or '0'), now()) - cohort.t
end

-- How many of these could pass the gate now.
local function room(cohort, gate)
  if gate == cohort.l then
    return cohort.m - size(SLOT, gate) + (cohort.v and 1 or 0)
  end
  return math.floor((now() - due_of(cohort)) / cohort.i) + 1
end

local function each_gate(cohort, visit)
  if cohort.l then
    visit(cohort.l)
  end
  if cohort.r then
    visit(cohort.r)
  end
end

-- How many cohorts of the class in the ready ring need the gate. (What begins with ':' ends before ';'.)
local function opened(gate, class)
  return redis.call('ZLEXCOUNT', OPEN, '[' .. gate .. class .. ':', '(' .. gate .. class .. ';')
end

local function open(cid, cohort, gate)
  if gate ~= cohort.l or not cohort.v then
    redis.call('ZADD', OPEN, 0, gate .. cohort.c .. ':' .. cid)
  end
end

local function save_cohort(cid, cohort)
  redis.call('HSET', COHORT, cid, cmsgpack.pack(cohort))
end

local function put_cohort(cid, cohort, gate)
  cohort.w = gate
  add(place_of(cohort), cohort.o, cohort.k .. '~' .. cid, cohort.n)
  if gate == '' then
    touched[cohort.c] = true
    each_gate(cohort, function(needed)
      open(cid, cohort, needed)
    end)
  else
    redis.call('ZADD', GIDX, 0, gate .. ':' .. cohort.c)
  end
  save_cohort(cid, cohort)
end

local function take_cohort(cid, cohort)
  local place = place_of(cohort)
  remove(place, cohort.o, cohort.k .. '~' .. cid)
  if cohort.w == '' then
    touched[cohort.c] = true
    each_gate(cohort, function(gate)
      redis.call('ZREM', OPEN, gate .. cohort.c .. ':' .. cid)
    end)
  elseif not first(RING, place) then
    redis.call('ZREM', GIDX, cohort.w .. ':' .. cohort.c)
  end
end

local function set_timer(gate, due)
  redis.call('ZADD', TIMER, 'LT', string.format('%.0f', math.ceil(due)), 'g' .. gate)
end

-- Offers what is free to who waits longest, in each class: a class may have no worker. It gets nothing yet: a claim takes.
local function wake(gate)
  local heads = {}
  for _, entry in ipairs(redis.call('ZRANGE', GIDX, '[' .. gate .. ':', '(' .. gate .. ';', 'BYLEX')) do
    local place = 'w' .. string.sub(entry, #gate + 2) .. gate
    local seat = first(RING, place)
    local turn, since = struct.unpack('>I8I8', seat, #place + 1)
    heads[#heads + 1] = {place .. string.sub(seat, #place + 17), turn, since}
  end
  table.sort(heads, function(one, other)
    return one[2] < other[2] or (one[2] == other[2] and one[3] < other[3])
  end)
  for _, head in ipairs(heads) do
    local cid = string.sub(first(Q, head[1]), #head[1] + 11)
    local cohort = cmsgpack.unpack(redis.call('HGET', COHORT, cid))
    local free = room(cohort, gate)
    if free <= 0 then
      if gate == cohort.r then
        set_timer(gate, due_of(cohort))
      end
    elseif opened(gate, cohort.c) < free then
      take_cohort(cid, cohort)
      put_cohort(cid, cohort, '')
      tell_ready()
    end
  end
end

local function wake_all(cohort)
  each_gate(cohort, wake)
end

local function unreserve(cid, cohort)
  if cohort.v then
    cohort.v = nil
    redis.call('ZREM', SLOT, cohort.l .. '~' .. cid)
    redis.call('ZREM', TIMER, 'v' .. cid)
  end
end

-- The gate where a cohort has to wait behind others, or for itself; '' if it may go into the ready ring.
local function gate_for(cohort)
  local found = ''
  each_gate(cohort, function(gate)
    if found == '' and (gate ~= cohort.l or not cohort.v) then
      local waiting = redis.call('ZRANGE', GIDX, '[' .. gate .. ':', '(' .. gate .. ';', 'BYLEX', 'LIMIT', 0, 1)[1]
      if waiting or opened(gate, cohort.c) >= room(cohort, gate) then
        found = gate
      end
    end
  end)
  return found
end

-- The cohort's first run is another one now.
local function rekey(cid, cohort, key)
  local list = place_of(cohort) .. cohort.o
  redis.call('ZREM', Q, list .. cohort.k .. '~' .. cid)
  redis.call('ZADD', Q, 0, list .. key .. '~' .. cid)
  cohort.k = key
  save_cohort(cid, cohort)
  if cohort.w ~= '' then
    wake(cohort.w)
  end
end

local function join(id, record, cid)
  local list, packed = 'c' .. cid, redis.call('HGET', COHORT, cid)
  redis.call('ZADD', Q, 0, list .. record.k .. id)
  if packed then
    local cohort = cmsgpack.unpack(packed)
    local key = string.sub(first(Q, list), #list + 1, #list + 9)
    if key ~= cohort.k then
      rekey(cid, cohort, key)
    end
    if cohort.w == '' then
      tell_ready()
    end
    return
  end
  local gates = record.G
  local cohort = {c = record.c, o = record.o, k = record.k, n = tick(), b = 0}
  if gates[1] ~= '' then
    cohort.l, cohort.m = gates[1], gates[2]
  end
  if gates[3] ~= '' and not record.P then
    cohort.r, cohort.i, cohort.t = gates[3], gates[4], gates[5]
  end
  local gate = gate_for(cohort)
  put_cohort(cid, cohort, gate)
  if gate == '' then
    tell_ready()
  else
    wake(gate)
  end
end

local function drop_cohort(cid, cohort)
  take_cohort(cid, cohort)
  unreserve(cid, cohort)
  redis.call('HDEL', COHORT, cid)
  wake_all(cohort)
end

local function enqueue(id, record)
  record.s, record.w, record.wd, record.p, record.A = 'queued', nil, nil, nil, now()
  local cid = cohort_of(record)
  if cid then
    join(id, record, cid)
  else
    add('r' .. record.c, record.o, record.k .. id)
    tell_ready()
  end
  save(id, record)
  changed(id)
end

local function dequeue(id, record)
  local cid = cohort_of(record)
  if not cid then
    remove('r' .. record.c, record.o, record.k .. id)
    return
  end
  local list, cohort = 'c' .. cid, cmsgpack.unpack(redis.call('HGET', COHORT, cid))
  redis.call('ZREM', Q, list .. record.k .. id)
  local head = first(Q, list)
  if not head then
    drop_cohort(cid, cohort)
  elseif string.sub(head, #list + 1, #list + 9) ~= cohort.k then
    rekey(cid, cohort, string.sub(head, #list + 1, #list + 9))
  end
end

-- Whether the cohort's gates let its first run start; if not, it goes to the one that is shut.
local function passes(cid, cohort)
  local shut
  if cohort.l and room(cohort, cohort.l) <= 0 then
    shut = cohort.l
  elseif cohort.r and room(cohort, cohort.r) <= 0 then
    shut = cohort.r
    cohort.b = cohort.b + 1
  else
    return true
  end
  take_cohort(cid, cohort)
  if cohort.l and shut == cohort.r and cohort.b >= BOUNCES and not cohort.v and string.sub(cohort.l, 2) ~= string.sub(shut, 2) then
    -- with two keys a slot may be free whenever no token is, and the other way round
    cohort.v = true
    redis.call('ZADD', SLOT, 0, cohort.l .. '~' .. cid)
    redis.call('ZADD', TIMER, string.format('%.0f', math.max(due_of(cohort), now()) + RESERVED_MICROSECONDS), 'v' .. cid)
  end
  put_cohort(cid, cohort, shut)
  wake_all(cohort)
  return false
end

-- The cohort's first run starts: it takes its slot and pays its token. What is left of the cohort waits anew.
local function serve(cid, cohort, id, record, present)
  local list = 'c' .. cid
  if cohort.l then
    unreserve(cid, cohort)
    redis.call('ZADD', SLOT, 0, cohort.l .. id)
  end
  if cohort.r then
    local arrival = math.max(tonumber(redis.call('ZSCORE', RATE, cohort.r) or '0'), now()) + cohort.i
    redis.call('ZADD', RATE, string.format('%.17g', arrival), cohort.r)
    record.P = true
  end
  redis.call('ZREM', Q, list .. record.k .. id)
  local head = first(Q, list)
  if not head then
    drop_cohort(cid, cohort)
    return
  end
  take_cohort(cid, cohort)
  cohort.k, cohort.n, cohort.b = string.sub(head, #list + 1, #list + 9), present, 0
  put_cohort(cid, cohort, gate_for(cohort))
  wake_all(cohort)
end

local function let_go(id, record)
  redis.call('ZREM', HELD, record.wd .. id)
  record.w, record.wd, record.z = nil, nil, nil
  local gates = record.G
  if gates and gates[1] ~= '' and redis.call('ZREM', SLOT, gates[1] .. id) == 1 then
    wake(gates[1])
  end
end

local function end_reservation(cid)
  local packed = redis.call('HGET', COHORT, cid)
  local cohort = packed and cmsgpack.unpack(packed)
  if cohort and cohort.v then
    unreserve(cid, cohort)
    save_cohort(cid, cohort)
    if cohort.w == '' then
      open(cid, cohort, cohort.l)
    end
    wake(cohort.l)
  end
end

-- Fires up to 64 timers that are due: runs are queued, gates have a token, reservations end. The time of the next, or ''.
local function advance()
  prune_list(64, now)
  local present = string.format('%.0f', now())
  for _, gate in ipairs(redis.call('ZRANGE', RATE, '-inf', present, 'BYSCORE', 'LIMIT', 0, 16)) do
    -- an arrival that has passed is a full bucket
    redis.call('ZREM', RATE, gate)
  end
  for _, due in ipairs(redis.call('ZRANGE', TIMER, '-inf', present, 'BYSCORE', 'LIMIT', 0, 64)) do
    redis.call('ZREM', TIMER, due)
    local kind = string.sub(due, 1, 1)
    if kind == 'g' then
      wake(string.sub(due, 2))
    elseif kind == 'v' then
      end_reservation(string.sub(due, 2))
    else
      local packed = redis.call('HGET', RUN, due)
      if packed then
        enqueue(due, cmsgpack.unpack(packed))
      end
    end
  end
  return redis.call('ZRANGE', TIMER, 0, 0, 'WITHSCORES')[2] or ''
end
