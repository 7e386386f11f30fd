-- Extends a lock if this owner has it.
--
-- KEYS  1  the lock; laravel_database_laravel_cache_:NAME
-- ARGV  1  the owner
--       2  seconds from now; 0 for no end
--
-- Returns 1 if it was extended, 0 if this owner does not have the lock.

if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
if tonumber(ARGV[2]) > 0 then redis.call('EXPIRE', KEYS[1], ARGV[2]) else redis.call('PERSIST', KEYS[1]) end
return 1
