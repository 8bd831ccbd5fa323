#!lua flags=allow-oom
-- How many runs there are, by status.
--
-- KEYS  as in library.lua
-- ARGV  2  digest of a name, '' for every one
-- reply    {since when the first is queued, in microseconds, or '', letter, count, letter, count...}
local name = arg()
local totals, since = {}, nil
local function add(each)
  for _, letter in pairs(LETTERS) do
    local prefix = 'n' .. each .. letter
    totals[letter] = (totals[letter] or 0) + redis.call('ZLEXCOUNT', LIST, '[' .. prefix, '(' .. prefix .. '\255')
  end
  local head = first(LIST, 'w' .. each)
  local at = head and string.sub(head, 14, 21)
  if at and (not since or at < since) then
    since = at
  end
end
if name ~= '' then
  add(name)
else
  each_name(add)
end
local reply = {since and string.format('%.0f', struct.unpack('>I8', since)) or ''}
for letter, total in pairs(totals) do
  reply[#reply + 1] = letter
  reply[#reply + 1] = total
end
return reply
