-- Reserves chosen jobs of one queue, wherever in the list they stand.
--
-- KEYS  queues:default, :delayed, :reserved, :notify, :quarantine, as for pop.lua
-- ARGV
--   1  end of the reservations  1760000090
--   2  whether there are notify lists             1 or 0
--   3  notifications that the caller's BLPOP already took
--   4+ elements as they stand in the list
--
-- Returns two values per element: offset and text as in pop.lua; or -2 and an
-- empty text if another worker has taken it; or -3 and an empty text if it
-- cannot be decoded and went to quarantine.
-- A member is added before its element is removed; see common.lua.

local list, reserved, notify, quarantine = KEYS[1], KEYS[3], KEYS[4], KEYS[5]
local reply, taken = {}, 0
begin(reserved)
for i = 4, #ARGV do
  local element = ARGV[i]
  local offset, text, member = reserve(element)
  local removed
  if offset then
    local known = redis.call('ZSCORE', reserved, member)
    redis.call('ZADD', reserved, ARGV[1], member)
    removed = redis.call('LREM', list, 1, element)
    if removed == 0 then
      offset, text = -2, ''
      if known then redis.call('ZADD', reserved, known, member) else redis.call('ZREM', reserved, member) end
    end
  else
    redis.call('RPUSH', quarantine, element)
    removed = redis.call('LREM', list, 1, element)
    if removed == 0 then redis.call('RPOP', quarantine) end
    offset, text = removed == 0 and -2 or -3, ''
  end
  reply[#reply + 1] = offset
  reply[#reply + 1] = text
  taken = taken + removed
end
if ARGV[2] == '1' and taken > 0 then take_notifications(list, notify, taken, tonumber(ARGV[3])) end
return reply
