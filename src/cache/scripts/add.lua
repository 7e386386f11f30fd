-- Stores a value unless the key exists.
--
-- KEYS  1  the key; laravel_database_laravel_cache_:job-exceptions:UUID
-- ARGV  1  the value as stored
--       2  seconds it lives
--
-- Returns 1 if the value was stored, 0 if the key had a value.

if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
redis.call('SETEX', KEYS[1], ARGV[2], ARGV[1])
return 1
