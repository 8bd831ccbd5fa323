#!lua flags=allow-oom
-- Ids of runs, the newest first.
--
-- KEYS  as in library.lua
-- ARGV  2     how many at most
--       3, 4  bounds of the ids as ZRANGE takes them: '(<id>', '[<id>' or '' from above, '<id>' or '' from below
--       5     'a' of all, 'o' of an owner, 'n' of names
--       6     the owner, or the name or '' for every one
--       7     for 'n': status letters, or '' for every one
-- reply    ids
local most, above, below, kind, what, letters = count(), arg(), arg(), arg(), arg(), arg()
local BATCH = 16

local function page(prefix, upper, amount)
  local top = upper == '' and '(' .. prefix .. '\255' or string.sub(upper, 1, 1) .. prefix .. string.sub(upper, 2)
  local found = redis.call('ZRANGE', LIST, top, '[' .. prefix .. below, 'BYLEX', 'REV', 'LIMIT', 0, amount)
  for place, member in ipairs(found) do
    found[place] = string.sub(member, #prefix + 1)
  end
  return found
end

if kind ~= 'n' then
  return page(kind .. what, above, most)
end
if letters == '' then
  for _, letter in pairs(LETTERS) do
    letters = letters .. letter
  end
end
local lists = {}
local function open(name)
  for place = 1, #letters do
    local prefix = 'n' .. name .. string.sub(letters, place, place)
    local found = page(prefix, above, BATCH)
    if #found > 0 then
      lists[#lists + 1] = {prefix = prefix, found = found, at = 1}
    end
  end
end
if what ~= '' then
  open(what)
else
  each_name(open)
end
local ids = {}
while #ids < most do
  local best
  for _, each in ipairs(lists) do
    local head = each.found[each.at]
    if head and (not best or head > best.found[best.at]) then
      best = each
    end
  end
  if not best then
    break
  end
  ids[#ids + 1] = best.found[best.at]
  best.at = best.at + 1
  if best.at > #best.found and #best.found == BATCH then
    best.found, best.at = page(best.prefix, '(' .. best.found[BATCH], BATCH), 1
  end
end
return ids
