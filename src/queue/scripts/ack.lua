-- Removes records from one of artisand's own lists, and applies the effects.
--
-- KEYS
--   1   artisand:follow-ups
--   2   artisand:follow-ups:lease
--   3+  keys of the effects
-- ARGV
--   1   owner of the lease
--   2   number of records
--   3+  the records, then the effects, see effects.lua
--
-- Returns how many of the records were there. If none was, or if the owner no
-- longer has the lease, another process drains the list: 0, and no effect.

if redis.call('GET', KEYS[2]) ~= ARGV[1] then return 0 end
local count = tonumber(ARGV[2])
local first = count + 3
local effects = (#ARGV - first + 1) / WIDTH
check(first, effects)
local taken = 0
for at = 3, count + 2 do taken = taken + redis.call('LREM', KEYS[1], 1, ARGV[at]) end
if taken > 0 then apply(first, effects) end
return taken
