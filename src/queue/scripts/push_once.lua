-- Pushes jobs unless they were pushed before: all of them or none.
--
-- KEYS
--   1   artisand:pushed:<id>
--   2+  keys of the effects
-- ARGV
--   1   seconds for which it is remembered
--   2+  the effects, see effects.lua
--
-- Returns 1 if they were pushed now.

if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
local effects = (#ARGV - 1) / WIDTH
check(2, effects)
apply(2, effects)
-- Remembered at the end: if a push fails, it is not.
redis.call('SETEX', KEYS[1], ARGV[1], '1')
return 1
