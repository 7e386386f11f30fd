-- Gives a lock that is ours a new end.
--
-- KEYS  1  the lock; laravel_database_laravel_cache_:NAME
-- ARGV  1  the owner
--       2  seconds from now; 0 for no end
--
-- Returns 1 if it was ours, 0 if not.

if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
if tonumber(ARGV[2]) > 0 then redis.call('EXPIRE', KEYS[1], ARGV[2]) else redis.call('PERSIST', KEYS[1]) end
return 1
