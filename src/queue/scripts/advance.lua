-- Takes records out of a list of ours, and does what is to follow.
--
-- KEYS
--   1   artisand:follow-ups
--   2+  keys of the effects
-- ARGV
--   1   number of records
--   2+  the records, then the effects, see effects.lua
--
-- Returns how many records were there. If none was, another process has taken
-- them, and nothing follows.

local count = tonumber(ARGV[1])
local first = count + 2
local effects = (#ARGV - first + 1) / WIDTH
check(first, effects)
local taken = 0
for at = 2, count + 1 do taken = taken + redis.call('LREM', KEYS[1], 1, ARGV[at]) end
if taken > 0 then apply(first, effects) end
return taken
