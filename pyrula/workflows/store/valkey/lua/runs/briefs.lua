#!lua flags=allow-oom
-- What a listing tells of runs.
--
-- KEYS  own: their hashes
-- ARGV  2..  their ids, in the same order
-- reply    of each {}, or {status, link, attempt, worker or '', name, owner, created, finished or '', version or ''}
local briefs = {}
for place = SHARED + 1, #KEYS do
  local record = load(arg(), KEYS[place])
  local brief = {}
  if record then
    local told = redis.call('HMGET', KEYS[place], 'name', 'owner', 'created', 'finished')
    brief = {
      record.s, record.l, record.a, record.w or '', told[1], told[2], told[3], told[4] or '', record.v or ''
    }
  end
  briefs[#briefs + 1] = brief
end
return briefs
