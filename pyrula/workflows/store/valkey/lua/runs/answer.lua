#!lua
-- Keeps a question's answer for a minute.
--
-- KEYS  own: 1 the answer
-- ARGV  2, 3  id of the chain, answer
-- reply    1
local id, answer = arg(), arg()
redis.call('SET', KEYS[SHARED + 1], answer, 'EX', 60)
changed(id)
return 1
