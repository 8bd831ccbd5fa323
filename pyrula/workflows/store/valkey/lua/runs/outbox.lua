#!lua flags=allow-oom
-- Some of what is to be sent on, after dropping what was.
--
-- KEYS  as in library.lua
-- ARGV  2..  entries that were sent on
-- reply    {entry, {target, kind, id, name, payload}} of up to about 64
for place = 2, #ARGV do
  redis.call('HDEL', OUT, ARGV[place])
end
local found = redis.call('HSCAN', OUT, 0, 'COUNT', 64)[2]
local entries, size = {}, 0
for place = 1, #found, 2 do
  size = size + #found[place + 1]
  if #entries < 64 and (size < 4194304 or place == 1) then
    entries[#entries + 1] = {found[place], cmsgpack.unpack(found[place + 1])}
  end
end
return entries
