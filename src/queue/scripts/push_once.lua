-- Pushes jobs unless they were pushed before: all or none.
--
-- KEYS
--   1   artisand:pushed:<id>
--   2+  keys of the effects
-- ARGV
--   1   seconds for which the push is remembered
--   2+  the effects, see effects.lua
--
-- Returns 1 if the jobs were pushed now, otherwise 0.

if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
local effects = (#ARGV - 1) / WIDTH
check(2, effects)
apply(2, effects)
-- Remembered last: if a push fails, it is not remembered.
redis.call('SETEX', KEYS[1], ARGV[1], '1')
return 1
