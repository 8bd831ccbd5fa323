-- The index of runs that listing and counts read; put before library.lua in every script.
--
-- One sorted set, all scores 0: 'a' chain: every run; 'n' name, status letter, chain: where it stands; 'o' owner, chain: if
-- it has an owner; 'w' name, time, chain: since when it is queued; 'e' time, name, letter, owner, chain: when an ended run
-- goes. Names and owners are digests, times microseconds in 8 bytes, big-endian. In a record: m name's digest, j has an
-- owner, i the letter it is listed with, u since when it is queued, r its member of 'e'.
--
-- Keeps: a run is listed once with its present status; what has gone with its retention is dropped, some with every call.
local LIST = KEYS[14]
local LETTERS = {
  queued = 'q', running = 'r', sleeping = 's', signal_waiting = 'g', interrupt_waiting = 'i', child_waiting = 'c',
  retrying = 't', paused = 'p', completed = 'd', failed = 'f', cancelled = 'x'
}

local function list(id, record, now)
  local letter = LETTERS[record.s]
  if not record.m or record.i == letter then
    return
  end
  local mine = 'n' .. record.m
  if not record.i then
    redis.call('ZADD', LIST, 0, 'a' .. id)
    if record.j then
      redis.call('ZADD', LIST, 0, 'o' .. record.o .. id)
    end
  elseif record.u then
    redis.call('ZREM', LIST, mine .. record.i .. id, 'w' .. record.m .. record.u .. id)
    record.u = nil
  else
    redis.call('ZREM', LIST, mine .. record.i .. id)
  end
  record.i = letter
  if letter == 'q' then
    record.u = struct.pack('>I8', now())
    redis.call('ZADD', LIST, 0, mine .. letter .. id, 0, 'w' .. record.m .. record.u .. id)
  else
    redis.call('ZADD', LIST, 0, mine .. letter .. id)
  end
end

-- Drops up to `most` runs that have outlived their retention.
local function prune_list(most, now)
  local gone = redis.call('ZRANGE', LIST, '[e', '(e' .. struct.pack('>I8', now()), 'BYLEX', 'LIMIT', 0, most)
  for _, entry in ipairs(gone) do
    local id, owner = string.sub(entry, 35), string.sub(entry, 23, 34)
    redis.call('ZREM', LIST, entry, 'a' .. id, 'n' .. string.sub(entry, 10, 22) .. id, 'o' .. owner .. id)
  end
end

-- An ended run is listed for its retention, in seconds.
local function list_until(id, record, retention, now)
  if record.m then
    list(id, record, now)
    local at = now() + tonumber(retention) * 1000000
    record.r = 'e' .. struct.pack('>I8', at) .. record.m .. record.i .. record.o .. id
    redis.call('ZADD', LIST, 0, record.r)
  end
  prune_list(2, now)
end

local function list_again(record)
  if record.r then
    redis.call('ZREM', LIST, record.r)
    record.r = nil
  end
end

-- Calls `visit` with the digest of every name that has runs.
local function each_name(visit)
  local from = '[n'
  while true do
    local member = redis.call('ZRANGE', LIST, from, '(o', 'BYLEX', 'LIMIT', 0, 1)[1]
    if not member then
      return
    end
    visit(string.sub(member, 2, 13))
    from = '(' .. string.sub(member, 1, 13) .. '\255'
  end
end
