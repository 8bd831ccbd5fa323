#!lua
-- Takes the questions to runs of a source's records.
--
-- KEYS  1  the address's questions
-- reply    {question, id, name, payload} of each that somebody still waits for
local taken = {}
local packed = redis.call('HGETALL', KEYS[1])
for place = 1, #packed, 2 do
  local asked = cmsgpack.unpack(packed[place + 1])
  if asked[4] > now() then
    taken[#taken + 1] = {packed[place], asked[1], asked[2], asked[3]}
  end
end
redis.call('UNLINK', KEYS[1])
return taken
