#!lua
-- Takes questions: to runs that this worker holds, and to runs of its classes that nobody holds.
--
-- KEYS  as in library.lua
-- ARGV  2, 3  worker, how many at most
--       4..   classes
-- reply    {question, id of the chain, link, name, payload} of each
local worker, most = arg(), count()
local taken = {}
for place = 4, #ARGV do
  local class = ARGV[place]
  for _, member in ipairs(redis.call('ZRANGE', ASK, '[' .. class, '(' .. class .. '\255', 'BYLEX', 'LIMIT', 0, 256)) do
    local question = string.sub(member, 13)
    local packed = redis.call('HGET', ASKED, question)
    local asked = packed and cmsgpack.unpack(packed)
    if not asked or asked[5] <= now() then
      redis.call('ZREM', ASK, member)
      redis.call('HDEL', ASKED, question)
    elseif #taken < most then
      local run = redis.call('HGET', RUN, asked[1])
      local record = run and cmsgpack.unpack(run)
      if not record or record.s ~= 'running' or record.w == worker then
        redis.call('ZREM', ASK, member)
        redis.call('HDEL', ASKED, question)
        taken[#taken + 1] = {question, asked[1], record and record.l or asked[2], asked[3], asked[4]}
      end
    end
  end
end
return taken
