-- Extends the lease on one of artisand's own lists: one drainer at a time.
--
-- KEYS  1  artisand:failed-spool:lease
-- ARGV  1  owner of the lease
--       2  seconds it lives
--
-- Returns 1 if the owner still has the lease, otherwise 0.

if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('EXPIRE', KEYS[1], ARGV[2])
return 1
