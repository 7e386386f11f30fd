-- Moves due jobs of a queue to its list as pop.lua does, and reserves none.
--
-- KEYS  queues:default, :delayed, :reserved, :notify
-- ARGV
--   1  now                                        1760000000
--   2  most jobs to migrate, from each set        100
--   3  whether there are notify lists             1 or 0
--   4  whether reservations end                   1 or 0; 2 to hear whose have
--
-- Returns how many delayed jobs and how many ended reservations were moved, and the
-- jobs whose reservations had ended, if the caller wants to hear of them.
-- If Redis stops half way, jobs may be in both places, never in neither.

local list, delayed, reserved = KEYS[1], KEYS[2], KEYS[3]
local now, limit = tonumber(ARGV[1]), tonumber(ARGV[2])
local notify = ARGV[3] == '1' and KEYS[4]
local moved, expired, lost = migrate(delayed, list, notify, now, limit), 0, nil
if ARGV[4] ~= '0' then
  local _
  expired, _, lost = migrate(reserved, list, notify, now, limit)
end
return { moved, expired, ARGV[4] == '2' and lost or {} }
