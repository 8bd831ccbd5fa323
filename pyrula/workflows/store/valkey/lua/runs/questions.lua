#!lua
-- Takes questions: to runs that this worker holds, and to runs of its classes that nobody holds.
--
-- KEYS  as in library.lua
-- ARGV  2, 3  worker, how many at most
--       4..   classes
-- Keeps: a run may have changed its class since the question (a stamp, another version): then the question goes along.
-- reply    {question, id of the chain, link, name, payload} of each
local worker, most = arg(), count()
local taken = {}
local function each(visit)
  for place = 4, #ARGV do
    local range = {'[' .. ARGV[place], '(' .. ARGV[place] .. '\255'}
    for _, member in ipairs(redis.call('ZRANGE', ASK, range[1], range[2], 'BYLEX', 'LIMIT', 0, 256)) do
      local question = string.sub(member, 13)
      local packed = redis.call('HGET', ASKED, question)
      local asked = packed and cmsgpack.unpack(packed)
      local run = asked and redis.call('HGET', RUN, asked[1])
      visit(ARGV[place], member, question, asked, run and cmsgpack.unpack(run))
    end
  end
end
each(function(class, member, question, asked, record)
  if not asked or asked[5] <= now() then
    redis.call('ZREM', ASK, member)
    redis.call('HDEL', ASKED, question)
  elseif record and record.c ~= class then
    redis.call('ZREM', ASK, member)
    redis.call('ZADD', ASK, 0, record.c .. question)
    redis.call('EXPIRE', ASK, 3600)
  end
end)
each(function(_, member, question, asked, record)
  if #taken < most and (not record or record.s ~= 'running' or record.w == worker) then
    redis.call('ZREM', ASK, member)
    redis.call('HDEL', ASKED, question)
    taken[#taken + 1] = {question, asked[1], record and record.l or asked[2], asked[3], asked[4]}
  end
end)
return taken
