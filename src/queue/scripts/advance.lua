-- Takes records out of a list of ours, and does what is to follow.
--
-- KEYS
--   1   artisand:follow-ups
--   2   artisand:follow-ups:lease
--   3+  keys of the effects
-- ARGV
--   1   who we are
--   2   number of records
--   3+  the records, then the effects, see effects.lua
--
-- Returns how many records were there. If none was, or the right to empty the
-- list is no longer ours, another process is at it: 0, and nothing follows.

if redis.call('GET', KEYS[2]) ~= ARGV[1] then return 0 end
local count = tonumber(ARGV[2])
local first = count + 3
local effects = (#ARGV - first + 1) / WIDTH
check(first, effects)
local taken = 0
for at = 3, count + 2 do taken = taken + redis.call('LREM', KEYS[1], 1, ARGV[at]) end
if taken > 0 then apply(first, effects) end
return taken
