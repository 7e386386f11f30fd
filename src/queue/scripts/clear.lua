-- Deletes the jobs of a queue, but those whose reservation has not ended.
--
-- KEYS  queues:default, :delayed, :reserved, :notify
-- ARGV
--   1  now                        1760000000
--   2  whether reservations end   0 if not
--
-- Returns how many jobs were deleted. The quarantine stays.

local ended = 0
if ARGV[2] ~= '0' then
  ended = redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', ARGV[1])
end
local count = redis.call('LLEN', KEYS[1]) + redis.call('ZCARD', KEYS[2]) + ended
redis.call('DEL', KEYS[1], KEYS[2], KEYS[4])
return count
