-- Deletes all jobs of a queue, including the reserved ones.
--
-- KEYS  queues:default, :delayed, :reserved, :notify
--
-- Returns how many jobs there were. The quarantine stays.

local count = redis.call('LLEN', KEYS[1]) + redis.call('ZCARD', KEYS[2]) + redis.call('ZCARD', KEYS[3])
redis.call('DEL', unpack(KEYS))
return count
