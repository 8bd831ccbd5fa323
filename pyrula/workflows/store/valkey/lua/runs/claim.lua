#!lua
-- Takes runs off the queue for a worker: the owners in turn, an owner's runs in order.
--
-- KEYS  as in library.lua
-- ARGV  2..4  worker, its digest, number of this claim
--       5     how many runs at most
--       6     number of classes, and of each: class, '' or the version and the class that a claim stamps
-- reply    {next timer or '', runs}; a run is {id, link, epoch, version, attempt, deaths, 1 if it died alone, 1 if the
--          verb retry was used}
--
-- Keeps: a claim sent twice takes runs once. A run is queued in one place, an owner sits once in a class's ring.
local worker, digest, number, most = arg(), arg(), arg(), count()
local cached = redis.call('HGET', REPLY, worker)
if cached then
  local last = cmsgpack.unpack(cached)
  if last[1] == number then
    return last[2]
  end
end
local due = advance()
if redis.call('HEXISTS', BEAT, worker) == 0 then
  redis.call('HSET', BEAT, worker, redis.call('HINCRBY', META, 'beat', 1))
end
local classes = {}
for place = 1, count() do
  classes[place] = {arg(), arg(), arg()}
end
local function head(class)
  local entry = first(RING, 'r' .. class[1])
  if not entry then
    class.turn = nil
    return
  end
  class.turn, class.since = struct.unpack('>I8I8', entry, 14)
  class.owner = string.sub(entry, 30)
end
for _, class in ipairs(classes) do
  head(class)
end
local function start(id, record, class)
  if class[2] ~= '' then
    record.v, record.c = class[2], class[3]
  end
  record.s, record.w, record.wd, record.e, record.n = 'running', worker, digest, record.e + 1, 0
  record.A = now()
  save(id, record)
  redis.call('ZADD', HELD, 0, digest .. id)
  changed(id)
end
local runs, steps = {}, most + 64
-- what this claim opens, it takes by itself as long as it has room
touched, told = {}, true
local changed_rings = {}
while #runs < most and steps > 0 do
  steps = steps - 1
  local best
  for _, class in ipairs(classes) do
    if class.turn
      and (not best or class.turn < best.turn or (class.turn == best.turn and class.since < best.since)) then
      best = class
    end
  end
  if not best then
    break
  end
  local place, owner = 'r' .. best[1], best.owner
  local seats, last = served(owner)
  if best.turn < last then
    -- the owner had its turn in another class
    rise(place, owner)
    sit(place, owner, last, best.since)
  else
    local item = first(Q, place .. owner)
    local member = string.sub(item, 35)
    local cid = string.sub(member, 1, 1) == '~' and string.sub(member, 2)
    local cohort = cid and cmsgpack.unpack(redis.call('HGET', COHORT, cid))
    if not cid or passes(cid, cohort) then
      local present = tick()
      set_served(owner, seats, present)
      local id = cid and string.sub(first(Q, 'c' .. cid), 35) or member
      local record = cmsgpack.unpack(redis.call('HGET', RUN, id))
      if cid then
        serve(cid, cohort, id, record, present)
      else
        dequeue(id, record)
      end
      if redis.call('HEXISTS', SEAT, place .. owner) == 1 then
        rise(place, owner)
        sit(place, owner, present, present)
      end
      start(id, record, best)
      runs[#runs + 1] = {
        id, record.l, record.e, record.v, record.a, record.d, record.y and 1 or 0, record.t and 1 or 0
      }
    end
  end
  head(best)
  for _, class in ipairs(classes) do
    if touched[class[1]] then
      head(class)
    end
  end
  for class in pairs(touched) do
    changed_rings[class] = true
  end
  touched = {}
end
told = false
for class in pairs(changed_rings) do
  if first(RING, 'r' .. class) then
    -- others may take what this one left
    tell_ready()
  end
end
local reply = {due, runs}
redis.call('HSET', REPLY, worker, cmsgpack.pack({number, reply}))
return reply
