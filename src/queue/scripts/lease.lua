-- Takes the lease on one of artisand's own lists: one drainer at a time.
--
-- KEYS  1  artisand:failed-spool:lease
-- ARGV  1  owner of the lease
--       2  seconds it lives
--
-- Returns 1 if the owner has the lease now, 0 if another process has it.

local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return 0 end
-- Changes nothing that stays: a full Redis refuses SETEX as the first write of a script.
redis.call('EXPIRE', KEYS[1], ARGV[2])
redis.call('SETEX', KEYS[1], ARGV[2], ARGV[1])
return 1
