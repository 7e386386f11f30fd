-- Frees a lock if this owner has it.
--
-- KEYS  1  the lock; laravel_database_laravel_cache_:NAME
-- ARGV  1  the owner
--
-- Returns 1 if the lock was freed, 0 if another owner has it or it is not taken.

if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
