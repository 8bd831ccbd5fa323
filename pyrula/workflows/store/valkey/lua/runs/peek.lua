#!lua
-- How much a worker would find: due timers are fired, nothing is taken.
--
-- KEYS  as in library.lua
-- ARGV  2..  classes
-- reply    {next timer or '', how many owners sit in the classes' rings}
local due, seats = advance(), 0
for place = 2, #ARGV do
  seats = seats + size(RING, 'r' .. ARGV[place])
end
return {due, seats}
