-- Frees a lock that is ours.
--
-- KEYS  1  the lock; laravel_database_laravel_cache_:NAME
-- ARGV  1  the owner
--
-- Returns 1 if it was ours and is free, 0 if somebody else has it or nobody.

if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
