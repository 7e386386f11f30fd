-- Adds one to the count of the current span of time, or begins a new span.
--
-- KEYS  1  the counter; laravel_database_aa5c56f3208b58a5a8cfc5a7e25ebee2
-- ARGV  1  now, in seconds with a fraction
--       2  now, in whole seconds
--       3  seconds that a span lasts
--       4  most in a span
--
-- Returns whether there was room (1 or 0), the second at which the span ends, and
-- the remaining room, which is negative beyond the limit. The hash has the fields
-- of Laravel's duration limiter: start, end, count.

local now, start = tonumber(ARGV[1]), redis.call('HMGET', KEYS[1], 'start', 'end')
local from, to = tonumber(start[1] or ''), tonumber(start[2] or '')
if from and to and now >= from and now <= to then
  local count = redis.call('HINCRBY', KEYS[1], 'count', 1)
  local left = tonumber(ARGV[4]) - count
  return { left >= 0 and 1 or 0, to, left }
end
to = tonumber(ARGV[2]) + tonumber(ARGV[3])
redis.call('HMSET', KEYS[1], 'start', ARGV[2], 'end', string.format('%.0f', to), 'count', 1)
redis.call('EXPIRE', KEYS[1], string.format('%.0f', tonumber(ARGV[3]) * 2))
return { 1, to, tonumber(ARGV[4]) - 1 }
