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
  local entry = first(RING, class[1])
  if not entry then
    class.turn = nil
    return
  end
  class.turn, class.since = struct.unpack('>I8I8', entry, 13)
  class.owner = string.sub(entry, 29)
end
for _, class in ipairs(classes) do
  head(class)
end
local runs, steps = {}, most + 64
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
  local class, owner = best[1], best.owner
  local place = class .. owner
  local seats, last = served(owner)
  if best.turn < last then
    -- the owner had its turn in another class
    redis.call('ZREM', RING, class .. struct.pack('>I8I8', best.turn, best.since) .. owner)
    sit(place, class, owner, last, best.since)
  else
    local tick = redis.call('HINCRBY', META, 'tick', 1)
    set_served(owner, seats, tick)
    local item = first(Q, place)
    local id = string.sub(item, 34)
    local record = cmsgpack.unpack(redis.call('HGET', RUN, id))
    dequeue(id, record)
    if redis.call('HEXISTS', SEAT, place) == 1 then
      redis.call('ZREM', RING, class .. struct.pack('>I8I8', best.turn, best.since) .. owner)
      sit(place, class, owner, tick, tick)
    end
    if best[2] ~= '' then
      record.v, record.c = best[2], best[3]
    end
    record.s, record.w, record.wd, record.e, record.n = 'running', worker, digest, record.e + 1, 0
    save(id, record)
    redis.call('ZADD', HELD, 0, digest .. id)
    changed(id)
    runs[#runs + 1] = {
      id, record.l, record.e, record.v, record.a, record.d, record.y and 1 or 0, record.t and 1 or 0
    }
  end
  head(best)
end
local reply = {due, runs}
redis.call('HSET', REPLY, worker, cmsgpack.pack({number, reply}))
return reply
