-- Gives up the lease on one of artisand's own lists.
--
-- KEYS  1  artisand:failed-spool:lease
-- ARGV  1  owner of the lease
--
-- Returns 1 if the owner had the lease, otherwise 0.

if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
