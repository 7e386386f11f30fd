-- Takes the right to bring what is in a list of ours to where it belongs.
--
-- KEYS  1  artisand:failed-spool:lease
-- ARGV  1  who we are
--       2  seconds it lives
--
-- Returns 1 if it is ours now, 0 if another process has it.

local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return 0 end
redis.call('SETEX', KEYS[1], ARGV[2], ARGV[1])
return 1
