-- Reads the current span of time without changing it.
--
-- KEYS  1  the counter; laravel_database_aa5c56f3208b58a5a8cfc5a7e25ebee2
-- ARGV  1  now, in seconds with a fraction
--       2  now, in whole seconds
--       3  seconds that a span lasts
--       4  most in a span
--
-- Returns whether there is room (1 or 0), the second at which the span ends, and
-- the remaining room.

local now, span = tonumber(ARGV[1]), redis.call('HMGET', KEYS[1], 'start', 'end', 'count')
local from, to, count = tonumber(span[1] or ''), tonumber(span[2] or ''), tonumber(span[3] or '')
if from and to and now >= from and now <= to then
  local left = tonumber(ARGV[4]) - (count or 0)
  return { left > 0 and 1 or 0, to, left }
end
return { 1, tonumber(ARGV[2]) + tonumber(ARGV[3]), tonumber(ARGV[4]) }
