-- Pushes jobs unless they were pushed before: all or none.
--
-- KEYS
--   1   artisand:pushed:<id>
--   2+  keys of the effects
-- ARGV
--   1   seconds for which the push is remembered
--   2   what is remembered of it
--   3+  the effects, see effects.lua
--
-- Returns how many jobs were not pushed because their lock was taken, or what is remembered of the push before.

local before = redis.call('GET', KEYS[1])
if before then return before end
local effects = (#ARGV - 2) / WIDTH
check(3, effects)
local locked = apply(3, effects)
-- Remembered last: if a push fails, it is not remembered. Nor is one of jobs whose locks
-- were all taken: it did nothing.
if locked == 0 or locked < effects then
  redis.call('SETEX', KEYS[1], ARGV[1], locked == 0 and ARGV[2] or '')
end
return locked
